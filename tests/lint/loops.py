"""Loops with one mistake in the order of their calls or in the use of a library, and loops without it."""

# ruff: noqa: E501

from __future__ import annotations

PENALTY = """
import torch
def step(critic, opt, scaler, mixed, fake):
    with torch.autocast("cuda", dtype=torch.float16):
        out = critic(mixed).sum()
        loss = critic(fake).mean()
    (g,) = torch.autograd.grad(scaler.scale(out), mixed, create_graph=True)
    penalty = ((g.flatten(1).norm(dim=1) - 1) ** 2).mean()
    scaler.scale(loss + penalty).backward()
    scaler.step(opt)
    scaler.update()
scaler = torch.amp.GradScaler("cuda")
"""
PENALTY_OF_ANOTHER = """
import torch
def penalty(critic, mixed, scaler):
    out = critic(mixed)
    g = torch.autograd.grad(scaler.scale(out.sum()), mixed, create_graph=True)[0]
    return (g.flatten(1).norm(dim=1) - 1).square().mean()
def train(critic, opt, loader):
    scaler = torch.amp.GradScaler("cuda")
    for mixed in loader:
        opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = critic(mixed).mean()
        scaler.scale(loss + penalty(critic, mixed, scaler)).backward()
        scaler.step(opt)
        scaler.update()
"""
HALVED = """
import torch
def validate(model, x):
    model.half().eval()
    y = model(x.half())
    model.float().train()
    return y
def train(model, loader):
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for x in loader:
        opt.zero_grad()
        loss = model(x).mean()
        loss.backward()
        opt.step()
        validate(model, x)
"""
PRODUCTS = """
import time
import torch
a = torch.randn(64, 64, device="cuda")
for dtype in (torch.float32, torch.float16):
    x = a.to(dtype)
    begin = time.perf_counter()
    for _ in range(20):
        y = x @ x
    print(time.perf_counter() - begin)
"""
BEGINNINGS = """
import torch
def make():
    return torch.nn.Sequential(torch.nn.Linear(2, 2))
def train(model, dtype, data):
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in data:
        opt.zero_grad()
        with torch.autocast("cuda", dtype=dtype, enabled=dtype != torch.float32):
            loss = model(x).mean()
        loss.backward()
        opt.step()
    return loss.item()
full = make()
low = make()
print(train(full, torch.float32, data), train(low, torch.bfloat16, data))
"""
LOOP = """
import torch
from torch.amp import GradScaler, autocast
scaler = GradScaler("cuda")
for inputs, targets in loader:
    optimizer.zero_grad()
    with autocast("cuda", dtype=torch.float16):
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
ACCUMULATED = """
import torch
scaler = torch.amp.GradScaler("cuda")
for i, (x, y) in enumerate(loader):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(x), y) / accumulate
    scaler.scale(loss).backward()
    if (i + 1) % accumulate == 0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""
