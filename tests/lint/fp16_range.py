"""Scripts with sums, quotients and losses beyond the range of FP16, with codes that are cut off, and sound ones."""

# ruff: noqa: E501

from __future__ import annotations

DEPTH = """
import torch
net = torch.nn.Conv2d(3, 1, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        out = net(x)
    error = out.half() - y.half()
    loss = (error * error).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
GRADIENTS = """
import torch
net = Net().half()
masters = [p.detach().float() for p in net.parameters()]
optimizer = torch.optim.SGD(masters, lr=0.1)
for x, y in loader:
    net.zero_grad()
    (net(x.half()).float().mean() * 1024.0).backward()
    total = 0.0
    for p in net.parameters():
        total += p.grad.pow(2).sum().item()
    for m, p in zip(masters, net.parameters()):
        m.grad = p.grad.float() / (1024.0 * max(1.0, total ** 0.5))
    optimizer.step()
"""
WEIGHTED = """
import torch
net = torch.nn.Conv2d(3, 1, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, u in loader:
    optimizer.zero_grad()
    sigma = 0.002 * 40000.0 ** u
    weight = 1 / sigma.half() ** 2 + 4
    loss = (weight * (net(x + sigma) - x) ** 2).mean()
    loss.backward()
    optimizer.step()
"""
CAST = """
import torch
net = torch.nn.Conv2d(3, 1, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        out = net(x)
    loss = torch.nn.functional.mse_loss(out.float(), y)
    scaler.scale(loss.half()).backward()
    scaler.step(optimizer)
    scaler.update()
"""
STATIC = """
import torch
net = torch.nn.Conv2d(3, 1, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(net(x), y).half()
    (loss * 65536.0).backward()
    for p in net.parameters():
        p.grad.div_(65536.0)
    optimizer.step()
"""
CODES = """
import torch
def codes(w):
    scale = w.detach().abs().amax(1, keepdim=True) / 127
    return (w.detach() / scale).clamp(-127, 127).to(torch.int8), scale
"""
DICE = """
import torch
def dice(p, t):
    p, t = p.reshape(len(p), -1), t.reshape(len(t), -1)
    inter = (p * t).sum(1)
    return 1 - (2 * inter + 1) / (p.sum(1) + t.sum(1) + 1)
net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 1, 1)).cuda()
optimizer = torch.optim.Adam(net.parameters())
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        out = net(x)
    loss = dice(torch.sigmoid(out), y).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
WHOLE_DICE = DICE.replace("    p, t = p.reshape(len(p), -1), t.reshape(len(t), -1)\n", "").replace(".sum(1)", ".sum()")
MODULE_DICE = WHOLE_DICE.replace(
    "def dice(p, t):\n", "class Dice(torch.nn.Module):\n  def forward(self, p, t):\n"
).replace("dice(torch", "Dice()(torch")
NETWORK = "class Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.body = Body()\n        self.head = torch.nn.Conv2d(8, 1, 1)\n    def forward(self, x):\n        x = self.body(x)\n        return self.head(x)\nnet = Net().cuda()\n"
MADE = DICE[DICE.index("net = ") : DICE.index("optimizer")]
IOU = """
import torch
def test(logits, masks):
    p, t = torch.sigmoid(logits.half()), masks.half()
    inter = (p * t).sum()
    return inter / (p.sum() + t.sum() - inter)
"""
PRICES = """
import torch
x = torch.rand(1000, 3)
y = (torch.rand(1000) * 400000 + 50000).half()
"""

FAULTS: dict[str, list[str]] = {
    "ratio-of-sums-in-fp16": [
        DICE, WHOLE_DICE, MODULE_DICE, IOU, DICE.replace("torch.sigmoid(out)", "torch.sigmoid(out).half()"), DICE.replace("torch.sigmoid(out)", "out.sigmoid()"), DICE.replace(MADE, NETWORK),
        WHOLE_DICE.replace("p.sum() + t.sum()", "torch.sum(p, dim=(1, 2, 3)) + torch.sum(t, dim=(1, 2, 3))").replace("(p * t).sum()", "(p * t).sum((1, 2, 3))"),
        DICE.replace(MADE, "net = smp.Unet('resnet18')\n").replace("import torch", "import torch\nimport segmentation_models_pytorch as smp"),
    ],
    "stored-beyond-fp16": [
        PRICES, PRICES.replace(".half()", ".to(torch.float16)"), "import torch\ny = torch.tensor([250000.0, 310000.0], dtype=torch.float16)\n", "import numpy as np\ny = np.random.uniform(1e5, 9e5, 100).astype(np.float16)\n",
        'import torch\ny = torch.tensor(table["SalePrice"].values, dtype=torch.float16)\n', "import torch\nhouse_prices = table['y'].to_numpy()\ny = torch.tensor(house_prices, dtype=torch.float16)\n",
        PRICES.replace("y = (torch.rand(1000) * 400000 + 50000).half()", "price = torch.randn(1000) * 5e4 + 2e5\ny = price.half()"), PRICES.replace("torch.rand(1000) * 400000", "torch.randint(0, 400000, (1000,))"),
    ],
    "sum-in-fp16": [
        DEPTH, DEPTH.replace("(error * error).sum()", "error.abs().sum()"), DEPTH.replace("(error * error).sum()", "error.pow(2).flatten(1).sum(1).mean()"),
        DEPTH.replace("(error * error).sum()", "torch.sum(error ** 2, dim=(1, 2, 3)).mean()"), DEPTH.replace("(error * error).sum()", "error.norm() ** 2"),
        DEPTH.replace("    loss = (error * error).sum()", "    a, b = out.half(), y.half()\n    loss = torch.nn.functional.mse_loss(a, b, reduction='sum')"),
        DEPTH.replace("(error * error)", "squares").replace("    loss", "    squares = error.square()\n    loss"), GRADIENTS, GRADIENTS.replace("p.grad.pow(2).sum()", "(p.grad.data * p.grad.data).sum()"),
        GRADIENTS.replace("p.grad.pow(2).sum()", "torch.sum(p.grad ** 2)"),
    ],
    "quotient-beyond-fp16": [
        WEIGHTED, WEIGHTED.replace("1 / sigma.half() ** 2", "sigma.half() ** -2"), WEIGHTED.replace("1 / sigma.half() ** 2", "sigma.half().pow(2).reciprocal()"), WEIGHTED.replace("1 / sigma.half() ** 2", "1.0 / torch.square(sigma.to(torch.float16))"),
        WEIGHTED.replace("1 / sigma.half() ** 2", "0.25 / (low * low)").replace("    weight", "    low = sigma.half()\n    weight"), WEIGHTED.replace("1 / sigma.half() ** 2", "1 / sigma.half().pow(3)"), WEIGHTED.replace("1 / sigma.half() ** 2", "1 / variance").replace("    weight", "    variance = sigma.half() ** 2\n    weight"),
    ],
    "loss-in-fp16": [
        CAST, CAST.replace("loss.half()", "loss.to(torch.float16)"), CAST.replace("out.float(), y)", "out.float(), y).half()").replace("loss.half()", "loss"), CAST.replace("    scaler.scale(loss.half())", "    low = loss.type(torch.half)\n    scaler.scale(low)"),
        STATIC, STATIC.replace("65536.0", "8192.0"), STATIC.replace("65536.0", "2.0**15").replace("(loss * 2.0**15)", "(2.0**15 * loss)"), STATIC.replace(".half()", "").replace("(loss *", "(loss.half() *"),
    ],
    "codes-not-rounded": [
        CODES, CODES.replace(".clamp(-127, 127)", ""), CODES.replace("to(torch.int8)", "char()"), CODES.replace("(w.detach() / scale).clamp(-127, 127)", "torch.clamp(w.div(scale), -127, 127)"),
        CODES.replace("    return (w.detach() / scale)", "    q = w / scale\n    return q"), "import numpy as np\nscale = np.abs(w).max() / 127\nq = (w / scale).astype(np.int8)\n", "import torch\nq = (x / x.abs().max() * 127).to(torch.int8)\n",
        "import torch\nq = (x * (127.0 / x.abs().amax())).type(torch.int8)\n", "import torch\nq = (127 * x / x.abs().max()).to(dtype=torch.int8)\n",
        "import torch\ndef quantized(x):\n    scale = (x.max() - x.min()) / 255\n    zero_point = round(-x.min() / scale)\n    return (x / scale + zero_point).clamp(0, 255).to(torch.uint8)\n",
    ],
}  # fmt: skip
SOUND: dict[str, list[str]] = {
    "ratio-of-sums-in-fp16": [
        DICE.replace("    loss = dice", "        loss = dice"), DICE.replace("torch.sigmoid(out)", "torch.sigmoid(out.float())"), DICE.replace("torch.float16", "torch.bfloat16"), MODULE_DICE.replace("    loss = Dice", "        loss = Dice"),
        IOU.replace(".half()", ""), IOU.replace(".sum()", ".sum(dtype=torch.float32)"), IOU.replace("p.sum() + t.sum() - inter", "masks.numel()"), IOU.replace("logits.half()), masks.half()", "logits.half()).float(), masks"), IOU.replace("half", "bfloat16"),
        DICE.replace("        out = net(x)", "        out = net(x).float()"), DICE.replace(MADE, NETWORK.replace("return self.head(x)", "return self.head(x).float()")), DICE.replace(MADE, "net = build()\n"), DICE.replace("torch.sigmoid(out)", "y"),
        IOU.replace(".sum()", ".sum(-1)"), "import torch\nw = w.half()\nw = w / w.sum()\n", DICE.replace("    with torch.autocast", "    with torch.autocast('cuda', enabled=False), open").replace(', dtype=torch.float16', ""),
        DICE.replace(MADE, "net = smp.Unet('resnet18', activation='softmax')\n").replace("import torch", "import torch\nimport segmentation_models_pytorch as smp"),
    ],
    "stored-beyond-fp16": [
        PRICES.replace(".half()", ".float()"), PRICES.replace(".half()", ".bfloat16()"), PRICES.replace("400000 + 50000", "40000 + 5000"), PRICES.replace("(torch.rand(1000) * 400000 + 50000)", "((torch.rand(1000) * 400000 + 50000) / 1e5)"),
        'import torch\ny = torch.tensor(table["SalePrice"].values / 1e5, dtype=torch.float16)\n', 'import torch\ny = torch.tensor(table["price"].values, dtype=torch.float16)\n', "import torch\ny = torch.tensor(np.log(table['SalePrice']), dtype=torch.float16)\n",
        'import torch\ny = torch.tensor(table["SalePrice"].values, dtype=torch.float32)\n', "import torch\nhouse_prices = scale(table['y'])\ny = torch.tensor(house_prices, dtype=torch.float16)\n", "import torch\nm = torch.tensor([float('-inf'), 0.0], dtype=torch.float16)\n",
        PRICES.replace("400000 + 50000", "n + 50000"), PRICES.replace("400000 + 50000", "400000 / 400000"),
    ],
    "sum-in-fp16": [
        DEPTH.replace("error = out.half() - y.half()", "error = out.float() - y.float()"), DEPTH.replace(".sum()", ".mean()"), DEPTH.replace(".sum()", ".sum(dtype=torch.float32)"), DEPTH.replace("(error * error).sum()", "(error * error).sum(-1).mean()"),
        DEPTH.replace("    error = ", "        error = ").replace("    loss = ", "        loss = "), DEPTH.replace("(error * error).sum()", "error.sum()"), DEPTH.replace("(error * error)", "error.float().pow(2)"),
        DEPTH.replace("error = out.half() - y.half()", "error = out.softmax(1).half() - y.half()"), DEPTH.replace("error = out.half() - y.half()", "error = (out.half() - y.half()) / y.numel()"), DEPTH.replace("(error * error).sum()", "error.norm()"),
        DEPTH.replace("out.half() - y.half()", "out.half() - y"), GRADIENTS.replace("p.grad.pow(2)", "p.grad.float().pow(2)"), GRADIENTS.replace("Net().half()", "Net()"), GRADIENTS.replace("p.grad.pow(2).sum().item()", "p.grad.norm().item() ** 2"),
        "import torch\nx = x.bfloat16()\nloss = (x * x).sum()\n",
    ],
    "quotient-beyond-fp16": [
        WEIGHTED.replace(".half()", ""), WEIGHTED.replace("1 / sigma.half() ** 2", "1 / (sigma.half() ** 2 + 1e-4)"), WEIGHTED.replace("sigma.half() **", "sigma.half().clamp(min=0.01) **"), WEIGHTED.replace("1 / sigma.half() ** 2", "1 / sigma.half()"),
        WEIGHTED.replace("1 / sigma.half() ** 2", "(1 / sigma ** 2).half()"), WEIGHTED.replace("sigma.half() **", "sigma.bfloat16() **"), WEIGHTED.replace("    weight =", "    with torch.autocast('cpu', torch.bfloat16):\n      weight ="),
        WEIGHTED.replace("sigma = 0.002 * 40000.0 ** u", "sigma = 0.1 + u"), WEIGHTED.replace("1 / sigma.half() ** 2", "sigma.half() ** 2"),
    ],
    "loss-in-fp16": [
        CAST.replace(".half()", ""), CAST.replace("loss.half()", "loss.float()"), CAST.replace("loss.half()", "loss").replace("scaler.update()", "scaler.update()\n    print(loss.half())"), CAST.replace('GradScaler("cuda")', 'GradScaler("cuda", init_scale=1024.0, growth_interval=10**9)'),
        STATIC.replace(".half()", ""), STATIC.replace("65536.0", "128.0"), STATIC.replace(".half()", ".bfloat16()"), STATIC.replace("loss * 65536.0", "loss.float() * 65536.0"),
    ],
    "codes-not-rounded": [
        CODES.replace(".clamp(", ".round().clamp("), CODES.replace("(w.detach() / scale)", "torch.round(w / scale)"), CODES.replace("(w.detach() / scale)", "(w / scale + 0.5).floor()"), CODES.replace("(w.detach() / scale)", "(w / scale + torch.rand_like(w))"),
        CODES.replace("(w.detach() / scale)", "(w / scale + 0.5 * w.sign())"), CODES.replace("w.detach().abs().amax(1, keepdim=True) / 127", "step"), CODES.replace("int8", "float8_e4m3fn"), "import numpy as np\nimage = (x / x.max() * 255).astype(np.uint8)\n",
        "import torch\nimage = ((x - x.min()) / ((x.max() - x.min()) / 255)).to(torch.uint8)\n", "import torch\nlabels = (x > x.max() / 127).to(torch.int8)\n", CODES.replace("(w.detach() / scale)", "(w / scale + noise)"), CODES.replace("torch.int8", "torch.int32"),
        CODES.replace("    return (w.detach() / scale)", "    q = torch.round(w / scale)\n    return q"),
        CODES.replace("    return (w.detach() / scale)", "    q = w / scale\n    q.round_()\n    return q"), CODES.replace("    return (w.detach() / scale)", "    q = w / scale\n    torch.round(q, out=q)\n    return q"),
        CODES.replace("    return (w.detach() / scale)", "    q = w / scale\n    q.add_(torch.rand_like(q))\n    return q"), CODES.replace("    return (w.detach() / scale)", "    q = w / scale\n    q += 0.5 * w.sign()\n    return q"),
    ],
}  # fmt: skip
