"""Scripts as text: each mistake is found in its line, and what is right is left alone."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path

import pytest

from precgui.cli.main import main
from precgui.lint import LINT_RULES, ScriptError, check
from precgui.lint.check import check_file
from precgui.lint.source import Source
from tests import needs
from tests.lint import averages, fp16_range, kept, positions, refused, trained, trainer_steps, trainers, values
from tests.lint.loops import FAULTS

RIGHT = """
import torch
from torch.amp import GradScaler, autocast
scaler = GradScaler("cuda")
for inputs, targets in loader:
    optimizer.zero_grad()
    with autocast("cuda", dtype=torch.float16):
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""
ELSEWHERE = (
    averages.FAULTS
    | refused.FAULTS
    | trained.FAULTS
    | trainer_steps.FAULTS
    | values.FAULTS
    | trainers.FAULTS
    | kept.FAULTS
    | fp16_range.FAULTS
    | positions.FAULTS
    | FAULTS
)
MISTAKES = {rule: texts[0] for rule, texts in ELSEWHERE.items()} | {
    "scaler-not-used": RIGHT.replace("scaler.scale(loss)", "loss"),
    "clip-before-unscale": RIGHT.replace("    scaler.unscale_(optimizer)\n", ""),
    "clip-after-step": RIGHT.replace("    scaler.step(optimizer)\n", "").replace("    scaler.unscale_", "    scaler.step(optimizer)\n    scaler.unscale_"),  # noqa: E501
    "step-past-the-scaler": RIGHT.replace("scaler.step(optimizer)", "optimizer.step()"),
    "scaler-not-updated": RIGHT.replace("    scaler.update()\n", ""),
    "scheduler-on-skipped-steps": RIGHT + "    scheduler.step()\n",
    "scaler-not-saved": RIGHT + "torch.save({'optimizer': optimizer.state_dict()}, 'state.pt')\n",
    "backward-in-autocast": RIGHT.replace("    scaler.scale(loss)", "        scaler.scale(loss)"),
    "deprecated-amp": RIGHT.replace("from torch.amp", "from torch.cuda.amp"),
    "fp16-by-hand": RIGHT.replace("model(inputs), targets", "model(inputs).half(), targets"),
    "fp16-weights": "import torch\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\nmodel.half()\nfor x in loader:\n    optimizer.zero_grad()\n    "  # noqa: E501
    "model(x).sum().backward()\n"
    "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n    optimizer.step()\n",
    "no-scaler": "import torch\nfor x in loader:\n    optimizer.zero_grad()\n    with torch.autocast('cuda'):\n"
    "        loss = model(x)\n    loss.backward()\n    optimizer.step()\n",
    "scaler-with-bf16": RIGHT.replace("torch.float16", "torch.bfloat16"),
    "mask-beyond-fp16": RIGHT + "scores = scores.masked_fill(mask, -1e9)\n",
    "bce-in-autocast": RIGHT.replace("cross_entropy", "binary_cross_entropy"),
    "tf32-unawares": "model.cuda()\nfor x in loader:\n    optimizer.zero_grad()\n    loss.backward()\n    "
    "optimizer.step()\n",
    "gradients-not-cleared": RIGHT.replace("    optimizer.zero_grad()\n", "").replace("scaler.scale(loss)", "loss")
    .replace("scaler.step(optimizer)", "optimizer.step()"),
    "scale-set-anew": RIGHT.replace("scaler.update()", "scaler.update(2.0**24)"),
    "loss-not-scaled": RIGHT.replace("    scaler.scale(loss)", "    penalty = model.penalty()\n    penalty.backward()\n"
    "    scaler.scale(loss)"),
    "loop-in-autocast": "import torch\nwith torch.autocast('cuda'):\n    for x in loader:\n        "
    "optimizer.zero_grad()\n        model(x).sum().backward()\n        optimizer.step()\n",
    "scaler-anew": RIGHT.replace('scaler = GradScaler("cuda")\nfor', 'def train_one_epoch(model, optimizer, loader):\n  '  # noqa: E501
    'scaler = GradScaler("cuda")\n  for').replace("\n    ", "\n      "),
    "unscaled-twice": RIGHT.replace("    scaler.unscale_(optimizer)\n", "    inverse = 1 / scaler.get_scale()\n    "
    "for p in model.parameters():\n        p.grad.mul_(inverse)\n"),
    "norm-before-unscale": RIGHT.replace("    scaler.unscale_(", "    norms = [p.grad.norm() for p in "
    "model.parameters()]\n    scaler.unscale_("),
    "bf16-weights": "import torch\nmodel = Net().to(torch.bfloat16)\noptimizer = torch.optim.AdamW(model.parameters(), "
    "lr=1e-4)\nfor x in loader:\n    optimizer.zero_grad()\n    model(x).sum().backward()\n    optimizer.step()\n",
    "average-in-16-bits": "import copy, torch\nema = copy.deepcopy(model).bfloat16()\nfor x in loader:\n    train(x)\n"
    "    for average, p in zip(ema.parameters(), model.parameters()):\n        average.lerp_(p, 0.001)\n",
    "layer-replaced": "import torch\nmodel = Net()\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    "model.fc = torch.nn.Linear(8, 2)\n",
    "other-initial-weights": "import torch\nclass Net(torch.nn.Module):\n    pass\nfull = Net()\nlow = Net().half()\n"
    "error = (full(x) - low(x.half()).float()).abs().max()\n",
    "log-of-probability": "import torch\np = torch.softmax(logits, -1)\nentropy = -(p * torch.log(p)).sum()\n",
    "applied-twice": "import torch\nloss = torch.nn.functional.cross_entropy(torch.softmax(logits, -1), y)\n",
    "broadcast-loss": "import torch\nhead = torch.nn.Linear(8, 1)\ny = torch.randn(64)\n"
    "loss = torch.nn.functional.mse_loss(head(x), y)\n",
    "epsilon-below-fp16": "import torch\ny = x.half() / (x.half() + 1e-12)\n",
    "time-of-launches": "import time, torch\nmodel.cuda()\nstart = time.time()\nfor x in range(10):\n    model(x)\n"
    "print(time.time() - start)\n",
    "tf32-in-fp32": "import torch\nnet = torch.nn.Conv2d(3, 8, 3)\ntorch.backends.cuda.matmul.allow_tf32 = False\n",
}  # fmt: skip
SPEED = MISTAKES["time-of-launches"]
HEALTHY_TWINS = {
    "scaler-not-used": [
        RIGHT,
        RIGHT.replace("    scaler.scale(loss).backward()\n", ""),  # scaled in a derived class
        "import torch\nkwargs = {}\nkwargs['scaler'] = torch.amp.GradScaler('cuda')\nstate = State(net, **kwargs)\n",
    ],
    "clip-before-unscale": [
        RIGHT,
        RIGHT.replace("    scaler.unscale_(optimizer)\n", "").replace('GradScaler("cuda")', "GradScaler(enabled=False)")
        .replace("torch.float16", "torch.bfloat16"),
        RIGHT + RIGHT.partition("\n")[2].replace("scaler", "second").replace("optimizer", "other").partition(":\n")[2],
    ],
    "clip-after-step": [
        RIGHT,
        # The step of the pass before, at the beginning of the loop.
        RIGHT.replace("    scaler.step(optimizer)\n", "").replace("    optimizer.zero_grad()", "    scaler.step(optimizer)\n    optimizer.zero_grad()"),  # noqa: E501
        RIGHT + "    other.backward()\n    torch.nn.utils.clip_grad_norm_(others, 1.0)\n    second.step()\n",
    ],
    "step-past-the-scaler": [RIGHT.replace("for inputs", "optimizer.step()\nfor inputs")],
    "gradients-not-cleared": [
        "import torch\nfor t in times:\n    opt = torch.optim.SGD([x], 0.1)\n    model(x).backward()\n    opt.step()\n",
    ],
    "fp16-weights": [
        MISTAKES["fp16-weights"].replace("model.half()", change) for change in (
            "model.half().float()", "model.half()\nmodel.float()", "teacher = copy.deepcopy(model).half()",
            "model.half()\nmaster = [p.float() for p in model.parameters()]",
            "optimizer = FP16_Optimizer(optimizer)\nmodel.half()", "model.half() if args.half else model",
        )
    ] + ["import torch\n" + MISTAKES["fp16-weights"].replace("optimizer = torch.optim.SGD(model.parameters(), 0.1)\n", ""),  # noqa: E501
         MISTAKES["fp16-weights"].replace("model.half()\n", "") + "model.half()\nsave(model)\n",
         "def test(model):\n  model.half()\n" + MISTAKES["fp16-weights"].replace("model.half()\n", "")],
    "no-scaler": [
        MISTAKES["no-scaler"].replace("    optimizer.step()\n", "").replace("    optimizer.zero_grad()\n", ""),
        MISTAKES["no-scaler"].replace("    optimizer.step()\n", "") + "def train():\n    optimizer.step()\n",
        MISTAKES["no-scaler"].replace("loss.backward()", "(loss * 1024).backward()\n    for p in params:\n        "
                                      "p.grad /= 1024"),
        MISTAKES["no-scaler"].replace("'cuda'", "'cuda', enabled=False"),
        MISTAKES["no-scaler"].replace("    with", "    with torch.no_grad(), torch.autocast('cuda'):\n        y = base(x)\n"  # noqa: E501
                                      "    with nothing() or").replace("torch.autocast('cuda'):\n        loss", "x:\n        loss"),  # noqa: E501
        MISTAKES["no-scaler"].replace("loss.backward()", "optimizer.backward(loss)"),
        MISTAKES["no-scaler"].replace("'cuda'", "'cuda', dtype=torch.bfloat16"),
        MISTAKES["no-scaler"].replace("loss.backward()", "loss = loss * scale\n    loss.backward()"),
    ],
    "bce-in-autocast": [
        "import torch\ndef train(model):\n  loss_fn = torch.nn.BCEWithLogitsLoss()\n  with torch.autocast('cuda'):\n    "  # noqa: E501
        "loss = loss_fn(model(x), y)\ndef test(model):\n  loss_fn = torch.nn.BCELoss()\n  return loss_fn(model(x), y)\n",  # noqa: E501
    ],
    "scale-set-anew": [RIGHT, RIGHT.replace("scaler.update()", "scaler.update(scale)"),
                       RIGHT.replace("scaler.update()", "if step == 0:\n        scaler.update(2.0**24)\n    "
                                     "scaler.update()")],
    "loss-not-scaled": [
        RIGHT.replace("    scaler.scale(loss)", "    penalty = scaler.scale(model.penalty())\n    penalty.backward()\n"
                      "    scaler.scale(loss)"),
        RIGHT.replace("    scaler.scale(loss)", "    critic_loss.backward()\n    critic_optimizer.step()\n    "
                      "scaler.scale(loss)"),
        RIGHT.replace("    scaler.scale(loss).backward()", "    if amp:\n        scaler.scale(loss).backward()\n    else:\n"  # noqa: E501
                      "        loss.backward()"),
    ],
    "loop-in-autocast": [
        MISTAKES["loop-in-autocast"].replace("'cuda'", "'cuda', cache_enabled=False").replace(".backward()", ""),
        RIGHT,
    ],
    "scaler-anew": [
        RIGHT,
        MISTAKES["scaler-anew"].replace("  scaler =", "  optimizer = adam(model)\n  scaler ="),
        "def train():\n  model, optimizer = Net(), torch.optim.SGD(p, 0.1)\n"
        + MISTAKES["scaler-anew"].partition(":\n")[2].replace("def ", "#") + "for fold in range(3):\n    train()\n",
    ],
    "unscaled-twice": [
        MISTAKES["unscaled-twice"].replace("scaler.step(optimizer)", "optimizer.step()"),
        RIGHT.replace("scaler.update()", "scaler.update()\n    print(scaler.get_scale())"),
    ],
    "norm-before-unscale": [
        RIGHT.replace("    scaler.step(", "    norms = [p.grad.norm() for p in model.parameters()]\n    scaler.step("),
        RIGHT.replace("    scaler.update(", "    norms = [p.grad.norm() for p in model.parameters()]\n    scaler.update("),  # noqa: E501
    ],
    "bf16-weights": [
        MISTAKES["bf16-weights"].replace("1e-4", "0.01"), MISTAKES["bf16-weights"].replace(".to(torch.bfloat16)", ""),
        MISTAKES["bf16-weights"].replace("torch.optim.AdamW", "StochasticRoundingAdamW"),
        MISTAKES["bf16-weights"].replace("for x", "model = model.float()\nfor x", 1),
    ],
    "average-in-16-bits": [MISTAKES["average-in-16-bits"].replace(".bfloat16()", ""),
                           MISTAKES["average-in-16-bits"].replace(".lerp_(p, 0.001)", ".size()")],
    "layer-replaced": [
        "import torch\nmodel = Net()\nmodel.fc = torch.nn.Linear(8, 2)\noptimizer = torch.optim.SGD(model.parameters(), "  # noqa: E501
        "lr=0.1)\n",
        MISTAKES["layer-replaced"] + "optimizer.add_param_group({'params': model.fc.parameters()})\n",
        MISTAKES["layer-replaced"].replace("model.fc", "other.fc"),
    ],
    "other-initial-weights": [
        MISTAKES["other-initial-weights"].replace("error", "low.load_state_dict(full.state_dict())\nerror"),
        MISTAKES["other-initial-weights"].replace("low = Net()", "low = copy.deepcopy(full)"),
        MISTAKES["other-initial-weights"].replace("Net().half()", "Net()").replace("x.half()", "x"),
        MISTAKES["other-initial-weights"].replace("low = ", "torch.manual_seed(0)\nlow = "),
    ],
    "log-of-probability": [
        MISTAKES["log-of-probability"].replace("log(p)", "log(p + 1e-6)"),
        "import torch\ndef log(x):\n    return x.clamp(min=1e-20).log()\ny = log(torch.softmax(logits, -1))\n",
        "import torch\nlogits = torch.randn(8, 64)\np = logits.softmax(-1)\nentropy = -(p * p.log()).sum(-1)\n",
        "import torch\np = torch.softmax(x, -1)\nlogs = torch.where(p > 0, torch.log(p), 0.0)\n",
        MISTAKES["log-of-probability"].replace("log(p)", "log(p.clamp(min=1e-6))"),
        "import torch\np = torch.log_softmax(logits, -1)\n", "import torch\ny = torch.log(1 - torch.rand(8))\n",
    ],
    "applied-twice": [
        "import torch\np = torch.softmax(x, -1)\nloss = torch.nn.functional.cross_entropy(x, y)\n",
        "import torch\nloss = torch.nn.functional.cross_entropy(torch.log_softmax(x, -1), y)\n",
        "import torch\ndef a():\n    out = torch.softmax(x, -1)\ndef b(out):\n    return "
        "torch.nn.functional.cross_entropy(out, y)\n",
    ],
    "broadcast-loss": [
        MISTAKES["broadcast-loss"].replace("head(x)", "head(x).squeeze(1)"),
        MISTAKES["broadcast-loss"].replace("randn(64)", "randn(64, 1)"),
        MISTAKES["broadcast-loss"].replace("(8, 1)", "(8, 4)"),
    ],
    "epsilon-below-fp16": [
        MISTAKES["epsilon-below-fp16"].replace("1e-12", "1e-4"),
        MISTAKES["epsilon-below-fp16"].replace("(x.half() + ", "(x.half().float() + "),
        RIGHT.replace("    scaler.update()", "    y = x / (x.norm() + 1e-12)\n    scaler.update()"),
    ],
    "time-of-launches": [
        SPEED.replace("print(", "torch.cuda.synchronize()\nprint("), SPEED.replace("model(x)\n", "model(x).item()\n"),
        SPEED.replace("model.cuda()\n", ""),
        "def on_cpu():\n  " + SPEED.replace("\n", "\n  "), SPEED.replace("    model(x)", "    train_one_epoch(x)"),
    ],
    "tf32-in-fp32": [
        MISTAKES["tf32-in-fp32"] + "torch.backends.cudnn.allow_tf32 = False\n",
        MISTAKES["tf32-in-fp32"].replace("torch.back", "if new:\n    torch.back") + "else:\n    torch.backends.cuda.matmul."  # noqa: E501
        "allow_tf32 = True\n",
        MISTAKES["tf32-in-fp32"].replace("False", "True"), MISTAKES["tf32-in-fp32"].replace("Conv2d", "Linear"),
    ],
}  # fmt: skip


