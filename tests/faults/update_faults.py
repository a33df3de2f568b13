"""Loops whose rare or small updates 16 bits lose, each with its correction, and healthy loops that look alike."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from tests.faults.published_faults import Open, Published, Train, batches, network, score

UPDATES: dict[str, Published] = {}
HEALTHY: dict[str, Callable[[Open], object]] = {}


def _mistake(rule: str) -> Callable[[Train], Train]:
    def keep(train: Train) -> Train:
        UPDATES[train.__name__] = Published(train, (rule,), True, "")
        return train

    return keep


def _low(broken: bool) -> torch.dtype:
    return torch.bfloat16 if broken else torch.float32


def _descend(optimizer: Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Adapted(nn.Module):
    """A frozen matrix in a format of its own beside a product of two small ones that learn."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.frozen = nn.Parameter((torch.randn(24, 24) / 5).to(dtype), requires_grad=False)
        self.down, self.up = nn.Parameter(torch.randn(4, 24) / 5), nn.Parameter(torch.zeros(24, 4))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.frozen.float()) + F.linear(F.linear(x, self.down), self.up)

    def product(self) -> Tensor:
        return self.up.detach() @ self.down.detach()

    @torch.no_grad()
    def restart(self) -> None:
        self.up.zero_()
        self.down.normal_(0, 0.2)


Merge = Callable[[Adapted], None]


def _adapted(
    opened: Open, dtype: torch.dtype, every: int, steps: int, merge: Merge, *, first: int = 0, before: bool = True
) -> float:
    """`merge` runs in each step of 0, 1 ... that is `first` more than a multiple of `every`, but for step 0, before
    the step is recorded or after; returns the relative distance of the merged weights to the true ones."""
    model = Adapted(dtype)
    truth = model.frozen.detach().float() * (1 + 0.02 * torch.randn(24, 24))
    optimizer = torch.optim.SGD([model.down, model.up], 0.05)
    recorder = opened(model, optimizer)
    for step in range(steps):
        x = torch.randn(32, 24)
        loss = F.mse_loss(model(x), x @ truth.T)
        _descend(optimizer, loss)
        for is_before in (True, False):
            if is_before == before and step and step % every == first:
                with torch.no_grad():
                    merge(model)
                model.restart()
            if is_before:
                recorder.step(loss)
    merged = model.frozen.detach().float() + model.product()
    return float((merged - truth).norm() / truth.norm())


def _added(model: Adapted) -> None:
    model.frozen += model.product().to(model.frozen.dtype)


def _added_to_data(model: Adapted) -> None:
    model.frozen.data += model.product().to(model.frozen.dtype)


def _replaced_data(model: Adapted) -> None:
    model.frozen.data = (model.frozen.data.float() + model.product()).to(model.frozen.dtype)


@_mistake("lost-updates")
def product_merged_every_25_steps(opened: Open, broken: bool) -> float:
    return _adapted(opened, _low(broken), 25, 160, _added, first=24)


@_mistake("lost-updates")
def product_merged_every_30_steps_after_the_record(opened: Open, broken: bool) -> float:
    return _adapted(opened, _low(broken), 30, 160, _added_to_data, first=29, before=False)


@_mistake("lost-updates")
def product_merged_into_new_data_every_45_steps(opened: Open, broken: bool) -> float:
    return _adapted(opened, _low(broken), 45, 190, _replaced_data)


def _merged_by(merge: Callable[[Adapted, Tensor], None]) -> Callable[[Open], None]:
    """A BF16 matrix into which small changes are merged every 20 steps."""

    def loop(opened: Open) -> None:
        _adapted(opened, torch.bfloat16, 20, 130, lambda model: merge(model, model.product()))

    return loop


def _rounded_by_chance(model: Adapted, change: Tensor) -> None:
    wide = model.frozen.float() + change
    ulp = 2.0 ** (wide.abs().log2().floor() - 7)
    model.frozen.copy_(wide + (torch.rand_like(wide) - 0.5) * ulp)


def _rounded_in_bits(model: Adapted, change: Tensor) -> None:
    wide = model.frozen.float() + change
    bits = wide.view(torch.int32) + torch.randint(65536, wide.shape, dtype=torch.int32)
    model.frozen.copy_((bits & -65536).view(torch.float32))


class _Kahan:
    """Adds and keeps what rounding has lost."""

    def __init__(self) -> None:
        self.lost: Tensor | None = None

    def __call__(self, model: Adapted, change: Tensor) -> None:
        term = change.bfloat16() if self.lost is None else change.bfloat16() - self.lost
        total = model.frozen + term
        self.lost = (total - model.frozen) - term
        model.frozen.copy_(total)


class _Master:
    """Adds to an FP32 copy, which is kept, and rounds it for the model."""

    def __init__(self) -> None:
        self.wide: Tensor | None = None

    def __call__(self, model: Adapted, change: Tensor) -> None:
        self.wide = (model.frozen.float() if self.wide is None else self.wide) + change
        model.frozen.copy_(self.wide)


