"""Scripts that keep moments, averages, sums of gradients or master weights in 16 bits, and scripts that do it well."""

# ruff: noqa: E501

from __future__ import annotations

ADAM = """
import torch
class Adam(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                g, s = p.grad, self.state[p]
                if not s:
                    s["m"] = torch.zeros_like(p)
                    s["v"] = torch.zeros_like(p, dtype=torch.float16)
                s["m"].lerp_(g, 1 - b1)
                s["v"].mul_(b2).addcmul_(g, g, value=1 - b2)
                p.addcdiv_(s["m"], s["v"].float().sqrt().add_(group["eps"]), value=-group["lr"])
"""
SQUARES = """
import torch
squares = [torch.zeros_like(p, dtype=torch.bfloat16) for p in net.parameters()]
def step(net, rate):
    with torch.no_grad():
        for v, p in zip(squares, net.parameters()):
            v.mul_(0.99).add_(p.grad.pow(2), alpha=0.01)
            p.sub_(rate * p.grad / (v.float().sqrt() + 1e-8))
"""
SUMS = """
import torch
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
MICRO = 512
sums = [torch.zeros_like(p, dtype=torch.bfloat16) for p in net.parameters()]
for i, (x, y) in enumerate(loader, 1):
    (torch.nn.functional.mse_loss(net(x), y) / MICRO).backward()
    for total, p in zip(sums, net.parameters()):
        total.add_(p.grad)
        p.grad = None
    if i % MICRO == 0:
        for total, p in zip(sums, net.parameters()):
            p.grad = total.float()
            total.zero_()
        optimizer.step()
        optimizer.zero_grad()
"""
LOW_WEIGHTS = """
import torch
net = Net().bfloat16()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for i, (x, y) in enumerate(loader, 1):
    (torch.nn.functional.mse_loss(net(x), y) / 1024).backward()
    if i % 1024 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
MASTERS = """
import torch
net = Net().cuda().half()
masters = [p.detach().clone().requires_grad_() for p in net.parameters()]
optimizer = torch.optim.SGD(masters, lr=0.05)
for x, y in loader:
    loss = torch.nn.functional.cross_entropy(net(x).float(), y)
    net.zero_grad()
    (loss * 1024).backward()
    for m, p in zip(masters, net.parameters()):
        m.grad = p.grad / 1024
    optimizer.step()
    with torch.no_grad():
        for m, p in zip(masters, net.parameters()):
            p.copy_(m)