def rules(text: str) -> set[str]:
    return {found.rule for found in check(text)}


def test_that_gradients_divided_by_hand_before_clipping_are_one_mistake_and_not_two() -> None:
    assert rules(MISTAKES["unscaled-twice"]) == {"unscaled-twice"}


NORM = """
import torch
def norm_of(model):
    return torch.stack([p.grad.norm() for p in model.parameters()]).norm()
def divide(model, scaler):
    for p in model.parameters():
        p.grad.div_(scaler.get_scale())
def step(model, loss, optimizer, scaler):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    norm = norm_of(model)
    scaler.step(optimizer)
    scaler.update()
    return norm
"""
READING = "    norm = norm_of(model)\n"


def test_that_a_norm_in_a_function_is_named_where_it_reads_scaled_gradients() -> None:
    assert [(each.rule, each.line) for each in check(NORM)] == [("norm-before-unscale", 11)]


@pytest.mark.parametrize(
    "reading",
    [
        "    for p in model.parameters():\n        p.grad.div_(scaler.get_scale())\n" + READING,
        "    inverse = 1 / scaler.get_scale()\n    for p in model.parameters():\n        p.grad = p.grad * inverse\n"
        + READING,
        "    torch._foreach_div_([p.grad for p in model.parameters()], scaler.get_scale())\n" + READING,
        "    divide(model, scaler)\n" + READING,
        "    norm = norm_of(model) / scaler.get_scale()\n",
        READING + "    print(norm / scaler.get_scale())\n",
    ],
)
def test_that_a_norm_is_left_alone_where_it_or_the_gradients_are_divided_by_the_scale(reading: str) -> None:
    assert "norm-before-unscale" not in rules(NORM.replace(READING, reading))


