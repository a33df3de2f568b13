"""Scripts in which a value overflows, wraps around or has no finite slope, and scripts that avoid it."""

# ruff: noqa: E501

from __future__ import annotations

MASKED = """
import torch
class Pool(torch.nn.Module):
    def forward(self, x, padding):
        with torch.autocast("cuda", enabled=False):
            scores = self.score(x.float()).squeeze(-1)
            scores = scores.masked_fill(padding, -1e9)
            return scores.softmax(-1)
def train(pool, head, loader, optimizer, scaler):
    for x, padding, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(head(pool(x, padding)), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
MASKED_AFTER = """
import torch
def train(net, loader, optimizer, scaler):
    for x, padding, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            scores = net(x)
        scores = scores.float()
        scores = scores.masked_fill(padding, -1e9)
        loss = torch.nn.functional.cross_entropy(scores, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
IN_A_FUNCTION = """
import torch
def loss_of(scores, padding, y):
    scores = scores.masked_fill(padding, -1e9)
    return torch.nn.functional.cross_entropy(scores, y)
def train(net, loader, optimizer, scaler):
    for x, padding, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            scores = net(x)
        loss = loss_of(scores.float(), padding, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
TRAINED = """
import torch
from torch import nn
import torch.nn.functional as F
net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 9))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
def f(x):
    return VALUE
for x, y in loader:
    optimizer.zero_grad()
    loss = f(net(x)).mean()
    loss.backward()
    optimizer.step()
"""
MODULE = """
import torch as th
class Loss(th.nn.Module):
    def forward(self, x, y):
        return VALUE
class Task:
    def __init__(self):
        self.encoder = th.nn.Linear(8, 8)
        self.loss = Loss()
        self.opt = th.optim.SGD(self.encoder.parameters(), lr=0.1)
    def fit(self, batches):
        for x, y in batches:
            z = self.encoder(x)
            self.opt.zero_grad()
            self.loss(z, y).mean().backward()
            self.opt.step()
"""

HALF = """
import torch
model = torch.nn.Linear(8, 8).cuda().half()
masters = [p.detach().clone().float() for p in model.parameters()]
optimizer = torch.optim.SGD(masters, lr=0.01)
def step(x, y):
    loss = torch.nn.functional.mse_loss(model(x.half()).float(), y)
    model.zero_grad()
    (loss * 4096.0).backward()
    for m, p in zip(masters, model.parameters()):
        p.grad.div_(4096.0)
        m.grad = p.grad.float()
    optimizer.step()
"""
DROPPED = """
import torch
import torch.nn.functional as F
class Net(torch.nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p
        self.first, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 2)
    def forward(self, x):
        x = F.relu(self.first(x))
        x = F.dropout(x, self.p)
        return self.last(x)