def _nothing(model: Adapted, change: Tensor) -> None:
    model.frozen += (0 * change).bfloat16()


HEALTHY |= {
    "merges_rounded_by_chance": _merged_by(_rounded_by_chance),
    "merges_rounded_by_chance_in_their_bits": _merged_by(_rounded_in_bits),
    "merges_of_zeros": _merged_by(_nothing),
    "merges_that_keep_the_remainder": lambda opened: _merged_by(_Kahan())(opened),
    "merges_into_a_wide_copy": lambda opened: _merged_by(_Master())(opened),
}


Follow = Callable[[Tensor, Tensor], None]


def _averaged(opened: Open, dtype: torch.dtype, follow: Follow) -> float:
    """The loss of an average of the weights that `follow` moves towards them in each step."""
    model = network()
    average = copy.deepcopy(model).requires_grad_(False).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), 4e-3)
    recorder = opened(model, optimizer)
    for x, y in batches(130, 32):
        loss = F.cross_entropy(model(x), y)
        _descend(optimizer, loss)
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                follow(slow, fast.to(dtype))
        recorder.step(loss)
    return score(average.float())


def _with_factor(decay: Tensor) -> Follow:
    return lambda slow, fast: slow.mul_(decay).add_(fast * (1 - decay))  # type: ignore[return-value]


@_mistake("lost-updates")
def average_whose_factor_is_one(opened: Open, broken: bool) -> float:
    return _averaged(opened, _low(broken), _with_factor(torch.tensor(0.9981, dtype=_low(broken))))


@_mistake("lost-updates")
def wide_average_whose_factor_is_one(opened: Open, broken: bool) -> float:
    """The factor is converted in each step."""
    decay = torch.tensor(0.9981)
    return _averaged(opened, torch.float32, lambda slow, fast: slow.lerp_(fast, 1 - decay.to(_low(broken))))


@_mistake("lost-updates")
def average_by_a_number(opened: Open, broken: bool) -> float:
    return _averaged(opened, _low(broken), lambda slow, fast: slow.mul_(0.9995).add_(fast, alpha=1 - 0.9995))


def _inferred(slow: Tensor, fast: Tensor) -> None:
    with torch.inference_mode():
        slow.lerp_(fast, 0.0005)


@_mistake("lost-updates")
def average_in_inference_mode(opened: Open, broken: bool) -> float:
    return _averaged(opened, _low(broken), _inferred)