def test_that_a_weight_of_a_loss_is_no_loss_scale() -> None:
    for weighted in ("1e-3 * model(x)", "model(x) * 0.5"):
        text = MISTAKES["no-scaler"].replace("loss = model(x)", f"loss = {weighted}")
        assert [each.rule for each in check(text) if each.rule == "no-scaler"], text


def test_that_a_right_loop_is_left_alone() -> None:
    assert check(RIGHT) == []


@pytest.mark.parametrize("rule", LINT_RULES)
def test_that_each_mistake_is_found(rule: str) -> None:
    found = [each for each in check(MISTAKES[rule]) if each.rule == rule]
    assert found
    assert all(1 <= each.line <= len(MISTAKES[rule].splitlines()) and each.fix for each in found)


@pytest.mark.parametrize("rule", HEALTHY_TWINS)
def test_that_the_healthy_twins_of_a_mistake_are_left_alone(rule: str) -> None:
    for twin in HEALTHY_TWINS[rule]:
        assert [each for each in check(twin) if each.rule == rule] == [], twin


PASSED_ON = RIGHT.replace('scaler = GradScaler("cuda")\n', "def train(loader, model, optimizer, scaler):\n").replace(
    "\nfor ", "\n  for ").replace("\n    ", "\n      ")  # fmt: skip