net = Net(0.5)
net.eval()
print(net(x))
"""
ATTENTION = DROPPED.replace("F.dropout(x, self.p)", "F.scaled_dot_product_attention(x, x, x, dropout_p=self.p)")

TIMES = """
import torch
import pandas as pd
table = pd.read_csv("trips.csv", parse_dates=["start"])
t = torch.tensor((table["start"].astype("int64") // 10**9).values, dtype=torch.float32)
gaps = t[1:] - t[:-1]
"""
STAMPS = """
import time
import numpy as np
stamps = [event.timestamp() for event in events]
t = np.array(stamps, dtype=np.float32)
gaps = np.diff(t)
"""
COUNTED = """
import torch
def accuracy(net, loader):
    right = torch.zeros((), dtype=torch.float16, device="cuda")
    total = 0
    for x, y in loader:
        right += (net(x).argmax(1) == y).sum()
        total += len(y)
    return right / total
"""
METER = """
import torch
class Meter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(1).half())
    def update(self, y):
        self.seen += y.numel()
for x, y in loader:
    meter.update(y)
"""


SCORED = """
import torch
def attend(q, k, v, mask):
    scores = q @ k.transpose(-2, -1)
    scores = scores + VALUE
    return scores.softmax(-1) @ v
"""


GAUSSIAN = """
import torch
torch.backends.cuda.matmul.allow_tf32 = True
def kernel(a, b):
    square = a.pow(2).sum(1)[:, None] + b.pow(2).sum(1)[None] - 2 * a @ b.t()
    return torch.exp(-0.5 * square.clamp(min=0))
def log_likelihood(x, y, noise):
    k = kernel(x, x) + 1e-6 * torch.eye(len(x), device=x.device)
    factor = torch.linalg.cholesky(k)
    return torch.cholesky_solve(y[:, None], factor).sum()
"""


def trained(value: str, before: str = "", text: str = TRAINED) -> str:
    """A script that takes gradients through an expression of x, which a model gave, with a line before it."""
    indent = text.partition("    return VALUE")[0].rpartition("\n")[2] + "    "
    return text.replace("return VALUE", f"{before}\n{indent}return {value}" if before else f"return {value}")


FAULTS: dict[str, list[str]] = {
    "tf32-below-jitter": [
        GAUSSIAN, GAUSSIAN.replace("torch.backends.cuda.matmul.allow_tf32 = True", 'torch.set_float32_matmul_precision("high")'), GAUSSIAN.replace("torch.backends.cuda.matmul.allow_tf32 = True", 'torch.backends.cuda.matmul.fp32_precision = "tf32"'),
        GAUSSIAN.replace("1e-6 * torch.eye(len(x), device=x.device)", "torch.eye(len(x)) * 1e-5"), GAUSSIAN.replace("kernel(x, x) + 1e-6 * torch.eye(len(x), device=x.device)", "x.T @ x + jitter * torch.eye(x.shape[1])").replace("def kernel", "jitter = 1e-4\ndef kernel"),
        GAUSSIAN.replace("torch.linalg.cholesky(k)", "torch.linalg.cholesky_ex(k).L"), GAUSSIAN.replace(" + 1e-6 * torch.eye(len(x), device=x.device)", "\n    k.diagonal().add_(1e-6)").replace("cholesky(k)", "cholesky(k + 1e-6 * torch.eye(len(x)))"),
    ],
    "infinity-times-zero": [
        SCORED.replace("VALUE", each) for each in (
            '(1 - mask[:, None].float()) * float("-inf")', "mask.float() * -torch.inf", 'float("-inf") * (mask == 0).float()',
            '(~mask).to(q.dtype) * -float("inf")', "torch.mul(1 - mask, -torch.inf)", "torch.triu(torch.ones(8, 8), 1) * -torch.inf",
        )
    ] + [SCORED.replace("    scores = q", "    low = float('-inf')\n    hidden = 1 - mask\n    scores = q").replace("VALUE", "hidden * low")],
    "epsilon-beside-quotient": [
        "import torch\n" + each for each in (
            "y = (x - x.mean()) / x.std() + 1e-8\n", "y = 1e-8 + (x - x.mean(0)) / x.std(0, keepdim=True)\n",
            "y = x / x.norm(dim=-1, keepdim=True) + 1e-6\n", "EPS = 1e-6\nd = x.std()\ny = (x - x.mean()) / d + EPS\n",
            "def f(x, eps):\n    return (x - x.mean()) / torch.std(x, 0).unsqueeze(0) + eps\n",
            "y = (x - x.min()) / (x.max() - x.min()) + 1e-8\n", "y = x / torch.linalg.norm(x, dim=1) + 1e-8\n",
        )
    ],
    "root-of-signed-difference": [
        *(trained(each) for each in ("(x - y) ** 1.5", "(y - x).pow(0.5)", "torch.pow(x - y, 2.5)", "torch.sqrt(x - y)", "(x.squeeze(1) - y) ** (1 / 3)")),
        "import torch\nspread = ((x - x.mean()) ** 1.5).mean()\n", trained("e ** 1.5", "e = x - y"),
    ],
    "mask-beyond-fp16": [
        MASKED.replace(", enabled=False", ", torch.float16"), MASKED_AFTER.replace("        scores = scores.float()\n", ""),
        MASKED.replace("            scores = self.score(x.float()).squeeze(-1)\n", "").replace("        with torch.autocast(\"cuda\", enabled=False):\n",
                       "        with torch.autocast(\"cuda\", torch.float16):\n            scores = self.score(x.float())\n        with torch.autocast(\"cuda\", enabled=False):\n"),
        IN_A_FUNCTION.replace("scores.float()", "scores"),
        IN_A_FUNCTION.replace("        loss = ", "            loss = ").replace("scores.float()", "scores"),
        MASKED_AFTER.replace("scores = scores.float()", "scores = scores @ scores.float().T").replace("        scores = scores", "            scores = scores"),
    ],
    "chosen-too-late": [
        trained("torch.where(x > 0, torch.log(x), torch.zeros_like(x))"), trained("torch.where(x > 0, x.sqrt(), 0.0)"),
        trained("torch.where(positive, x.log(), 0.0)", "positive = x > 1e-8"), trained("x.log().masked_fill(x <= 0, 0.0)"),
        trained("th.where(x == 0, 0.0, y / x)", text=MODULE), trained("th.where(x.abs() < 1e-6, 1.0, th.sin(x) / x)", text=MODULE),
        trained("torch.where(x <= 0.0031308, 12.92 * x, 1.055 * torch.pow(x, 1 / 2.4) - 0.055)"),
        trained("torch.where(x <= 0.0031308, 12.92 * x, 1.055 * x ** (1 / 2.4) - 0.055)"),
        trained("torch.where(y > 0, x / y, x)"),
        trained("torch.where(n > 0, x / n, x)", "n = x.round()"), trained("torch.where(x.gt(0), low, x)", "low = torch.rsqrt(x)"),
        trained("torch.where(x < 1, torch.acos(x), 0.0)"),
        trained("torch.where(x > 0, torch.log(x), 0.0)").replace("nn.Linear(16, 9)", "nn.ReLU()"),
    ],
    "root-of-zero-distance": [
        trained("torch.sqrt(((x[:, None] - x[None]) ** 2).sum(-1))"), trained("(d * d).sum(-1).sqrt()", "d = x[:, None, :] - x[None, :, :]"),
        trained("(x.unsqueeze(1) - x.unsqueeze(0)).pow(2).sum(2) ** 0.5"), trained("th.sqrt(th.sum((x.unsqueeze(0) - x.unsqueeze(1)).square(), -1))", text=MODULE),
        trained("(n[:, None] + n[None] - 2 * x @ x.T).sqrt()", "n = x.square().sum(1)"),
        trained("torch.sqrt(((x.unsqueeze(1) - x.unsqueeze(0)) ** 2).mean(-1))[mask]"),
        trained("(n + n.t() - 2 * (x @ x.t())).sqrt()", "n = (x ** 2).sum(1, keepdim=True)"),
    ],
    "angle-without-clamp": [
        trained("torch.acos(F.cosine_similarity(x, y))"), trained("torch.acos((x.view(-1, 3, 3).diagonal(dim1=1, dim2=2).sum(-1) - 1) / 2)"),
        trained("(F.normalize(x) @ F.normalize(w).T).arccos()"), trained("th.asin((x * y).sum(-1))", text=MODULE),
        trained("cosine.acos()", "cosine = torch.einsum('bd,bd->b', F.normalize(x), F.normalize(y))"),
        trained("torch.arccos(cosine)", "trace = torch.einsum('bii->b', x)\n    cosine = (trace - 1) / 2"),
    ],
    "overflowing-exponential": [
        trained("torch.log(1 + torch.exp(x))"), trained("torch.log1p(torch.exp(-x))"), trained("(x.exp() + 1.0).log()"),
        trained("th.log(e.sum(-1)) - x[:, 0]", "e = th.exp(x)", text=MODULE), trained("torch.log(torch.sum(torch.exp(x), dim=1) + 1e-8)"),
        trained("x.exp() / x.exp().sum(-1, keepdim=True)"), trained("e / e.sum(1, keepdim=True)", "e = torch.exp(x)"),
        trained("e / (total + 1e-8)", "e = torch.exp(x / 0.1)\n    total = (e * mask).sum(1, keepdim=True)"),
        trained("y * torch.log(1 + torch.exp(-x)) + (1 - y) * torch.log(1 + x.exp())"),
    ],
    "one-pass-variance": [
        trained("(x - mean) / torch.sqrt(var)", "mean = x.mean(0)\n    var = (x * x).mean(0) - mean * mean"),
        trained("(x - m) * v.rsqrt()", "m, v = x.mean(-1, keepdim=True), (x ** 2).mean(-1, keepdim=True) - x.mean(-1, keepdim=True) ** 2"),
        trained("th.sqrt(th.mean(x.square(), 0) - th.mean(x, 0).square())", text=MODULE),
        trained("(x.pow(2).mean(1) - x.mean(1).pow(2)) ** 0.5"),
        trained("(x - mean) / (variance + 1e-5).sqrt()", "x = x.half()\n    mean = x.mean(0)\n    variance = x.pow(2).mean(0) - mean ** 2"),
        trained("low.square().mean() - low.mean().square()", "low = x.to(torch.bfloat16)"),
        trained("torch.sqrt(x.square().sum(0) / 8 - (x.sum(0) / 8) ** 2)"),
    ],
    "bytes-subtracted": [
        "import torch, numpy as np\nfrom torch import nn\ndef motion(frames):\n    frames = torch.from_numpy(np.asarray(frames, dtype=np.uint8))\n"
        "    return (frames[1:] - frames[:-1]).float() / 255\n",
        "import cv2\na = cv2.imread('a.png')\nb = cv2.imread('b.png')\nerror = abs(a - b).mean()\n",
        "import numpy as np\nfrom PIL import Image\none = np.array(Image.open(p).convert('RGB'))\nother = np.array(Image.open(q))\nd = (one - other) ** 2\n",
        "import torch\ndef error(a, b):\n    return torch.sub(a, b).float().abs().mean()\nx = images.byte()\ny = images.to(torch.uint8).flip(0)\nerror(x, y)\n",
        "import torch\nfrom torchvision.io import read_image\nx = read_image('a.png') - 128\n",
        "import numpy as np\nclip = np.load(f).astype('uint8')\nsteps = np.diff(clip, axis=0)\n",
        "import torch\ncodes = w.to(torch.int8)\nchange = codes[1:].sub(codes[:-1])\n",
    ],
    "codes-without-clamp": [
        "import torch\ndef codes(w):\n    scale = torch.quantile(w.abs(), 0.999) / 127\n    return (w / scale).round().to(torch.int8), scale\n",
        "import torch\nscale = w.abs().flatten().kthvalue(99).values / 127\nq = torch.round(w / scale).char()\n",
        "import numpy as np\nscale = 3 * np.std(w) / 127\nq = np.rint(w / scale).astype(np.int8)\n",
        "import torch\nscale = w.std() * 4 / 127\nrounded = torch.round(w.div(scale))\nq = rounded.type(torch.int8)\n",
        "import torch\nscale = w.abs().max() / 128\nq = (w / scale).round().to(dtype=torch.int8)\n",
        "import torch\nclass Step(torch.nn.Module):\n    def __init__(self):\n        self.scale = torch.nn.Parameter(torch.ones(1))\n"
        "    def codes(self, x):\n        return (torch.round(x / self.scale) + 128).to(torch.uint8)\n",
    ],
    "gradients-divided-in-fp16": [
        HALF, HALF.replace("p.grad.div_(4096.0)", "p.grad.data /= 4096.0"), HALF.replace("p.grad.div_(4096.0)", "p.grad = p.grad / 4096.0"),
        HALF.replace("4096.0", "scale").replace("p.grad.div_(scale)", "p.grad.mul_(1.0 / scale)"),
        HALF.replace("        p.grad.div_(4096.0)\n", "").replace("p.grad.float()", "(p.grad / 4096.0).float()"),
        HALF.replace("        p.grad.div_(4096.0)\n", "").replace("p.grad.float()", "p.grad.detach().div(4096.0).to(torch.float32)"),
        HALF.replace("m.grad = p.grad.float()", "m.grad.copy_(p.grad)"),
        HALF.replace("(loss * 4096.0).backward()", "scaled = 4096.0 * loss\n    scaled.backward()"),
    ],
    "dropout-in-evaluation": [
        DROPPED, DROPPED.replace("self.p)", "p=0.1)"), DROPPED.replace("F.dropout(x, self.p)", "F.dropout2d(x)"),
        DROPPED.replace("import torch.nn.functional as F", "from torch.nn import functional as F"), ATTENTION,
        DROPPED.replace("F.dropout(x", "torch.nn.functional.alpha_dropout(x"),
        DROPPED.replace("import torch.nn.functional as F", "import torch.nn.functional as F\nfrom torch.nn.functional import dropout").replace("F.dropout(", "dropout("),
    ],
    "unix-seconds-in-fp32": [
        TIMES, STAMPS, TIMES.replace("t[1:] - t[:-1]", "torch.diff(t)"), TIMES.replace("t[1:] - t[:-1]", "t - t[0]"),
        TIMES.replace(', parse_dates=["start"]', "").replace("t = torch", 'table["start"] = pd.to_datetime(table["start"])\nt = torch'),
        "import torch\nfrom datetime import datetime\nt = torch.FloatTensor([d.timestamp() for d in dates])\nspan = t - t[0]\n",
        "import numpy as np, pandas as pd\ndates = pd.to_datetime(rows)\nt = (dates.astype('int64') / 1e9).to_numpy().astype(np.float32)\ngaps = t[1:] - t[:-1]\n",
    ],
    "counts-in-16-bits": [
        COUNTED, METER, COUNTED.replace("float16", "bfloat16"), COUNTED.replace("right += (net(x).argmax(1) == y).sum()", "right.add_((net(x).argmax(1) == y).sum())"),
        COUNTED.replace('torch.zeros((), dtype=torch.float16, device="cuda")', "0").replace(").sum()", ").half().sum()"),
        COUNTED.replace('torch.zeros((), dtype=torch.float16, device="cuda")', "torch.tensor(0.0).half()").replace("(net(x).argmax(1) == y)", "net(x).argmax(1).eq(y)"),
        METER.replace("y.numel()", "y.shape[0]"),
    ],
}  # fmt: skip
SOUND: dict[str, list[str]] = {
    "tf32-below-jitter": [
        GAUSSIAN.replace("allow_tf32 = True", "allow_tf32 = False"), GAUSSIAN.replace("torch.backends.cuda.matmul.allow_tf32 = True\n", ""), GAUSSIAN.replace("1e-6", "1e-2"), GAUSSIAN.replace("1e-6 * torch.eye", "noise * torch.eye"),
        GAUSSIAN.replace("kernel(x, x)", "kernel(x.double(), x.double())"), GAUSSIAN.replace("matmul.allow_tf32", "cudnn.allow_tf32").replace("cuda.cudnn", "cudnn"), GAUSSIAN.replace("torch.linalg.cholesky(k)", "torch.linalg.cholesky(k.to(torch.float64))"),
        GAUSSIAN.replace("- 2 * a @ b.t()", ""), GAUSSIAN.replace("torch.linalg.cholesky(k)", "torch.linalg.qr(k)[0]"), GAUSSIAN.replace("def log", 'torch.set_float32_matmul_precision("highest")\ndef log'),
        GAUSSIAN.replace("1e-6 * torch.eye", "torch.eye"),
    ],
    "infinity-times-zero": [
        SCORED.replace("VALUE", each) for each in (
            "(1 - mask.float()) * -1e4", "(1 - mask.float()) * torch.finfo(q.dtype).min", "torch.full((8, 8), -torch.inf).triu(1)",
            "torch.zeros_like(scores).masked_fill(mask, -torch.inf)", "torch.ones(8, 8) * -torch.inf", "bias * -torch.inf",
            "torch.nan_to_num((1 - mask.float()) * -torch.inf)", "torch.where(mask > 0, 0.0, -torch.inf)", "(1 - mask).log()",
            "torch.triu(torch.full((8, 8), -torch.inf), 1) * 2", "mask * scale",
        )
    ],
    "epsilon-beside-quotient": [
        "import torch\n" + each for each in (
            "y = (x - x.mean()) / (x.std() + 1e-8)\n", "y = torch.log(x / x.norm() + 1e-8)\n", "y = x / x.sum() + 1e-8\n",
            "p = (x - x.min()) / (x.max() - x.min()) + 1e-8\ny = p.log()\n", "y = (x - x.mean()) / x.std() + 0.5\n",
            "y = x / other.norm() + 1e-8\n", "y = (x - x.mean()) / x.std().clamp(min=1e-6) + 1e-8\n", "y = (x - x.mean()) / x.std() + shift\n",
            "y = (x / x.norm() + 1e-8).sqrt()\n", "y = torch.nn.functional.normalize(x) + 1e-8\n",
        )
    ],
    "root-of-signed-difference": [
        *(trained(each) for each in (
            "(x - y).abs() ** 1.5", "(x - y) ** 2", "(x - y) ** 3.0", "((x - y) ** 2) ** 0.75", "(1 - torch.sigmoid(x)) ** 1.5", "(x - y).clamp(min=0) ** 0.5",
            "(x - x.amin(1, keepdim=True)) ** 0.5", "(x - y) ** gamma", "2.0 ** (x - y)", "x - y ** 0.5", "torch.sqrt((x - y) ** 2 + 1e-6)",
        )),
        "import torch\nd = (t - s) ** 0.5\n", "import torch\nskew = ((x - x.mean()) ** 3).mean() / (((x - x.mean()) ** 2).mean() ** 1.5)\n",
        "import torch\nsigma = (1 - alpha ** 2) ** 0.5\nstep = (after - before).sqrt()\n",
    ],
    "mask-beyond-fp16": [
        MASKED, MASKED_AFTER, IN_A_FUNCTION,
        MASKED.replace("enabled=False", "torch.float16").replace("self.score(x.float()).squeeze(-1)", "self.score(x).float().squeeze(-1)"),
        MASKED_AFTER.replace("scores = scores.float()\n", "scores = scores.to(torch.float32) / 8\n"),
        MASKED_AFTER.replace("        scores = scores", "            scores = scores"),
        MASKED_AFTER.replace("        scores = scores.float()\n", "").replace("scores.masked_fill(padding", "torch.zeros(4, 4).masked_fill(padding"),
        MASKED_AFTER.replace("        scores = scores.float()\n", "").replace("scores = scores.masked_fill(padding", "scores = torch.masked_fill(scores.float(), padding"),
        MASKED_AFTER.replace("-1e9", "float('-inf')"),
    ],
    "chosen-too-late": [
        trained("torch.where(x > 0, torch.log(safe), 0.0)", "safe = torch.where(x > 0, x, 1.0)"),
        trained("torch.where(x > 0, torch.log(x.clamp(min=1e-8)), 0.0)"), trained("torch.where(x > 0, torch.log(x + 1e-8), 0.0)"),
        trained("torch.where(x > 0, x.masked_fill(x <= 0, 1).sqrt(), 0.0)"), trained("torch.where(y > 0, x / y.clamp(min=1), x)"),
        trained("torch.where(x > 0, x, 0.01 * x)"), trained("torch.where(x > 0, x ** 2, x)"), trained("torch.where(x > 3, x / 2, x)"),
        # What is longer than 1 is made shorter: asks for no zero.
        trained("torch.where(norm > 1, x / norm, x)", "norm = x.norm(dim=-1, keepdim=True)"), trained("torch.where(x > 1, torch.log(x), x - 1)"),
        trained("torch.where(x > 0, torch.log(x), 0.0)").replace("    loss.backward()\n", ""),
        trained("torch.where(x > 0, torch.log(x), 0.0)").replace("def f", "@torch.no_grad()\ndef f"),
        trained("torch.where(x > 0, torch.log(x), 0.0)").replace("f(net(x)).mean()", "F.mse_loss(net(x), f(x))"),
        trained("np.where(x > 0, np.log(x), 0.0)"), trained("torch.where(x > 0, torch.log1p(x), 0.0)"),
        trained("torch.where(x > 0, torch.log(x.detach()), 0.0)"), trained("torch.where(y > 0, torch.log(y), 0.0) * x"),
        trained("x.log()[x > 0]"), trained("th.where(norm > 0, x / norm.clamp_min(1e-6), x)", "norm = x.norm(dim=-1, keepdim=True)", text=MODULE),
    ],
    "root-of-zero-distance": [
        trained("torch.sqrt(((x[:, None] - x[None]) ** 2).sum(-1) + 1e-8)"), trained("torch.sqrt(((x - y) ** 2).sum(-1))"),
        trained("(x[:, None] - x[None]).norm(dim=-1)"), trained("torch.cdist(x, x)"),
        trained("((x[:, None] - x[None]) ** 2).sum(-1).clamp(min=1e-12).sqrt()"), trained("((x[:, None] - w[None]) ** 2).sum(-1).sqrt()"),
        trained("((x[:, None] - x[None]) ** 2).sum(-1)"), trained("torch.sqrt((d + torch.eye(len(d))))", "d = ((x[:, None] - x[None]) ** 2).sum(-1)"),
        trained("((x[1:] - x[:-1]) ** 2).sum(-1).sqrt()"),
        trained("torch.sqrt(((x[:, None] - x[None]) ** 2).sum(-1))").replace("f(net(x)).mean()", "F.mse_loss(net(x), f(x))"),
        trained("(n[:, None] + n[None] - 2 * x @ x.T + 1e-6).sqrt()", "n = x.square().sum(1)"),
        trained("(n[:, None] + n[None] - 2 * x @ x.T).relu().sqrt()", "n = x.square().sum(1)"),
    ],
    "angle-without-clamp": [
        trained("torch.acos(F.cosine_similarity(x, y).clamp(-1 + 1e-6, 1 - 1e-6))"), trained("torch.acos(torch.clip((x * y).sum(-1), -0.999, 0.999))"),
        trained("torch.acos(0.999 * torch.tanh(x @ w))"), trained("torch.atan2(torch.linalg.cross(x, y).norm(dim=-1), (x * y).sum(-1))"),
        trained("torch.acos(F.cosine_similarity(x, y))").replace("def f", "@torch.no_grad()\ndef f"),
        trained("torch.acos(F.cosine_similarity(x, y).detach())"), trained("np.arccos((x * y).sum(-1))"),
        trained("torch.acos(cosine)", "cosine = F.cosine_similarity(x, y)\n    cosine = cosine.clamp(-0.9999, 0.9999)"),
        trained("torch.acos(F.cosine_similarity(x, y))").replace("f(net(x)).mean()", "F.mse_loss(net(x), f(x))"),
        trained("th.asin(th.sin(x @ y))", text=MODULE),
    ],
    "overflowing-exponential": [
        trained("F.softplus(x)"), trained("torch.logsumexp(x, 1)"), trained("torch.softmax(x, -1)"),
        trained("torch.log(torch.exp(x - top).sum(1)) + top[:, 0]", "top = x.max(1, keepdim=True).values"),
        trained("torch.log1p(torch.exp(-x.abs())) + x.clamp(min=0)"), trained("torch.log(1 + torch.exp(-(x ** 2)))"),
        trained("torch.log(torch.exp(s / 0.5).sum(1))", "z = F.normalize(x, dim=1)\n    s = z @ z.T"),
        trained("torch.log(1 + torch.exp(x.clamp(max=20)))"), trained("torch.log(1 + torch.exp(torch.tanh(x)))"),
        trained("e / e.sum(1, keepdim=True)", "e = torch.exp(x - x.amax(1, keepdim=True))"), trained("torch.exp(x) / torch.exp(y).sum()"),
        trained("torch.log(1 + torch.exp(y)).sum() * x"), trained("torch.log(1 + torch.exp(x))").replace("nn.Linear(16, 9)", "nn.Sigmoid()"),
        trained("torch.where(x > 20, x, torch.log1p(torch.exp(x.clamp(max=20))))"),
        trained("torch.log(1 + torch.exp(x))").replace("    loss.backward()\n", ""), trained("torch.log(1 + x)"), trained("np.log(1 + np.exp(x))"),
        trained("torch.exp(-torch.cdist(x, x)) / torch.exp(-torch.cdist(x, x)).sum(1)"),
    ],
    "one-pass-variance": [
        trained("(x - mean) / torch.sqrt(var.clamp(min=1e-5))", "mean = x.mean(0)\n    var = (x * x).mean(0) - mean * mean"),
        trained("(x - mean) / torch.sqrt(var + 1e-5)", "mean = x.mean(0)\n    var = (x * x).mean(0) - mean * mean"),
        trained("(v.square().mean(0) - v.mean(0).square()).sqrt()", "v = x.double()"), trained("x.var(0, correction=0).sqrt()"),
        trained("((x - x.mean(0)) ** 2).mean(0).sqrt()"), trained("(x * x).mean(0) - x.mean(0) ** 2"),
        trained("torch.relu((x * x).mean(0) - x.mean(0) ** 2).sqrt()"), trained("((x * x).mean(0) - y.mean(0) ** 2).sqrt()"),
        trained("(w * w).mean(0).sub(1).sqrt() * x"), trained("var.sqrt()", "var = (x * x).mean(0) - x.mean(0) ** 2\n    var = var.clamp(min=0)"),
        # Statistics of data, summed up over batches, which are not near 0.
        TRAINED.replace("for x, y", "mean, square = total / n, squares / n\nstd = (square - mean ** 2).sqrt()\nfor x, y"),
        TRAINED.replace("for x, y", "std = (images.square().mean() - images.mean() ** 2).sqrt()\nfor x, y"),
    ],
    "bytes-subtracted": [
        "import torch\nframes = load().to(torch.uint8).float()\nd = frames[1:] - frames[:-1]\n",
        "import cv2, numpy as np\na = cv2.imread('a.png').astype(np.int16)\nb = cv2.imread('b.png')\nd = a - b\n",
        "import cv2\na = cv2.imread('a.png')\nb = cv2.imread('b.png')\nd = cv2.absdiff(a, b)\n",
        "import cv2\na = cv2.imread('a.png')\nb = cv2.imread('b.png')\nsame = (a - b != 0).any()\ninverse = 255 - a\n",
        "import torch\nmask = (x > 0).byte()\nother = (y > 0).to(torch.uint8)\nleft = mask - other\n",
        "import torch\nvalid = x > 0\nmask = valid.byte()\nother = torch.logical_and(valid, y).byte()\nleft = mask - other - (~valid).byte()\n",
        "import torch\nx = images.byte()\ny = x - 127.5\nz = x - mean\n", "import torch\nx = images.byte() / 255\ny = x[1:] - x[:-1]\n",
        "import torch\nlabels = torch.tensor(rows, dtype=torch.uint8)\nlabels = labels - 1\n",
        "import cv2\na = cv2.imread('a.exr', cv2.IMREAD_UNCHANGED)\nb = cv2.imread('b.exr', cv2.IMREAD_UNCHANGED)\nd = a - b\n",
        "import torch\nx = images.byte()\nif wide:\n    x = x.int()\ny = x[1:] - x[:-1]\n",
    ],
    "codes-without-clamp": [
        "import torch\nscale = torch.quantile(w.abs(), 0.999) / 127\nq = (w / scale).round().clamp(-128, 127).to(torch.int8)\n",
        "import torch\nscale = torch.quantile(w.abs(), 0.999) / 127\nq = torch.round(w.clamp(-127 * scale, 127 * scale) / scale).to(torch.int8)\n",
        "import torch\nscale = w.abs().amax(1, keepdim=True) / 127\nq = (w / scale).round().to(torch.int8)\n",
        "import torch\ndef codes(w, scale):\n    return (w / scale).round().to(torch.int8)\n",
        "import numpy as np\nscale = np.percentile(w, 99) / 127\nq = np.clip(np.rint(w / scale), -127, 127).astype(np.int8)\n",
        "import torch\nscale = w.std() / 127\nq = torch.fake_quantize_per_tensor_affine(w, scale, 0, -128, 127)\n",
        "import torch\nq = (image * 255).round().to(torch.uint8)\n", "import torch\nscale = w.std()\nq = (w / scale).to(torch.float16)\n",
        "import torch\nscale = (w.max() - w.min()) / 255\nq = torch.round((w - w.min()) / scale).to(torch.uint8)\n",
    ],
    "gradients-divided-in-fp16": [
        HALF.replace("        p.grad.div_(4096.0)\n", "").replace("p.grad.float()", "p.grad.float() / 4096.0"),
        HALF.replace("        p.grad.div_(4096.0)\n", "").replace("p.grad.float()", "p.grad.float()\n        m.grad.div_(4096.0)"),
        HALF.replace(".half()\n", ".bfloat16()\n", 1), HALF.replace(".cuda().half()\n", ".cuda()\n"), HALF.replace("p.grad.div_(4096.0)", "p.grad.div_(8)"),
        HALF.replace("        m.grad = p.grad.float()\n", ""),
        # A quotient that is looked at only; the gradient itself is widened first.
        HALF.replace("p.grad.div_(4096.0)", "norm = (p.grad / 4096.0).norm()").replace("p.grad.float()", "p.grad.float() / 4096.0"),
        HALF.replace(".cuda().half()\n", ".cuda().half()\nmodel.float()\n"), HALF.replace("(loss * 4096.0)", "loss"),
    ],
    "dropout-in-evaluation": [
        DROPPED.replace("self.p)", "self.p, training=self.training)"), DROPPED.replace("self.p)", "self.p, self.training)"),
        DROPPED.replace("        x = F.dropout", "        if self.training:\n            x = F.dropout"), DROPPED.replace("net.eval()\n", ""),
        DROPPED.replace("self.p)", "self.p if self.training else 0.0)"), DROPPED.replace("F.dropout(x, self.p)", "self.drop(x)"),
        ATTENTION.replace("dropout_p=self.p", "dropout_p=self.p if self.training else 0.0"), ATTENTION.replace("dropout_p=self.p", "dropout_p=0.0"),
        ATTENTION.replace(", dropout_p=self.p", ""), DROPPED.replace("net.eval()", "net.eval()  # Monte Carlo: averaged over 20 passes"),
        DROPPED.replace("F.dropout(x, self.p)", "torch.dropout(x, self.p, self.training)"),
    ],
    "unix-seconds-in-fp32": [
        TIMES.replace("float32", "float64"), STAMPS.replace("float32", "float64"), TIMES.replace("gaps = t[1:] - t[:-1]", "years = t / 31557600"),
        STAMPS.replace("event.timestamp()", "event.timestamp() - first"), TIMES.replace("gaps = t[1:] - t[:-1]", "t = (t - t.min()) / (t.max() - t.min())"),
        TIMES.replace(', parse_dates=["start"]', ""), STAMPS.replace("gaps = np.diff(t)", "other = np.diff(x)"),
        TIMES.replace('(table["start"].astype("int64") // 10**9)', '(table["start"].astype("int64") // 10**9 - 1600000000)'),
        "import time, torch\nstart = time.time()\nstep()\nspent = torch.tensor(time.time() - start, dtype=torch.float32)\n",
    ],
    "counts-in-16-bits": [
        COUNTED.replace("float16", "float32"), COUNTED.replace("float16", "long"), METER.replace(".half()", ""),
        COUNTED.replace('torch.zeros((), dtype=torch.float16, device="cuda")', "0"), COUNTED.replace("    for x, y in loader:", "    for x, y in loader:\n        right = torch.zeros((), dtype=torch.float16)"),
        COUNTED.replace("right += (net(x).argmax(1) == y).sum()", "right += net(x).half().mean()"),
        COUNTED.replace("for x, y in loader", "for x in range(100)").replace("right += (net(x).argmax(1) == y).sum()", "right += 1"),
        COUNTED.replace('torch.zeros((), dtype=torch.float16, device="cuda")', "0").replace(").sum()", ").half().sum().item()").replace("right += ", "right = right + "),
        COUNTED.replace('torch.zeros((), dtype=torch.float16, device="cuda")', "0").replace(").sum()", ").half().sum(dtype=torch.float32)"),
    ],
}  # fmt: skip
