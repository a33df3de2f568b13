"""Modules, an optimizer and a scale whose numbers are beyond 16 bits, each with its correction: see `Published`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.faults.numeric_faults import CLASSES, HALF, WIDTH, fit, half, keeper
from tests.faults.published_faults import Open, Published, batches, network, score

MODULES: dict[str, Published] = {}
_mistake = keeper(MODULES)


class UnitRows(nn.Module):
    """Rows divided by their norm with an epsilon that FP16 does not have."""

    def __init__(self, low: bool) -> None:
        super().__init__()
        self.low = low

    def forward(self, x: Tensor) -> Tensor:
        x = x.half() if self.low else x.float()
        return x / ((x * x).sum(-1, keepdim=True).sqrt() + 1e-12)


@_mistake("undefined-operation forward-overflow hidden-overflow", True, "an epsilon that is 0 in FP16")
def normalize_eps_half(opened: Open, broken: bool) -> float:
    model = nn.Sequential(nn.Linear(WIDTH, 48), nn.ReLU(), UnitRows(broken), nn.Linear(48, CLASSES))
    with torch.no_grad():
        model[0].weight.mul_(0.5)
        model[0].bias.fill_(-1.0)

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        with half(True):
            logits = model(x)
        return F.cross_entropy(5 * logits.float(), y)

    fit(opened, model, loss_of)
    with half(True):
        return score(lambda x: 5 * model(x))


class Spread(nn.Module):
    """Divides by a standard deviation, as E[x^2] - E[x]^2 or as E[(x - E[x])^2]."""

    def __init__(self, by_difference: bool) -> None:
        super().__init__()
        self.by_difference = by_difference

    def forward(self, x: Tensor) -> Tensor:
        x = x + 8
        mean = x.mean(-1, keepdim=True)
        if self.by_difference:
            return (x - mean) / ((x * x).mean(-1, keepdim=True) - mean * mean + 1e-5).sqrt()
        return (x - mean) / (x.float().var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt().to(x.dtype)


@_mistake("undefined-operation", True, "variance by a difference of squares in BF16")
def var_ex2_half(opened: Open, broken: bool) -> float:
    model = nn.Sequential(nn.Linear(WIDTH, 48), Spread(broken), nn.Linear(48, 48), nn.GELU(), nn.Linear(48, CLASSES))
    with torch.no_grad():
        model[0].weight.mul_(0.05)

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        with half(True, torch.bfloat16):
            logits = model(x)
        return F.cross_entropy(logits.float(), y)

    fit(opened, model, loss_of, scale=None)
    with half(True, torch.bfloat16):
        return score(model)


class LeanAdam(torch.optim.Optimizer):
    """Adam whose moments are kept in `dtype`."""

    def __init__(self, parameters: Any, lr: float, dtype: torch.dtype) -> None:
        super().__init__(parameters, {"lr": lr, "eps": 1e-8})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for weight in self.param_groups[0]["params"]:
            state = self.state[weight]
            if not state:
                state["step"] = 0
                state["m"], state["v"] = (torch.zeros_like(weight, dtype=self.dtype) for _ in range(2))
            state["step"] += 1
            state["m"].copy_(state["m"].float().lerp(weight.grad, 0.1))
            state["v"].copy_(state["v"].float().lerp(weight.grad**2, 0.001))
            mean = state["m"].float() / (1 - 0.9 ** state["step"])
            root = (state["v"].float() / (1 - 0.999 ** state["step"])).sqrt()
            weight.sub_(self.param_groups[0]["lr"] * mean / (root + self.defaults["eps"]))


@_mistake("moments-underflow divergence", True, "second moments of Adam in FP16 that are zero")
def own_adam_state_half(opened: Open, broken: bool) -> float:
    model = network()
    optimizer = LeanAdam(model.parameters(), 1e-3, HALF if broken else torch.float32)
    fit(opened, model, lambda x, y: F.cross_entropy(model(x), y), scale=None, optimizer=optimizer)
    return score(model)


def _with_a_fixed_scale(opened: Open, scale: float) -> float:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    recorder = opened(model, optimizer)
    for x, y in batches(120):
        optimizer.zero_grad()
        with half(True):
            logits = model(x)
        loss = F.cross_entropy(logits.float(), y)
        (loss * scale).backward()
        for each in model.parameters():
            each.grad.div_(scale)
        if all(bool(each.grad.isfinite().all()) for each in model.parameters()):
            optimizer.step()
        recorder.step(loss)
    return score(model)


@_mistake("scale-too-high", True, "a fixed scale beyond what FP16 takes, and a loop that skips")
def manual_scale_too_high(opened: Open, broken: bool) -> float:
    return _with_a_fixed_scale(opened, 2.0**26 if broken else 2.0**10)


@_mistake("scale-too-high", True, "a fixed scale that FP16 takes in few steps, and a loop that skips the others")
def manual_scale_that_few_steps_take(opened: Open, broken: bool) -> float:
    return _with_a_fixed_scale(opened, 2.0**20 if broken else 2.0**10)


class OwnLinear(nn.Module):
    """A linear layer of one's own that divides by the spread of its weights in the format of `dtype`."""

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.v, self.dtype = nn.Parameter(90 * torch.randn(outputs, inputs)), dtype

    def forward(self, x: Tensor) -> Tensor:
        v = self.v.to(self.dtype)
        square = (v * v).sum(1, keepdim=True)  # beyond 65504
        weight = v * (square / (square * square)).sqrt()  # Inf / Inf
        return F.linear(x, weight.to(x.dtype))


@_mistake("undefined-operation forward-overflow", True, "weight norm in FP16 inside the first module")
def weight_norm_half(opened: Open, broken: bool) -> float:
    model = nn.Sequential(OwnLinear(WIDTH, 48, HALF if broken else torch.float32), nn.GELU(), nn.Linear(48, CLASSES))

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        with half(True):
            logits = model(x)
        return F.cross_entropy(logits.float(), y)

    fit(opened, model, loss_of)
    return score(model)