@pytest.mark.parametrize("change", ["made", "cast after", "with a type"])
def test_that_a_model_is_followed_through_one_expression(change: str) -> None:
    made = {"made": "Net().half()", "cast after": "Net().half().cuda()", "with a type": "Net().to(dtype=torch.float16)"}
    loop = MISTAKES["fp16-weights"].replace("model.half()", f"model = {made[change]}")
    assert "fp16-weights" in rules(loop)
    assert "fp16-weights" not in rules(loop.replace("model = Net", "data = Net"))


MADE_BY_A_FUNCTION = """
import torch
def build():
    net = torch.nn.Linear(4, 4)
    return net.to("cuda", torch.float16)
def main(loader):
    net = build()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for x in loader:
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()
"""


def test_that_a_model_is_followed_into_the_function_that_makes_it() -> None:
    assert [(each.rule, each.line) for each in check(MADE_BY_A_FUNCTION)] == [("fp16-weights", 7)]
    cast_before = MADE_BY_A_FUNCTION.replace(
        '    return net.to("cuda", torch.float16)', "    net.half()\n    return net"
    )
    assert rules(cast_before) == {"fp16-weights"}
    for healthy in (
        MADE_BY_A_FUNCTION.replace("torch.float16", "torch.float32"),
        MADE_BY_A_FUNCTION.replace("net = build()", "net = build().float()"),
        MADE_BY_A_FUNCTION.replace("    return net.to", "    if small:\n        return net\n    return net.to"),
        cast_before.replace("    net.half()", "    if fast:\n        net.half()"),
        cast_before.replace("    net.half()", "    net = build()"),
    ):
        assert "fp16-weights" not in rules(healthy)


MADE_OUTSIDE = """
import torch
model = Net().half()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
def fit(loader):
    for x in loader:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
"""


FROZEN_AFTER = """
import torch
teacher = Net()
first = torch.optim.SGD(teacher.parameters(), 0.1)
for x in loader:
    first.zero_grad()
    teacher(x).mean().backward()
    first.step()
teacher.half().eval()
for x in loader:
    optimizer.zero_grad()
    (student(x) - teacher(x.half()).float()).square().mean().backward()
    optimizer.step()
"""


def test_that_a_model_that_is_cast_after_its_last_step_is_left_alone() -> None:
    assert rules(FROZEN_AFTER) == set()
    again = FROZEN_AFTER.replace("optimizer.step()", "optimizer.step()\n    first.step()")
    assert "fp16-weights" in rules(again)


def test_that_a_model_is_followed_into_the_function_that_trains_it_from_outside() -> None:
    assert [(each.rule, each.line) for each in check(MADE_OUTSIDE)] == [("fp16-weights", 3), ("fp16-weights", 4)]
    low = MADE_OUTSIDE.replace("Net().half()", "M.from_pretrained('gpt2', torch_dtype=torch.bfloat16).to('cuda')")
    assert [(each.rule, each.line) for each in check(low)] == [("bf16-weights", 3)]
    assert rules(low.replace("torch.bfloat16", "'bfloat16'")) == {"bf16-weights"}
    for healthy in (
        MADE_OUTSIDE.replace("def fit(loader)", "def fit(loader, model)"),
        MADE_OUTSIDE.replace("        model(x)", "        other(x)"),
        MADE_OUTSIDE.replace("Net().half()", "Net()") + "fit(loader)\nmodel.half()\nsave(model)\n",
        low.replace("torch.bfloat16", "'auto'"),
        low.replace("torch.bfloat16", "dtype"),
    ):
        assert check(healthy) == [], healthy