"""
METER = """
import torch
class Norm(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("mean", torch.zeros(width, dtype=torch.bfloat16))
    def forward(self, x):
        if self.training:
            self.mean.mul_(0.99).add_(x.detach().mean(0), alpha=0.01)
        return x - self.mean
"""

REBUILT = MASTERS.replace(".clone()", ".clone().float()").replace(
    "m.grad = p.grad / 1024", "m.data.copy_(p.data)\n        m.grad = p.grad.float() / 1024"
)
SEGMENTS = """
import torch
def pool(features, last):
    total = features.half().cumsum(0)
    total = total[last]
    return torch.cat([total[:1], total[1:] - total[:-1]]).float()
"""

CHECKPOINT = """
import torch
net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for epoch in range(9):
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    torch.save({"net": {k: v.half() for k, v in net.state_dict().items()}, "optimizer": optimizer.state_dict()}, path)
"""
STORED = "{k: v.half() for k, v in net.state_dict().items()}"
RESUMED = CHECKPOINT.replace(', "optimizer": optimizer.state_dict()', "").replace(
    "for epoch", 'if resume:\n    net.load_state_dict(torch.load(path)["net"])\nfor epoch'
)
LOW_STATE = """
def low(tree):
    if isinstance(tree, torch.Tensor) and tree.is_floating_point():
        return tree.to(torch.bfloat16)
    return {k: low(v) for k, v in tree.items()} if isinstance(tree, dict) else tree
net ="""
STATISTICS = """
import torch
total = torch.zeros(8, dtype=torch.float16)
for x in loader:
    total += (x ** 2).sum(0)
"""
OWN_STATISTICS = """
import torch
class Scale(torch.nn.Module):
    def __init__(self):
        self.register_buffer("squares", torch.zeros(8, dtype=torch.bfloat16))
    def forward(self, x):
        self.squares += x.pow(2).sum(0)
"""
FAULTS: dict[str, list[str]] = {
    "checkpoint-in-16-bits": [
        CHECKPOINT, CHECKPOINT.replace("v.half()", "v.to(torch.bfloat16).cpu()"), CHECKPOINT.replace("v.half()", "v.half() if v.is_floating_point() else v"), RESUMED,
        CHECKPOINT.replace("\nnet =", LOW_STATE).replace(STORED, "low(net.state_dict())"), CHECKPOINT.replace("\nnet =", LOW_STATE).replace(STORED, "net.state_dict()").replace("optimizer.state_dict()", "low(optimizer.state_dict())"),
        CHECKPOINT.replace("    torch.save", "    state = net.state_dict()\n    for k, v in state.items():\n        state[k] = v.half()\n    torch.save").replace(STORED, "state"),
        CHECKPOINT.replace(STORED, "copy.deepcopy(net).half()"), CHECKPOINT.replace(STORED, "copy.deepcopy(net).half().state_dict()"), CHECKPOINT.replace(STORED, "tree_map(lambda t: t.bfloat16(), net.state_dict())"),
        CHECKPOINT.replace("    torch.save(", "    if epoch % 2:\n        torch.save("), CHECKPOINT.replace("import torch", "import torch  # github.com/lab/net/blob/master/README.md"),
    ],
    "squares-added-up-in-16-bits": [
        STATISTICS, STATISTICS.replace("total += (x ** 2).sum(0)", "total.add_(x.square().sum(dim=0))"), STATISTICS.replace("(x ** 2)", "x.abs()"), OWN_STATISTICS, OWN_STATISTICS.replace("bfloat16", "float16"),
        STATISTICS.replace("(x ** 2).sum(0)", "squares.half()").replace("    total +=", "    squares = torch.sum(x * x, 0)\n    total +="),
    ],
    "moments-in-16-bits": [
        ADAM, SQUARES, ADAM.replace("float16", "bfloat16"), ADAM.replace("addcmul_(g, g, value=1 - b2)", "add_(g.square(), alpha=1 - b2)"),
        ADAM.replace("addcmul_(g, g, value=1 - b2)", "add_((g * g).half(), alpha=1 - b2)"), ADAM.replace('s["v"].mul_(b2).addcmul_(g, g, value=1 - b2)', 's["v"].lerp_((g ** 2).to(s["v"].dtype), 1 - b2)'),
        ADAM.replace('s["v"].mul_(b2)', 'v = s["v"]\n                v.mul_(b2)'), ADAM.replace('s["v"] = torch.zeros_like(p, dtype=torch.float16)', 's["v"] = torch.zeros_like(p).half()'),
        ADAM.replace('                    s["m"] = torch.zeros_like(p)\n                    s["v"] = torch.zeros_like(p, dtype=torch.float16)', '                    s.update({"m": torch.zeros_like(p), "v": torch.zeros_like(p, dtype=torch.float16)})'),
        ADAM.replace('s["v"].mul_(b2).addcmul_(g, g, value=1 - b2)', 's["v"].copy_(b2 * s["v"].float() + (1 - b2) * g.float() ** 2)'),
        SQUARES.replace("v.mul_(0.99).add_(p.grad.pow(2), alpha=0.01)", "v.mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)"),
        SQUARES.replace("        for v, p", "        grads = [p.grad for p in net.parameters()]\n        torch._foreach_mul_(squares, 0.99)\n        torch._foreach_addcmul_(squares, grads, grads, 0.01)\n        for v, p").replace("            v.mul_(0.99).add_(p.grad.pow(2), alpha=0.01)\n", ""),
    ],
    "average-in-16-bits": [
        METER, METER.replace("bfloat16", "float16").replace("0.99", "0.999").replace("0.01", "0.001"), METER.replace("mul_(0.99).add_(x.detach().mean(0), alpha=0.01)", "lerp_(x.detach().mean(0), 0.01)"),
        METER.replace("add_(x.detach().mean(0), alpha=0.01)", "add_(0.01 * x.detach().mean(0))"), METER.replace('self.register_buffer("mean", torch.zeros(width, dtype=torch.bfloat16))', "self.mean = torch.zeros(width).bfloat16()"),
        "import torch\nloss_mean = torch.zeros((), dtype=torch.bfloat16)\nfor x in loader:\n    loss_mean.mul_(0.995).add_(train(x), alpha=1 - 0.995)\n",
        "import torch\nema = [p.detach().half() for p in net.parameters()]\nfor x in loader:\n    train(x)\n    for a, p in zip(ema, net.parameters()):\n        a.lerp_(p, 0.001)\n",
    ],
    "gradient-sums-in-16-bits": [
        SUMS, SUMS.replace("total.add_(p.grad)", "total += p.grad"), SUMS.replace("bfloat16", "float16").replace("512", "4096"),
        SUMS.replace("total.add_(p.grad)", "total.add_(p.grad.to(torch.bfloat16))"), SUMS.replace("torch.zeros_like(p, dtype=torch.bfloat16)", "torch.zeros_like(p).bfloat16()"),
        LOW_WEIGHTS, SUMS.replace("    for total, p in zip(sums, net.parameters()):\n        total.add_(p.grad)\n        p.grad = None\n", "    torch._foreach_add_(sums, [p.grad for p in net.parameters()])\n    net.zero_grad()\n"),
    ],
    "cumulative-sum-in-16-bits": [
        SEGMENTS, SEGMENTS.replace("half()", "bfloat16()"), SEGMENTS.replace("features.half().cumsum(0)", "torch.cumsum(features.to(torch.float16), dim=0)"), SEGMENTS.replace("features.half().cumsum(0)", "features.cumsum(0, dtype=torch.bfloat16)"),
        SEGMENTS.replace("total[1:] - total[:-1]", "torch.diff(total, dim=0)").replace("torch.diff(total, dim=0)", "torch.sub(total[1:], total[:-1])"), SEGMENTS.replace("features.half()", "low").replace("    total = low", "    low = features.half()\n    total = low"),
        SEGMENTS.replace("total[1:] - total[:-1]", "total[ends].float() - total[starts].float()"),
    ],
    "masters-in-16-bits": [
        REBUILT, REBUILT.replace("m.data.copy_(p.data)", "m.detach().copy_(p)").replace("m.detach()", "m.data"), REBUILT.replace(".cuda().half()", ".bfloat16()"),
        MASTERS, MASTERS.replace(".cuda().half()", ".bfloat16()"), MASTERS.replace("p.detach().clone().requires_grad_()", "torch.nn.Parameter(p.detach().clone())"),
        MASTERS.replace("p.detach().clone().requires_grad_()", "p.data.clone().detach().requires_grad_(True)"), MASTERS.replace("SGD(masters,", "Adam(params=masters, eps=1e-4,"),
        MASTERS.replace("net = Net().cuda().half()", "net = Net()\nnet.cuda()\nnet.half()"), MASTERS.replace("p.detach().clone()", "torch.clone(p).detach().cuda()").replace("net.parameters()]", "list(net.parameters())]"),
        MASTERS.replace(".detach().clone()", "").replace("p.requires_grad_()", "copy.deepcopy(p)").replace("import torch", "import copy, torch"),
    ],
}  # fmt: skip
SOUND: dict[str, list[str]] = {
    "checkpoint-in-16-bits": [
        CHECKPOINT.replace("v.half()", "v.cpu()"), CHECKPOINT.replace("v.half()", "v.float()"), CHECKPOINT.replace(STORED, STORED + ', "full": net.state_dict()'), CHECKPOINT.replace(', "optimizer": optimizer.state_dict()', ""),
        CHECKPOINT.replace("Net()", "Net().half()"), CHECKPOINT.replace("v.half()", 'v.half() if "text" in k else v'), CHECKPOINT.replace("v.half()", "v.to(save_dtype)"), CHECKPOINT.replace("\nnet", "\nmaster_params = []\nnet"),
        RESUMED.replace("torch.load(path)", "torch.load(start)"), CHECKPOINT.replace("net = Net()", 'net = Net.from_pretrained("x", torch_dtype=torch.float16)'), CHECKPOINT.replace(STORED, "net.state_dict()"),
        RESUMED.replace('if resume:\n    net.load_state_dict(torch.load(path)["net"])\n', "") + 'net.load_state_dict(torch.load(path)["net"])\ntest(net)\n',
        CHECKPOINT.replace(STORED, "copy.deepcopy(net).half().float()"), CHECKPOINT.replace("import torch", "import deepspeed, torch"),
        CHECKPOINT.replace("    torch.save", "    torch.save(" + STORED + ", small)\n    torch.save").replace('"net": ' + STORED, '"net": net.state_dict()'),
    ],
    "squares-added-up-in-16-bits": [
        STATISTICS.replace("float16", "float32"), STATISTICS.replace(", dtype=torch.float16", "").replace("x **", "x.half().float() **"), STATISTICS.replace("(x ** 2)", "x"), OWN_STATISTICS.replace("bfloat16", "float64"),
        STATISTICS.replace("total = torch.zeros(8, dtype=torch.float16)\nfor x in loader:", "for x in loader:\n    total = torch.zeros(8, dtype=torch.float16)"), OWN_STATISTICS.replace("self.squares += x", "squares = x"),
        "import torch\ntotal = torch.zeros(8, dtype=torch.float16)\ntotal += (x ** 2).sum(0)\n",
    ],
    "moments-in-16-bits": [
        ADAM.replace("dtype=torch.float16", "dtype=torch.float32"), ADAM.replace(', dtype=torch.float16', ""), ADAM.replace('s["m"] = torch.zeros_like(p)', 's["m"] = torch.zeros_like(p, dtype=torch.bfloat16)').replace("p, dtype=torch.float16", "p"),
        ADAM.replace("dtype=torch.float16", "dtype=self.state_format"), ADAM.replace('import torch\n', 'import torch\nfrom rounding import add_stochastic_\n'),
        ADAM.replace('s["v"].mul_(b2).addcmul_(g, g, value=1 - b2)', 's["v"] = b2 * s["v"] + (1 - b2) * g ** 2'), ADAM.replace('s["v"].mul_(b2).addcmul_(g, g, value=1 - b2)', 's["v"].copy_(s["m"])'),
        "import torch\nclass Lion(torch.optim.Optimizer):\n    def start(self, s, p):\n        s['m'] = torch.zeros_like(p, dtype=torch.bfloat16)\n    def step(self, s, g):\n        s['m'].mul_(0.9).add_(g, alpha=0.1)\n",
        SQUARES.replace("0.99", "0.95").replace("0.01", "0.05"), SQUARES.replace("v.mul_(0.99).add_(p.grad.pow(2), alpha=0.01)", "v.mul_(0.9).addcmul_(p.grad, p.grad, value=0.1)"),
        SQUARES.replace("v.mul_(0.99).add_(p.grad.pow(2), alpha=0.01)", "w = v.float().mul_(0.99).add_(p.grad.pow(2), alpha=0.01)"), SQUARES.replace("dtype=torch.bfloat16", "dtype=torch.float32").replace("import torch\n", "import torch\nx = x.half()\n"),
    ],
    "average-in-16-bits": [
        # The noise of gradients moves their average by more than its size.
        "import torch\nstate = {'m': torch.zeros_like(p, dtype=torch.bfloat16)}\nfor x in loader:\n    state['m'].mul_(0.99).add_(p.grad, alpha=0.01)\n",
        METER.replace("bfloat16", "float32"), METER.replace("0.99", "0.9").replace("0.01", "0.1"), METER.replace("0.99", "self.decay").replace("alpha=0.01", "alpha=1 - self.decay"),
        METER.replace(", dtype=torch.bfloat16", ""), METER.replace("bfloat16", "float16"), METER.replace("mul_(0.99).add_(x.detach().mean(0), alpha=0.01)", "copy_(x.detach().mean(0))"),
        METER.replace("mul_(0.99).add_(x.detach().mean(0), alpha=0.01)", "add_(x.detach().mean(0), alpha=0.01)"),
    ],
    "gradient-sums-in-16-bits": [
        SUMS.replace("dtype=torch.bfloat16", "dtype=torch.float32"), SUMS.replace("512", "8"), SUMS.replace("MICRO = 512", "MICRO = int(args.micro)"), SUMS.replace("bfloat16", "float16"),
        SUMS.replace("total.add_(p.grad)", "total.copy_(p.grad)"), SUMS.replace("total.add_(p.grad)", "total.mul_(0.9).add_(p.grad)"), LOW_WEIGHTS.replace("1024", "64"), LOW_WEIGHTS.replace(".bfloat16()", ""),
        SUMS.replace("for i, (x, y) in enumerate(loader, 1):", "for epoch in range(1000):").replace("    if i % MICRO == 0:\n", "    if True:\n"),
    ],
    "cumulative-sum-in-16-bits": [
        SEGMENTS.replace("half()", "float()"), SEGMENTS.replace("cumsum(0)", "cumsum(0, dtype=torch.float32)"), SEGMENTS.replace("total[1:] - total[:-1]", "total[1:]"), SEGMENTS.replace("half()", "to(dtype)"), SEGMENTS.replace("half()", "double()"),
        SEGMENTS.replace("features.half().cumsum(0)", "features.cumsum(0)").replace("features.cumsum", "features.float().cumsum"), SEGMENTS.replace("total[1:] - total[:-1]", "total[1:] - other[:-1]"), SEGMENTS.replace("total[1:] - total[:-1]", "total - total.mean()"),
        SEGMENTS.replace("    total = features", "    with torch.autocast('cuda', torch.float16):\n        total = features"),
    ],
    "masters-in-16-bits": [
        REBUILT.replace("p.data", "start"), REBUILT.replace(".cuda().half()", ""), REBUILT.replace("        m.data.copy_", "        if resumed:\n            m.data.copy_"), REBUILT.replace("        m.data.copy_(p.data)\n", "").replace("for x, y", "for m, p in zip(masters, net.parameters()):\n    m.data.copy_(p.data)\nfor x, y"),
        REBUILT.replace("m.data.copy_(p.data)", "p.data.copy_(m.data)"), MASTERS.replace(".clone()", ".clone().float()"), MASTERS.replace("p.detach().clone()", "p.detach().float()"), MASTERS.replace(".half()", ""), MASTERS.replace("optimizer = torch.optim.SGD(masters, lr=0.05)", "optimizer = torch.optim.SGD(net.parameters(), lr=0.05)"),
        MASTERS.replace("net = Net().cuda().half()", "net = Net().cuda()").replace("optimizer = ", "net.half()\noptimizer = "), MASTERS.replace("optimizer = ", "for m in masters:\n    m.data = m.data.float()\noptimizer = "),
        MASTERS.replace("optimizer = ", "masters = [m.float() for m in masters]\noptimizer = "), MASTERS.replace("p.detach().clone()", "p.detach().to(torch.float32)"), MASTERS.replace("p.detach().clone()", "torch.tensor(p.tolist())"),
    ],
}  # fmt: skip