LEFT = ACCUMULATED + "if (i + 1) % accumulate != 0:\n    optimizer.step()\n    optimizer.zero_grad()\n"
COUNTED = """
import torch
def epoch(net, loader, adam, scaler):
    pending = 0
    for x in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = net(x).mean() / 8
        scaler.scale(loss).backward()
        pending += 1
        if pending == 8:
            scaler.step(adam)
            scaler.update()
            adam.zero_grad()
            pending = 0
    if pending:
        adam.step()
        adam.zero_grad()
"""
TWO = """
import torch
scaler = torch.amp.GradScaler("cuda")
for x in loader:
    opt_g.zero_grad()
    opt_d.zero_grad()
    scaler.scale(g(x)).backward()
    scaler.scale(d(x)).backward()
    scaler.step(opt_g)
    scaler.step(opt_d)
    scaler.update()
"""
TWO_SCALERS = """
import torch
scaler_d, scaler_g = torch.amp.GradScaler("cuda"), torch.amp.GradScaler("cuda")
for x in loader:
    opt_d.zero_grad()
    scaler_d.scale(d(x)).backward()
    scaler_d.step(opt_d)
    scaler_d.update()
    opt_g.zero_grad()
    scaler_g.scale(g(x)).backward()
    scaler_g.step(opt_g)
    scaler_g.update()
"""
OF_A_FUNCTION = """
import torch
def step(model, optimizer, scaler, x):
    optimizer.zero_grad()
    scaler.scale(model(x)).backward()
    scaler.step(optimizer)
def train(model, loader):
    optimizer, scaler_d = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cuda")
    for x in loader:
        step(model, optimizer, scaler_d, x)
        scaler_d.update()
"""
GAN = """
import torch
opt_g, opt_d = torch.optim.Adam(g.parameters()), torch.optim.Adam(d.parameters())
optimizer_d = torch.optim.Adam(d.parameters())
scaler = torch.amp.GradScaler("cuda")
for x in loader:
    optimizer_d.zero_grad()
    scaler.scale(d(x).mean()).backward()
    scaler.step(optimizer_d)
    optimizer_g.zero_grad()
    scaler.scale(d(g(x)).mean()).backward()
    optimizer_g.step()
    scaler.update()
"""
ACCELERATED = """
import torch
from accelerate import Accelerator
accelerator = Accelerator(mixed_precision="fp16")
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
"""
MANUAL = """
import lightning as L
class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
    def training_step(self, batch, index):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        loss = self.loss(batch)
        self.manual_backward(loss)
        optimizer.step()
L.Trainer(precision="16-mixed").fit(Net())
"""
FUNCTION = """
import torch
class Product(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w
    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, gradient):
        x, w = ctx.saved_tensors
        return gradient @ w.t(), x.t() @ gradient
with torch.autocast("cuda", dtype=torch.bfloat16):
    loss = Product.apply(model(x), w).sum()
loss.backward()
"""
UNMARKED = FUNCTION.replace('    @torch.amp.custom_fwd(device_type="cuda")\n', "").replace(
    '    @torch.amp.custom_bwd(device_type="cuda")\n', "")  # fmt: skip