def test_that_a_pretrained_model_in_another_format_is_not_said_to_train_in_fp32() -> None:
    text = MISTAKES["tf32-unawares"]
    assert "tf32-unawares" in rules("import torch\nmodel = M.from_pretrained('a')\n" + text)
    for dtype in ("torch.bfloat16", "'float16'", "'auto'", "args.dtype"):
        assert rules(f"import torch\nmodel = M.from_pretrained('a', torch_dtype={dtype})\n{text}") == set()


ATTENTION = """
import torch
from torch import nn
class Attention(nn.Module):
    def forward(self, q, k, mask):
        scores = q @ k.transpose(-2, -1)
        scores = scores * 0.125
        return scores.masked_fill(mask, -1e9).softmax(-1)
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Attention() for _ in range(4)])
model = Block().cuda().half()
"""


def test_that_a_mask_in_a_model_that_is_cast_to_fp16_is_found() -> None:
    assert [(each.rule, each.line) for each in check(ATTENTION)] == [("mask-beyond-fp16", 8)]
    for change in ("model = Block()\nmodel.half()\n", "model = nn.Sequential(Attention(), nn.ReLU()).half()\n",
                   "model = Attention().to(torch.float16)\n"):  # fmt: skip
        assert rules(ATTENTION.replace("model = Block().cuda().half()\n", change)) == {"mask-beyond-fp16"}, change
    called = ATTENTION.replace("scores.masked_fill(mask, -1e9)", "torch.masked_fill(scores, mask, -1e9)")
    assert rules(called) == {"mask-beyond-fp16"}


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        (".half()", ""), (".half()", ".bfloat16()"), (".half()", ".half().float()"), ("-1e9", "-1e4"),
        ("scores * 0.125", "scores.float() * 0.125"), ("scores * 0.125", "scores.to(dtype) * 0.125"),
        ("q @ k.transpose(-2, -1)", "self.places(q)"), ("Attention() for", "Other() for"),
        ("model = ", "with torch.autocast('cuda', dtype=torch.bfloat16):\n    model = "),
    ],
)  # fmt: skip
def test_that_a_mask_is_left_alone_where_its_format_is_not_certain(was: str, becomes: str) -> None:
    assert check(ATTENTION.replace(was, becomes)) == []


REGRESSION = """
import torch
from torch import nn
X = torch.randn(1000, 8)
y = X @ torch.randn(8) + 0.1 * torch.randn(1000)
model = nn.Linear(8, 1)
loss = nn.functional.mse_loss(model(X), y)
"""


def test_that_the_shape_of_a_target_is_followed_through_products_and_sums() -> None:
    assert [(each.rule, each.line) for each in check(REGRESSION)] == [("broadcast-loss", 7)]
    for target in ("torch.mv(X, w) - torch.randn(1)", "2 * X.matmul(w) + 1", "-(X @ w)", "torch.sin(X[:, 0]) / 2"):
        text = REGRESSION.replace("X @ torch.randn(8) + 0.1 * torch.randn(1000)", target)
        assert rules(text.replace("y =", "w = torch.randn(8)\ny =")) == {"broadcast-loss"}, target
    for target in ("X @ torch.randn(8, 1)", "X @ torch.randn(8, 1) + torch.randn(1)", "X @ w", "X @ torch.randn(8) + v",
                   "X.view(9, 9, 8) @ torch.randn(8)", "(X @ torch.randn(8))[:, None]", "torch.randn(1)"):  # fmt: skip
        text = REGRESSION.replace("X @ torch.randn(8) + 0.1 * torch.randn(1000)", target)
        assert check(text) == [], target


BATCHES = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
x, y = torch.randn(1000, 8), torch.randn(1000)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
criterion = nn.MSELoss()
for inputs, target in DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True):
    output = model(inputs)
    loss = criterion(output, target)
"""


def test_that_the_shape_of_a_target_is_followed_through_a_loader() -> None:
    assert [(each.rule, each.line) for each in check(BATCHES)] == [("broadcast-loss", 10)]
    for was, becomes in (
        ("for inputs, target in DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)",
         "data = TensorDataset(x, y)\nloader = DataLoader(data, 32)\nfor i, (inputs, target) in enumerate(loader)"),
        ("    output", "    inputs, target = inputs.cuda(), target.to(device)\n    output"),
        ("criterion(output, target)", "nn.functional.smooth_l1_loss(output, target.float())"),
        ("criterion(output, target)", "nn.functional.l1_loss(model(inputs), target)"),
        ("torch.randn(1000)", "2 * torch.randn(1000) + 1"),
    ):  # fmt: skip
        assert rules(BATCHES.replace(was, becomes)) == {"broadcast-loss"}, becomes


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ("(output, target)", "(output.squeeze(-1), target)"), ("(output, target)", "(output, target.unsqueeze(1))"),
        ("(output, target)", "(output, target[:, None])"), ("(output, target)", "(output, target.view(-1, 1))"),
        ("torch.randn(1000)", "torch.randn(1000, 1)"), ("torch.randn(1000)", "load()"), ("(32, 1)", "(32, 2)"),
        ("batch_size=32", "batch_size=32, collate_fn=columns"), ("batch_size=32", "batch_size=1"),
        ("batch_size=32, ", ""), ("batch_size=32", "batch_size=None"), ("batch_size=32", "**options"),
        ("TensorDataset(x, y)", "Columns(x, y)"), ("TensorDataset(x, y)", "TensorDataset(x, y, weight)"),
        ("TensorDataset(x, y)", "TensorDataset(*tensors)"), ("import DataLoader, T", "import T"),
        ("    output", "    target.unsqueeze_(1)\n    output"), ("criterion =", "y.unsqueeze_(1)\ncriterion ="),
        ("    output", "    if target.dim() == 1:\n        target = target.unsqueeze(1)\n    output"),
        ("    output", "    inputs, target = prepare(inputs, target)\n    output"),
        ("criterion =", "if column:\n    y = y[:, None]\ncriterion ="),
        ("    output = model(inputs)", "    output = model(inputs)\n    output = output.flatten()"),
    ],
)  # fmt: skip
def test_that_a_target_from_a_loader_is_left_alone_where_its_shape_is_right_or_not_certain(
    was: str, becomes: str
) -> None:
    assert was in BATCHES
    assert check(BATCHES.replace(was, becomes)) == []


ENTROPY = """
import torch
def update(model, obs):
    with torch.autocast("cuda", dtype=torch.float16):
        probs, values = model(obs)
    probs = probs.half()
    return -(probs * torch.log(probs + 1e-8)).sum(-1)