def _validated(opened: Open) -> None:
    """Predictions of a copy in BF16, made in inference mode in each step; a sum of two of them is kept for a step."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 4e-3)
    recorder = opened(model, optimizer)
    stored, kept = torch.full((64, 24), 30.0, dtype=torch.bfloat16), torch.zeros(64, 6)
    for x, y in batches(130):
        loss = F.cross_entropy(model(x), y)
        _descend(optimizer, loss)
        with torch.inference_mode():
            rounded = copy.deepcopy(model).bfloat16()
            kept = 1e-3 * kept.bfloat16() + rounded(stored + 0.01 * x.bfloat16()) + rounded(x.bfloat16())
        recorder.step(loss)


HEALTHY["predictions_in_inference_mode"] = _validated


def _decayed(opened: Open, weights: torch.dtype, decay: Callable[[Tensor], object], *, before: bool) -> float:
    """The norm of weights that `decay` makes smaller in each step, before the optimizer changes them or after."""
    model = network().to(weights)
    optimizer = torch.optim.SGD(model.parameters(), 0.2)
    recorder = opened(model, optimizer)
    for x, y in batches(130, 32):
        loss = F.cross_entropy(model(x.to(weights)).float(), y)
        optimizer.zero_grad()
        loss.backward()
        for is_before in (True, False):
            if is_before == before:
                with torch.no_grad():
                    for each in model.parameters():
                        decay(each)
            if is_before:
                optimizer.step()
        recorder.step(loss)
    return float(torch.stack([each.detach().float().norm() for each in model.parameters()]).norm())


def _decayed_by(dtype: torch.dtype) -> Callable[[Tensor], object]:
    rate, strength = torch.tensor(0.2, dtype=dtype), torch.tensor(0.0085, dtype=dtype)
    return lambda weight: weight.mul_(1 - rate * strength)


@_mistake("lost-updates")
def decay_whose_factor_is_one(opened: Open, broken: bool) -> float:
    return _decayed(opened, torch.float32, _decayed_by(_low(broken)), before=False)


@_mistake("lost-updates")
def decay_whose_factor_is_one_before_the_step(opened: Open, broken: bool) -> float:
    return _decayed(opened, torch.float32, _decayed_by(_low(broken)), before=True)


def _switched(opened: Open) -> None:
    """An average that follows where a switch of 0 or 1 is on, which it is in the first steps."""
    on = [torch.tensor(1.0, dtype=torch.bfloat16)] * 20 + [torch.tensor(0.0, dtype=torch.bfloat16)] * 200
    place = iter(range(4 * 6 * 200))
    _averaged(opened, torch.bfloat16, lambda slow, fast: slow.mul_(1 - (s := on[next(place) // 6])).add_(fast * s))


def _times_one(opened: Open) -> None:
    """A decay that is switched off, and a factor of gradients that is mostly 1."""
    one = torch.ones((), dtype=torch.bfloat16)
    _decayed(opened, torch.float32, lambda weight: weight.mul_(one), before=False)


def _negligible(opened: Open) -> None:
    """A decay of a millionth in each step, which rounding makes none."""
    rate = torch.tensor(1e-6, dtype=torch.bfloat16)
    _decayed(opened, torch.float32, lambda weight: weight.mul_(1 - rate), before=False)


def _normalised(opened: Open) -> None:
    """Weights that are kept at their norm: a factor that rounding makes 1 is made good in a later step."""
    norms: dict[int, Tensor] = {}

    def keep(weight: Tensor) -> None:
        norm = weight.norm()
        weight.mul_((norms.setdefault(id(weight), norm) / norm).clamp(max=1))

    _decayed(opened, torch.bfloat16, keep, before=False)


HEALTHY |= {
    "average_that_a_switch_stops": _switched,
    "factor_that_is_exactly_one": _times_one,
    "weights_kept_at_their_norm": _normalised,
    "negligible_decay": _negligible,
}


class _Standardised(nn.Module):
    """A normalisation by running statistics in a format of their own, before a network."""

    def __init__(self, dtype: torch.dtype, momentum: float) -> None:
        super().__init__()
        self.norm, self.network = nn.BatchNorm1d(24, momentum=momentum, affine=False).to(dtype), network()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.network(self.norm(x.to(self.norm.running_mean.dtype)).float())
        return out


def _standardised(opened: Open, dtype: torch.dtype, momentum: float, *, converged: bool = False) -> float:
    model = _Standardised(dtype, momentum)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    known = torch.cat([x for x, _ in batches(30, 64)])
    if converged:
        model.norm.running_mean.copy_((1.6 * known + 4).mean(0))
        model.norm.running_var.copy_((1.6 * known).var(0))
    recorder = opened(model, optimizer)
    for x, y in batches(280, 64):
        loss = F.cross_entropy(model(1.6 * x + 4), y)
        _descend(optimizer, loss)
        recorder.step(loss)
    model.eval()
    return score(lambda x: model(1.6 * x + 4))


@_mistake("lost-updates")
def batch_norm_in_bf16(opened: Open, broken: bool) -> float:
    return _standardised(opened, _low(broken), 0.004)


HEALTHY |= {
    "converged_batch_norm_in_bf16": lambda opened: _standardised(opened, torch.bfloat16, 0.004, converged=True),
    "fast_batch_norm_in_bf16": lambda opened: _standardised(opened, torch.bfloat16, 0.1),
}


class _RestSgd(Optimizer):
    """Adds what rounding has lost of the step before, under a name of its own."""

    def __init__(self, parameters: Iterable[Tensor], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                change = -group["lr"] * weight.grad + state.get("rest", torch.zeros_like(weight))
                moved = weight + change
                state["rest"] = change - (moved - weight)
                weight.copy_(moved)


def _remembered(opened: Open) -> None:
    model = network().bfloat16()
    recorder = opened(model, optimizer := _RestSgd(model.parameters(), 0.01))
    for x, y in batches(300):
        loss = F.cross_entropy(model(x.bfloat16()).float(), y)
        _descend(optimizer, loss)
        recorder.step(loss)


HEALTHY["weights_that_remember_what_rounding_lost"] = _remembered

# The loop of a mistake with the fix of its finding, by the words of the fix.
FIXED: dict[str, tuple[str, Callable[[Open], float]]] = {
    "product_merged_every_25_steps": (
        "Keep an FP32 copy of what is merged into",
        lambda opened: _adapted(opened, torch.bfloat16, 25, 160, partial(_merged_into, _Master()), first=24),
    ),
    "average_whose_factor_is_one": (
        "Keep the factor of the average as a number of Python",
        lambda opened: _averaged(opened, torch.float32, lambda slow, fast: slow.lerp_(fast, 1 - 0.9981)),
    ),
    "batch_norm_in_bf16": (
        "Keep the average (a target network, a running statistic) in FP32",
        lambda opened: _standardised(opened, torch.float32, 0.004),
    ),
    "decay_whose_factor_is_one": (
        "Compute the factor of the decay in FP32 or with numbers of Python",
        lambda opened: _decayed(opened, torch.float32, lambda weight: weight.mul_(1 - 0.2 * 0.0085), before=False),
    ),
}


def _merged_into(master: _Master, model: Adapted) -> None:
    master(model, model.product())