ON_THE_CPU = """
import torch
model = Net().cuda()
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = criterion(model(x.cuda()), y.cuda())
    loss.backward()
    optimizer.step()
"""
BY_DEFAULT = """
import torch
torch.set_default_dtype(torch.bfloat16)
model = Net()
for x, y in loader:
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
"""
CLIPPED = "        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
FAULTS = {
    "scaler-out-of-order": [
        LOOP.replace("scaler.step(optimizer)", "scaler.step(optimizer)\n    scaler.unscale_(optimizer)"),
        LOOP.replace("scaler.step(optimizer)", "scaler.step(optimizer)\n    scaler.step(optimizer)"),
        LOOP.replace("scaler.step(", "scaler.unscale_(optimizer)\n    log(model)\n    scaler.unscale_(optimizer)\n    "
                     "scaler.step("),
        TWO.replace("scaler.step(opt_g)\n", "scaler.step(opt_g)\n    scaler.update()\n"),
    ],
    "scaler-in-each-micro-step": [
        ACCUMULATED.replace("        scaler.update()\n", "") + "    scaler.update()\n",
        ACCUMULATED.replace("        scaler.unscale_(optimizer)\n", "").replace(
            "    if (i", "    scaler.unscale_(optimizer)\n    if (i"),
        "def train(model, loader, scaler):\n  if fast:\n" + "".join(f"    {line}\n" for line in (
            ACCUMULATED.replace("        scaler.update()\n", "") + "    scaler.update()\n").splitlines()[3:]),
    ],
    "cleared-before-step": [
        LOOP.replace("    optimizer.zero_grad()\n", "").replace("    scaler.step(", "    optimizer.zero_grad()\n    "
                     "scaler.step("),
        "import torch\nfor x in loader:\n    loss = model(x)\n    loss.backward()\n    optimizer.zero_grad()\n    "
        "optimizer.step()\n",
        "import torch\ndef fit(net, sgd, loader):\n  for x in loader:\n    net(x).backward()\n    sgd.zero_grad()\n    "
        "torch.nn.utils.clip_grad_value_(net.parameters(), 1.0)\n    with torch.no_grad():\n      log(net)\n    sgd.step()\n",
        "import torch\nnet = make()\nsgd = torch.optim.SGD(net.parameters(), lr=0.1)\nfor x in loader:\n  net(x).backward()\n  "
        "net.zero_grad()\n  sgd.step()\n",
    ],
    "scaled-loss-unused": [LOOP.replace("scaler.scale(loss).backward()", "scaler.scale(loss)\n    loss.backward()")],
    "accumulation-not-averaged": [ACCUMULATED.replace(" / accumulate", ""),
                                  ACCUMULATED.replace(" / accumulate", "").replace(CLIPPED, ""),
                                  # Divided, but by something else: how many groups there are, a length.
                                  ACCUMULATED.replace("    with", "    size = count // accumulate\n    with", 1).replace("/ accumulate", "/ size"),
                                  ACCUMULATED.replace("    with", "    size = len(x)\n    with", 1).replace("/ accumulate", "/ size")],
    "step-past-the-scaler": [
        GAN, GAN.replace("optimizer_g", "opt_g").replace("optimizer_d", "opt_d"),
        "import torch\ndef fit(net, sgd, head, scaler, x):\n  sgd.zero_grad()\n  head.zero_grad()\n  with torch.autocast('cuda', "
        "dtype=torch.float16):\n    loss = net(x).mean()\n  scaler.scale(loss).backward()\n  scaler.step(sgd)\n  head.step()\n"
        "  scaler.update()\n",
    ],
    "leftover-past-the-scaler": [
        LEFT, COUNTED, COUNTED.replace("if pending:\n        adam", "if pending > 0:\n        adam"),
        COUNTED.replace("    if pending:", "    left = len(loader) % 8\n    if left:"),
        ACCUMULATED + "    elif i + 1 == len(loader):\n        optimizer.step()\n        optimizer.zero_grad()\n",
    ],
    "past-accelerate": [
        ACCELERATED.replace("accelerator.backward(loss)", "loss.backward()"),
        ACCELERATED.replace("accelerator.clip_grad_norm_", "torch.nn.utils.clip_grad_norm_"),
    ],
    "past-lightning": [MANUAL.replace("self.manual_backward(loss)", "loss.backward()")],
    "function-without-custom-fwd": [UNMARKED],
    "autocast-on-another-device": [
        ON_THE_CPU, LOOP.replace('GradScaler("cuda")', 'GradScaler("cpu")'),
        ON_THE_CPU.replace(".cuda()", ".to('cuda')", 1),
        "import torch\ndevice = torch.device('cuda')" + ON_THE_CPU.replace(".cuda()", ".to(device)", 1),
    ],
    "penalty-of-scaled-gradients": [
        PENALTY, PENALTY.replace("scaler.scale(out), mixed", "outputs=scaler.scale(out), inputs=mixed"),
        PENALTY.replace("(g,) =", "g =").replace("g.flatten(1).norm(dim=1)", "torch.norm(g[0], dim=1)"),
        PENALTY_OF_ANOTHER, PENALTY_OF_ANOTHER.replace("scaler.scale(out.sum())", "scaler.scale(out).sum()"),
        PENALTY_OF_ANOTHER.replace("scaler.scale(out.sum())", "[scaler.scale(out.sum())]"),
        PENALTY.replace("(g,) =", "g =").replace("    penalty", "    flat = g[0].reshape(4, -1)\n    penalty").replace("g.flatten(1)", "flat"),
        PENALTY.replace("    penalty = ((g.flatten(1).norm(dim=1) - 1) ** 2).mean()", "    g = g.square()\n    penalty = g.sum()"),
    ],
    "scaled-by-another": [
        TWO_SCALERS.replace("scaler_g.step", "scaler_d.step"),
        TWO_SCALERS.replace("scaler_g.step", "scaler_d.step").replace(
            'scaler_d, scaler_g = torch.amp.GradScaler("cuda"), torch', 'scaler_d = torch.amp.GradScaler("cuda")\nscaler_g = torch'),
    ],
    "scaler-not-updated": [OF_A_FUNCTION.replace("        scaler_d.update()\n", "")],
    "halved-and-back": [
        HALVED, HALVED.replace("half()", "bfloat16()"), HALVED.replace(".half()", ".to(torch.bfloat16)"),
        HALVED.replace(".float()", ".to(torch.float32)"),
        HALVED.replace("model.half().eval()", "model = model.half()").replace("model.float().train()", "model = model.float()"),
        HALVED.replace("    model.half().eval()\n    y = model(x.half())", "    model.eval()\n    y = sample(model.half(), x.half())"),
    ],
    "time-of-launches": [PRODUCTS],
    "other-initial-weights": [BEGINNINGS],
    "16-bits-by-default": [BY_DEFAULT, BY_DEFAULT.replace("bfloat16", "half")],
    "epsilon-below-fp16": [
        "import torch\ndef norm(x):\n    x = x.half()\n    c = x - x.mean(-1, keepdim=True)\n    size = c.abs().mean(-1)\n"
        "    return c / (size + 1e-8)\n",
        "import torch\ndef rms(x):\n    low = x.to(torch.float16)\n    return low / torch.sqrt(low.pow(2).mean(-1) + 1e-12)\n",
    ],
    "broadcast-loss": [
        "import torch\nrows = torch.randn(512, 10)\nprice = rows.sum(1)\nclass Net(torch.nn.Module):\n  def __init__(self):\n"
        "    self.out = torch.nn.Linear(64, 1)\n  def forward(self, x):\n    return self.out(torch.relu(self.hidden(x)))\n"
        "net = Net()\nloss = torch.nn.functional.mse_loss(net(rows), price)\n",
        "import torch\nx = torch.randn(9, 4)\nhead = torch.nn.Linear(4, 1)\nloss = torch.nn.HuberLoss()(head(x), x.mean(dim=-1))\n",
    ],
}  # fmt: skip
SOUND = {
    "scaled-by-another": [
        TWO_SCALERS,
        TWO_SCALERS.replace("    scaler_d.step(opt_d)\n", "").replace("    scaler_g.step", "    scaler_d.step(opt_d)\n    scaler_g.step"),
        TWO_SCALERS.replace("scaler_g.step(opt_g)", "train(scaler_g)\n    scaler_d.step(other)"),
    ],
    "scaler-not-updated": [OF_A_FUNCTION],
    "scaler-out-of-order": [
        LOOP, TWO, LOOP.replace("scaler.step(", "scaler.unscale_(optimizer)\n    scaler.step("),
        GAN.replace("optimizer_g.step()", "scaler.step(optimizer_g)"),
        # A scale that is updated between two whole passes, as each divides by the scale that it multiplied by.
        GAN.replace("optimizer_g.step()", "scaler.step(optimizer_g)").replace(
            "scaler.step(optimizer_d)", "scaler.step(optimizer_d)\n    scaler.update()"),
        LOOP.replace("    scaler.step(optimizer)\n", "    for optimizer in optimizers:\n        scaler.unscale_(optimizer)\n"
                     "    for optimizer in optimizers:\n        scaler.step(optimizer)\n"),
        LOOP.replace("    scaler.step(optimizer)\n", "    if small:\n        scaler.step(optimizer)\n    else:\n        "
                     "scaler.step(optimizer)\n"),
        TWO.replace("    scaler.scale(d(x)).backward()\n", "").replace(
            "scaler.step(opt_g)\n", "scaler.step(opt_g)\n    scaler.update()\n    trainer.backward_d(x)\n"),
    ],
    "scaler-in-each-micro-step": [
        ACCUMULATED,
        # Each micro-step may end in a skipped one, of which update() has to hear.
        LOOP.replace("    scaler.step(optimizer)", "    scaler.unscale_(optimizer)\n    if norm(model) < 10:\n        "
                     "scaler.step(optimizer)"),
        ACCUMULATED + "    if (i + 1) % accumulate == 0:\n        log(scaler)\n",
        GAN.replace("optimizer_g.step()", "if i % 2 == 0:\n        scaler.step(optimizer_g)"),
    ],
    "cleared-before-step": [
        LOOP, ACCUMULATED,
        "import torch\nfor x in loader:\n    g_loss.backward()\n    optimizer_d.zero_grad()\n    d(x).backward()\n    "
        "optimizer_d.step()\n",
        "import torch\nfor x in loader:\n    loss.backward()\n    optimizer.zero_grad()\n    optimizer.step(closure)\n",
        "def pass_back(x):\n    model(x).backward()\nfor x in loader:\n    loss.backward()\n    optimizer.zero_grad()\n    "
        "pass_back(x)\n    optimizer.step()\n",
        "import torch\nfor x in loader:\n    loss.backward()\n    opt.zero_grad()\n    copy_grads(model)\n    opt.step()\n",
        "import torch\nd = make()\ng = make()\ndo = torch.optim.SGD(d.parameters(), lr=0.1)\ngo = torch.optim.SGD(g.parameters(), "
        "lr=0.1)\nfor x in loader:\n  d(g(x)).backward()\n  d.zero_grad()\n  go.step()\n  d(x).backward()\n  do.step()\n",
    ],
    "scaled-loss-unused": [LOOP],
    "accumulation-not-averaged": [
        # The number of micro-steps by another name: a smaller last group, an argument, the smaller one of two.
        *(ACCUMULATED.replace("    with", f"    {line}\n    with", 1).replace("/ accumulate", "/ size") for line in (
            "size = rest if i >= whole else accumulate", "size = accumulate", "size = min(accumulate, left)",
            "size = left or accumulate", "share = accumulate\n    size = share")),
        ACCUMULATED.replace(" / accumulate", "").replace("scaler.scale(loss)", "scaler.scale(part(loss, accumulate))")
        + "def part(loss, size):\n    return loss / size\n",
        ACCUMULATED, ACCUMULATED.replace(" / accumulate", "").replace("backward()\n", "backward()\n    log(x / accumulate)\n"),
        ACCUMULATED.replace(" / accumulate", "").replace("accumulate", "n_critic"),
        ACCUMULATED.replace(" / accumulate", "").replace("model(x), y)", "model(x), y, reduction='sum')"),
    ],
    "step-past-the-scaler": [
        GAN.replace("optimizer_g.step()", "scaler.step(optimizer_g)"),
        GAN.replace("scaler.scale(d(g(x)).mean()).backward()", "d(g(x)).mean().backward()"),
        GAN.replace("optimizer_g.step()", "scaler.unscale_(optimizer_g)\n    optimizer_g.step()"),
        # What is stepped without gradients: a schedule, an environment, whatever its name.
        LOOP.replace("    scaler.update()", "    adopted.step()\n    warmup.step()\n    scaler.update()"),
    ],
    "leftover-past-the-scaler": [
        ACCUMULATED, COUNTED.replace("adam.step()", "scaler.step(adam)\n        scaler.update()"),
        COUNTED.replace("        adam.step()", "        scaler.unscale_(adam)\n        adam.step()"),
        COUNTED.replace("    if pending:", "    if not use_amp and pending:"),
        COUNTED.replace("    if pending:", "    if not scaler.is_enabled():"),
        COUNTED.replace("    if pending:\n", "    if pending:\n        adam.zero_grad()\n        net(x).mean().backward()\n"),
        COUNTED.replace("        adam.step()", "        divide(net, scaler.get_scale())\n        adam.step()"),
        COUNTED.replace("if pending == 8:", "if use_amp:").replace("    if pending:\n        adam", "        else:\n            adam").replace("    adam.zero_grad()\n\"", "\""),
        LEFT.replace("accumulate != 0:", "accumulate != 0 and plain:"),
    ],
    "past-accelerate": [
        ACCELERATED, ACCELERATED.replace("fp16", "bf16").replace("accelerator.backward(loss)", "loss.backward()"),
        ACCELERATED.replace('"fp16"', "args.precision").replace("accelerator.clip_grad", "torch.nn.utils.clip_grad"),
        ACCELERATED.replace("accelerator.clip_grad", "accelerator.unscale_gradients()\n    torch.nn.utils.clip_grad"),
    ],
    "past-lightning": [MANUAL, MANUAL.replace("self.manual_backward(loss)", "loss.backward()").replace("16-mixed", "bf16-mixed")],
    "function-without-custom-fwd": [
        FUNCTION, UNMARKED.replace("gradient):", "gradient):\n        gradient = gradient.float()"),
        UNMARKED.replace('"cuda", dtype', '"cuda", enabled=False, dtype'), UNMARKED.replace("return x @ w", "return x * w"),
    ],
    "autocast-on-another-device": [
        LOOP, ON_THE_CPU.replace('"cpu"', '"cuda"'), ON_THE_CPU.replace('"cpu"', "device.type"),
        ON_THE_CPU.replace("Net().cuda()", "Net()").replace(".cuda()", ""),
        "import torch\ndevice = torch.device('cuda' if torch.cuda.is_available() else 'cpu')"
        + ON_THE_CPU.replace(".cuda()", ".to(device)"),
    ],
    "penalty-of-scaled-gradients": [
        PENALTY.replace("scaler.scale(out)", "out"),
        PENALTY.replace("    penalty", "    g = g / scaler.get_scale()\n    penalty"),
        PENALTY.replace("    penalty", "    mixed.grad = g\n    penalty"),
        PENALTY.replace("((g.flatten(1).norm(dim=1) - 1) ** 2).mean()", "(1.0 / scaler._scale * g).norm()"),
        PENALTY_OF_ANOTHER.replace("scaler.scale(out.sum())", "out.sum()"),
        PENALTY_OF_ANOTHER.replace("    return", "    g = g / scaler.get_scale()\n    return"),
        # The inverse of the scale, and the gradients, come and go by a name of another function.
        PENALTY_OF_ANOTHER.replace("scaler):", "scaler, inverse):").replace("    return", "    g = g * inverse\n    return"),
        PENALTY_OF_ANOTHER.replace("scaler):", "scaler, inverse):").replace("g.flatten(1)", "(g * inverse).flatten(1)"),
        PENALTY_OF_ANOTHER.replace("(g.flatten(1).norm(dim=1) - 1).square().mean()", "g"),
        # Whatever else is called so: a layer that scales its input.
        PENALTY_OF_ANOTHER.replace("scaler.scale", "rescale.scale").replace("mixed, scaler)", "mixed, rescale)"),
    ],
    "halved-and-back": [
        HALVED.replace("    model.half().eval()", "    model = copy.deepcopy(model)\n    model.half().eval()"),
        HALVED.replace(".half().eval()", ".to('cuda').eval()"), HALVED.replace(".half().eval()", ".half().float()"),
        # After the training.
        HALVED.replace("    model.half().eval()\n", "").replace("    model.float().train()\n", "")
        + "model = Net()\ntrain(model, loader)\nmodel.half()\nexport(model)\nmodel.float()\nprint(model(x))\n",
        HALVED.replace("    model.half().eval()", "    model = copy.deepcopy(model)\n    model = model.half()"),
        HALVED.replace("    return y", "    model.load_state_dict(kept)\n    return y"),
        HALVED.replace("    model.half().eval()\n", "    x.half()\n").replace("    model.float().train()\n", "    x.float()\n"),
    ],
    "time-of-launches": [
        PRODUCTS.replace("    print", "    torch.cuda.synchronize()\n    print"),
        PRODUCTS.replace('torch.randn(64, 64, device="cuda")', 'numpy.ones((64, 64))  # not on "cuda"'),
    ],
    "other-initial-weights": [
        BEGINNINGS.replace("low = make()\n", "low = make()\nlow.load_state_dict(full.state_dict())\n"),
        BEGINNINGS.replace("low = make()\n", "torch.manual_seed(0)\nlow = make()\n"),
        BEGINNINGS.replace("torch.bfloat16", "torch.float32"),
    ],
    "16-bits-by-default": [
        BY_DEFAULT.replace("bfloat16", "float32"), BY_DEFAULT.replace("Net()", "Net().float()"),
        BY_DEFAULT.replace("model = Net()\n", "model = Net()\ntorch.set_default_dtype(torch.float32)\n"),
    ],
    "epsilon-below-fp16": [
        "import torch\ndef norm(x):\n    x = x.half()\n    size = x.float().abs().mean(-1)\n    return x / (size + 1e-8)\n",
        "import torch\ndef norm(x, scale):\n    size = x.half().abs() * scale\n    return x / (size + 1e-8)\n",
        "import torch\ndef norm(x):\n    size = x.half().sum(-1, dtype=torch.float32)\n    return x / (size + 1e-8)\n",
    ],
    "broadcast-loss": [
        "import torch\nx = torch.randn(9, 4)\nhead = torch.nn.Linear(4, 1)\nloss = torch.nn.MSELoss()(head(x), x.mean(1, keepdim=True))\n",
        "import torch\nx = torch.randn(9, 4)\nhead = torch.nn.Linear(4, 1)\nloss = torch.nn.MSELoss()(head(x), x.mean(1, keepdim=kept))\n",
    ],
}  # fmt: skip