"""


def test_that_an_epsilon_is_followed_to_a_value_in_fp16_beside_autocast() -> None:
    assert [(each.rule, each.line) for each in check(ENTROPY)] == [("epsilon-below-fp16", 7)]
    for value in ("probs.clamp(max=0.9)", "probs.mean(-1)", "probs / 2", "probs[:, None].half()"):
        text = ENTROPY.replace("    return", f"    probs = {value}\n    return")
        assert rules(text) == {"epsilon-below-fp16"}, value


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ("probs.half()", "probs"), ("probs.half()", "probs.half().float()"), ("1e-8", "1e-4"),
        ("probs = probs.half()", "if low:\n        probs = probs.half()"),
        ("log(probs", "log(probs.float()"),
        # Autocast computes these in FP32, and this function may be called in a region of it.
        ("log(probs", "log(probs.pow(2)"), ("log(probs", "log(probs**2"), ("log(probs", "log(probs.square().mean(-1)"),
        ("log(probs", "log(probs.sum(-1)"), ("log(probs", "log(1 / probs"), ("log(probs", "log(probs.exp()"),
        ("log(probs", "log(probs * values"),
    ],
)  # fmt: skip
def test_that_an_epsilon_is_left_alone_where_autocast_may_compute_in_fp32(was: str, becomes: str) -> None:
    assert check(ENTROPY.replace(was, becomes)) == []


HELD_EPSILON = """
import torch
BEFORE
class Norm(torch.nn.Module):
    def __init__(self, epsilon=1e-8):
        super().__init__()
        self.eps = HELD
    def forward(self, x):
        x = x.half()
        return x / (x.std(-1) + self.eps)
AFTER
"""


def _held(held: str, before: str = "", after: str = "") -> set[str]:
    return rules(HELD_EPSILON.replace("HELD", held).replace("BEFORE", before).replace("AFTER", after))


@pytest.mark.parametrize(
    ("held", "before"),
    [
        ("1e-8", ""), ("epsilon", ""), ("EPS", "EPS = 1e-8"), ("float(EPS)", "EPS: float = 1e-8"),
        ("config['eps']", "config = {'eps': 1e-8, 'rate': 1e-3}"), ("config['eps']", "config = dict(eps=1e-8)"),
        ("Settings.eps", "class Settings:\n    eps = 1e-8"),
        ("settings.eps", "class Settings:\n    eps: float = 1e-8\nsettings = Settings()"),
        ("config['eps']", "EPS = 1e-8\nconfig = {'eps': EPS}"),
    ],
)  # fmt: skip
def test_that_an_epsilon_is_found_that_a_name_holds(held: str, before: str) -> None:
    assert _held(held, before) == {"epsilon-below-fp16"}


@pytest.mark.parametrize(
    ("held", "before", "after"),
    [
        ("1e-4", "", ""), ("EPS", "EPS = 1e-4", ""), ("EPS", "EPS = 1e-8\nEPS = 1e-4", ""),
        ("EPS", "from settings import EPS", ""), ("epsilon", "", "norm = Norm(1e-4)"),
        ("epsilon", "", "norm = Norm(epsilon=1e-4)"), ("epsilon", "", "norm = Norm(**settings)"),
        ("epsilon", "", "class Wide(Norm):\n    def __init__(self):\n        super().__init__(1e-4)"),
        ("config['eps']", "config = {'eps': 1e-8}\nconfig['eps'] = 1e-4", ""),
        ("config['eps']", "config = {'eps': 1e-8, **others}", ""), ("config['eps']", "config = load()", ""),
        ("settings.eps", "class Settings:\n    eps = 1e-8\nsettings = Settings(1e-4)", ""),
        ("settings.eps", "class Settings:\n    eps = 1e-8\nsettings = Settings()\nsettings.eps = 1e-4", ""),
        ("epsilon or 1e-4", "", ""),
    ],
)  # fmt: skip
def test_that_an_epsilon_is_left_alone_that_may_be_another_one(held: str, before: str, after: str) -> None:
    assert _held(held, before, after) == set()


def test_that_numbers_that_a_name_holds_are_known_to_rules_on_masks_rates_and_positions() -> None:
    mask = (
        "import torch\nNEG = -1e9\nwith torch.autocast('cuda', dtype=torch.float16):\n    y = s.masked_fill(m, NEG)\n"
    )
    assert rules(mask) == {"mask-beyond-fp16"}
    assert rules(mask.replace("-1e9", "-1e4")) == set()
    places = "import torch\nlength = 4096\np = torch.arange(length, dtype=torch.bfloat16)\n"
    assert rules(places) == {"positions-in-16-bits"}
    assert rules(places.replace("4096", "128")) == set()
    adam = MISTAKES["fp16-weights"].replace("SGD(model.parameters(), 0.1)", "Adam(model.parameters(), 0.1, eps=EPS)")
    assert len(check(f"EPS = 1e-8\n{adam}")) == 1 + len(check(f"EPS = 1e-4\n{adam}"))


def test_that_a_mean_of_squares_in_a_region_of_autocast_is_in_fp32_where_a_power_computes_it() -> None:
    region = "import torch\nwith torch.autocast('cuda', dtype=torch.float16):\n"
    text = f"{region}    v = SQUARES\n    y = x * torch.rsqrt(v + 1e-8)\n"
    assert rules(text.replace("SQUARES", "(x * x).mean(-1)")) == {"epsilon-below-fp16"}
    for squares in ("x.pow(2).mean(-1)", "(x**2).mean(-1)", "x.square().mean(-1)", "x.float().var(-1)"):
        assert check(text.replace("SQUARES", squares)) == [], squares


def test_that_a_finding_stands_where_it_is_mended_and_names_the_line_of_its_effect() -> None:
    for rule, line, effect in (("loop-in-autocast", 2, 6), ("bf16-weights", 2, 3), ("average-in-16-bits", 2, 6)):
        [found] = [each for each in check(MISTAKES[rule]) if each.rule == rule]
        assert found.line == line
        assert f"(line {effect})" in found.title


def test_that_a_scaler_that_is_an_argument_is_one() -> None:
    assert check(PASSED_ON) == []
    assert rules(PASSED_ON.replace("      scaler.update()\n", "")) == {"scaler-not-updated"}
    assert rules(PASSED_ON.replace("      scaler.unscale_(optimizer)\n", "")) == {"clip-before-unscale"}
    assert rules(PASSED_ON + "      optimizer.step()\n") == {"step-past-the-scaler"}
    assert rules(RIGHT.replace("    optimizer.zero_grad()\n", "")) == {"gradients-not-cleared"}


def test_that_a_step_in_a_function_is_followed_to_the_loop_that_calls_it() -> None:
    step = "def advance(x):\n    loss = model(x).sum()\n    loss.backward()\n    opt.step()\n"
    assert rules(step + "for x in loader:\n    advance(x)\n") == {"gradients-not-cleared"}
    assert rules(step + "advance(x)\n") == set()
    assert rules(step + "for x in loader:\n    opt.zero_grad()\n    advance(x)\n") == set()


def test_that_the_second_step_is_told_from_the_one_in_place() -> None:
    [second] = check(RIGHT.replace("scaler.step(optimizer)", "scaler.step(optimizer)\n    optimizer.step()"))
    assert "second time" in second.title


@pytest.mark.parametrize(
    "text",
    [
        RIGHT.replace("scaler.unscale_(optimizer)", "if clip:\n        scaler.unscale_(optimizer)"),
        RIGHT.replace('GradScaler("cuda")', 'GradScaler("cuda", enabled=False)').replace("scaler.scale(loss)", "loss")
        .replace("torch.float16", "torch.bfloat16"),
        "scaler = GradScaler('cuda')\ntrain(model, scaler)\n",
        "class A:\n    def __init__(self):\n        self.scaler = GradScaler('cuda')\n    def go(self):\n        "
        "run(self.scaler)\n",
        RIGHT.replace("scaler.step(optimizer)", "if amp:\n        scaler.step(optimizer)\n    else:\n        "
        "optimizer.step()"),
        RIGHT + "    if scaler.get_scale() >= before:\n        scheduler.step()\n",
        RIGHT + "scores = scores.masked_fill(mask, float('-inf'))\n",
        "model.half()\nmodel.eval()\nprint(model(x))\n",
        "import torch\nplaces = torch.arange(128).half()\n",
        "with torch.autocast('cuda'):\n    loss = model(x)\nloss_scaler(loss, optimizer)\nother.backward()\n",
        RIGHT + "if epoch:\n    scheduler.step(score)\n",
    ],
)  # fmt: skip
def test_that_nothing_is_invented(text: str) -> None:
    assert check(text) == []


def test_that_a_context_in_a_variable_is_known() -> None:
    text = (
        "ctx = nullcontext() if cpu else torch.autocast('cuda', dtype=torch.bfloat16)\nwith ctx:\n    loss.backward()\n"
    )
    assert rules(text) == {"backward-in-autocast"}


def test_that_text_that_is_no_python_is_refused() -> None:
    with pytest.raises(ScriptError, match="line 1"):
        check("for for")
    with pytest.raises(ScriptError):
        check("a" + "(" * 5000)


def test_that_the_script_is_never_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import torch.cuda.amp\nopen({str(tmp_path / 'proof')!r}, 'w')\nraise SystemExit(3)\n")
    assert main(["check", str(script)]) == 0
    assert not (tmp_path / "proof").exists()
    script.write_text(MISTAKES["clip-before-unscale"])
    assert main(["check", str(script), "--json"]) == 1
    capsys.readouterr()
    assert main(["check", str(script), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["script"] == str(script)
    assert {"rule", "line", "severity", "title", "fix"} == document["findings"][0].keys()
    assert main(["check", str(tmp_path / "missing.py")]) == 2
    assert "missing.py" in capsys.readouterr().err


def test_that_a_script_that_cannot_be_read_does_not_keep_others_from_being_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing, broken, wrong = tmp_path / "missing.py", tmp_path / "broken.py", tmp_path / "wrong.py"
    broken.write_text("def f(:\n")
    wrong.write_text(MISTAKES["clip-before-unscale"])
    scripts = [str(missing), str(broken), str(wrong)]
    assert main(["check", *scripts]) == 2
    said = capsys.readouterr()
    assert "clip-before-unscale" in said.out
    assert [line.partition(".py")[0].rpartition(os.sep)[2] for line in said.err.splitlines()] == ["missing", "broken"]
    assert main(["check", *scripts, "--json"]) == 2
    rows = {row["script"]: row for row in json.loads(capsys.readouterr().out)["scripts"]}
    assert [each["rule"] for each in rows[str(wrong)]["findings"]] == ["clip-before-unscale"]
    assert "cannot be read" in rows[str(missing)]["error"] and "no Python" in rows[str(broken)]["error"]


@needs.named_pipes
def test_that_pipes_devices_and_large_files_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "endless.py").symlink_to("/dev/zero")
    (tmp_path / "large.py").write_bytes(b"#" * (5 << 20))
    (tmp_path / "deep.py").write_text("-" * 200_000 + "1")
    for name, reason in (("pipe.py", "not a regular file"), ("endless.py", "not a regular file"),
                         ("large.py", "too large to check"), ("deep.py", "no Python that can be parsed")):  # fmt: skip
        assert main(["check", str(tmp_path / name)]) == 2
        sentence = capsys.readouterr().err
        assert reason in sentence and sentence.count("\n") == 1


def test_that_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "marked.py").write_text("x = 1\n", encoding="utf-8-sig")
    assert check_file(tmp_path / "marked.py") == []


def test_that_whole_numbers_beyond_the_exact_ones_are_named_also_by_their_variable() -> None:
    head = "import torch\n"
    for line, named in (
        ("minutes = torch.randint(525600, (128,)).float()\nstored = minutes.bfloat16()\n", True),
        ("places = torch.arange(length)\nplaces = places.to(torch.bfloat16)\n", True),
        ("places = torch.arange(length)\nlow = places.to(torch.bfloat16)\n", True),
        ("noise = torch.randint(0, 1000, (8,))\nlow = noise.half()\n", False),
        ("places = torch.arange(3000, dtype=torch.float16)\n", True),
        ("places = torch.arange(128, dtype=torch.bfloat16)\n", False),
        ("labels = torch.randint(10, (8,)).bfloat16()\n", False),
    ):
        assert ("positions-in-16-bits" in rules(head + line)) is named, line


@pytest.mark.parametrize(
    "text",
    [
        "with torch.autocast('cuda'):\n    x" + ".b()" * 300, "with torch.autocast('cuda'):\n    a" + "[0]" * 900,
        "loss.backward()\nx = a" + ".b" * 2500, "loss.backward()\na" + ".b" * 2500 + "()",
        "o = torch.optim.Adam(m.parameters(), eps=" + "9" * 400 + ")\nm.half()\nloss.backward()\n",
        "for x in y:\n  s.scale(l).backward()\n  s.step(o)\n  s.update(9.0**999)\n  s.update(2**" + "9" * 400 + ")\n",
        "x = '\\d'\n",
        "y = y.squeeze()\nloss = torch.nn.functional.mse_loss(y, y)\n",
        "class A:\n  def __init__(self):\n    self.a = A()\n  def forward(self, x):\n    return self.a(x).squeeze(1)\n"
        "a = A()\nloss = torch.nn.functional.mse_loss(a(x), y)\n",
    ],
)  # fmt: skip
def test_that_deep_and_huge_expressions_are_checked_or_refused_with_a_sentence(text: str) -> None:
    try:
        check("import torch\n" + text)
    except ScriptError as error:  # the parser of Python has its own limits
        assert text.count(".b") > 1000 and "no Python that can be parsed" in str(error)


def test_that_the_work_grows_with_the_length_of_a_script_and_no_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    visits = 0
    walk, end = Source.walk, Source.end

    def counted_walk(self: Source, node: ast.AST) -> list[ast.AST]:
        nonlocal visits
        below = walk(self, node)
        visits += len(below)
        return below

    def counted_end(self: Source, node: ast.AST) -> int:
        nonlocal visits
        visits += 1
        return end(self, node)

    monkeypatch.setattr(Source, "walk", counted_walk)
    monkeypatch.setattr(Source, "end", counted_end)
    extra = "    optimizer.step()\n    extra.backward()\n    p.grad.mul_(1 / scaler.get_scale())\n"
    step = RIGHT.partition(":\n")[2] + extra
    work = []
    for count in (100, 400):
        visits = 0
        check(RIGHT + step * count)
        work.append(visits)
    assert work[1] < 5 * work[0]


def test_that_an_indented_fragment_is_checked_at_its_own_lines() -> None:
    fragment = "    with torch.autocast('cuda', dtype=torch.bfloat16):\n        loss.backward()\n"
    assert [(each.rule, each.line) for each in check(fragment)] == [("backward-in-autocast", 2)]
    with pytest.raises(ScriptError, match="whole file"):
        check("    if a:\n  loss.backward()\n")


def test_that_text_that_is_too_large_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match="too large to check"):
        check("x = 1\n" * 200_000)
    (tmp_path / "large.py").write_text("x = 1\n" * 200_000)
    with pytest.raises(ScriptError, match=r"large\.py is too large to check"):
        check_file(tmp_path / "large.py")


def test_that_functions_that_all_call_one_another_are_followed_once() -> None:
    names = [f"f{each}" for each in range(24)]
    body = "".join(f"    a = a + {name}(a) @ a\n" for name in names)
    functions = "".join(
        f"def {name}(a, d=0.9):\n{body}    e.mul_(d).add_(a, alpha=(1 - d) * (d + d))\n" for name in names
    )
    lists = "".join(f"t{each + 1} = torch.cat([{', '.join([f't{each}'] * 12)}])\n" for each in range(5))
    text = f"import torch\nt0 = torch.zeros(2).half()\n{lists}{functions}"
    text += "optimizer = torch.optim.Adam([t5])\nwith torch.autocast('cuda'):\n    y = torch.inverse(f0(t0, d=t1))\n"
    assert rules(text + "y.backward()\noptimizer.step()\n") >= {"tensor-trained-in-fp16"}
