"""Casts to FP8 that make Inf or NaN of finite numbers; and FP8 done right, or never asked for what it cannot hold."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.faults.class_faults import _fault as fault
from tests.faults.class_faults import _healthy as healthy
from tests.faults.published_faults import Open

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
NANS = torch.float8_e4m3fnuz  # in every release of torch, where e4m3fn saturates in some


def _most(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).max)


def _through(x: Tensor, scale: Tensor | float, dtype: torch.dtype, *, clamp: bool) -> Tensor:
    scaled = x * scale
    if clamp:
        scaled = scaled.clamp(-_most(dtype), _most(dtype))
    return x + (scaled.to(dtype).float() / scale - x).detach()


class _Rounded(nn.Linear):
    """A linear layer with operands in FP8, whose scale `scale_of` gives."""

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype, *, clamp: bool) -> None:
        super().__init__(inputs, outputs)
        self.dtype, self.clamp = dtype, clamp

    def scale_of(self, x: Tensor) -> Tensor | float:
        return _most(self.dtype) / x.abs().max().clamp(min=1e-12)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = self.scale_of(x.detach())
            own = _most(self.dtype) / self.weight.abs().max()
        weight = _through(self.weight, own, self.dtype, clamp=self.clamp)
        return F.linear(_through(x, scale, self.dtype, clamp=self.clamp), weight, self.bias)


class _Delayed(_Rounded):
    """The scale is that of the pass before, in a buffer."""

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype, *, clamp: bool) -> None:
        super().__init__(inputs, outputs, dtype, clamp=clamp)
        self.register_buffer("peak", torch.tensor(0.0))

    def scale_of(self, x: Tensor) -> Tensor | float:
        kept, peak = self.get_buffer("peak"), x.abs().max()
        scale = _most(self.dtype) / torch.where(kept > 0, kept, peak)
        kept.copy_(peak)
        return scale


class _History(_Rounded):
    """The scale is that of the largest of some passes before, without a margin, in plain numbers."""

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype, *, clamp: bool, margin: float = 1.0) -> None:
        super().__init__(inputs, outputs, dtype, clamp=clamp)
        self.peaks, self.margin = deque[float]([], 16), margin

    def scale_of(self, x: Tensor) -> Tensor | float:
        peak = float(x.abs().max())
        before = max(self.peaks, default=peak)
        self.peaks.append(peak)
        return _most(self.dtype) / self.margin / max(before, 1e-12)


class _First(_Rounded):
    """The scale is that of the first pass."""

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype, *, clamp: bool, margin: float = 1.0) -> None:
        super().__init__(inputs, outputs, dtype, clamp=clamp)
        self.known, self.margin = 0.0, margin

    def scale_of(self, x: Tensor) -> Tensor | float:
        self.known = self.known or _most(self.dtype) / self.margin / float(x.abs().max())
        return self.known


class _GradientCast(torch.autograd.Function):
    """Rounds gradients to E5M2 on their way back."""

    @staticmethod
    def forward(_: Any, x: Tensor, factor: float) -> Tensor:
        _.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        gradient = gradients[0]
        factor = ctx.factor or _most(E5) / gradient.abs().max().clamp(min=1e-30)
        return (gradient * factor).to(E5).float() / factor, None


class _Backward(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.inner, self.outer, self.factor = nn.Linear(24, 48), nn.Linear(48, 10), factor

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = _GradientCast.apply(self.inner(x), self.factor)
        out: Tensor = self.outer(F.relu(hidden))
        return out


def _two(kind: type[_Rounded], dtype: torch.dtype, *, clamp: bool, **more: float) -> nn.Module:
    return nn.Sequential(
        kind(24, 48, dtype, clamp=clamp, **more), nn.ReLU(), kind(48, 10, dtype, clamp=clamp, **more)
    )  # fmt: skip


def _learn(opened: Open, model: nn.Module, *, growth: float = 0.0, loss_scale: float = 1.0, mask: bool = False) -> None:
    """Ten classes of which the inputs tell, each step `growth` larger."""
    centres = torch.randn(10, 24)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    recorder = opened(model, optimizer)
    for step in range(60):
        y = torch.randint(10, (48,))
        x = (centres[y] + 0.7 * torch.randn(48, 24)) * (1 + growth * step)
        if mask:
            x = torch.where(torch.rand(48, 24) < 0.1, -torch.inf, x).to(E5).float()
            x = torch.where(x.isinf(), 0.0, x)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        (loss * loss_scale).backward()
        for each in model.parameters():
            assert each.grad is not None
            each.grad /= loss_scale
        optimizer.step()
        recorder.step(loss)


@fault("overflowing-cast", "A cast to E5M2 in", "Clamp to the largest number of E5M2", True)
def delayed_scale_in_e5m2(opened: Open) -> None:
    _learn(opened, _two(_Delayed, E5, clamp=False), growth=0.01)


@fault("overflowing-cast", "A cast to E5M2 in", "Clamp to the largest number of E5M2", True)
def history_of_peaks_in_e5m2(opened: Open) -> None:
    _learn(opened, _two(_History, E5, clamp=False), growth=0.02)


@fault("overflowing-cast", "A cast to E4M3FNUZ in", "take the scale from the largest magnitude", True)
def scale_of_the_first_batch_in_e4m3fnuz(opened: Open) -> None:
    _learn(opened, _two(_First, NANS, clamp=False), growth=0.02)


@fault("overflowing-cast", "A cast of gradients to E5M2", "Clamp to the largest number of E5M2", True)
def gradients_beyond_e5m2(opened: Open) -> None:
    _learn(opened, _Backward(2.0**26))


@fault("overflowing-cast", "A cast to E5M2 makes Inf", "Clamp to the largest number of E5M2", True)
def inputs_beyond_e5m2(opened: Open) -> None:
    """The loop casts inputs by a factor that fits those of the first steps."""
    model = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 10))
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    recorder, centres = opened(model, optimizer), torch.randn(10, 24)
    for step in range(60):
        y = torch.randint(10, (48,))
        x = (centres[y] + 0.7 * torch.randn(48, 24)) * (1 if step < 7 else 9)
        loss = F.cross_entropy(model((x * 8000).to(E5).float() / 8000), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@healthy
def delayed_scale_that_saturates(opened: Open) -> None:
    _learn(opened, _two(_Delayed, E5, clamp=True), growth=0.01)


@healthy
def delayed_scale_that_saturates_in_e4m3(opened: Open) -> None:
    _learn(opened, _two(_Delayed, E4, clamp=True), growth=0.01)


@healthy
def history_with_a_margin(opened: Open) -> None:
    _learn(opened, _two(_History, E4, clamp=False, margin=4.0))


@healthy
def scale_of_the_tensor_itself(opened: Open) -> None:
    _learn(opened, _two(_Rounded, E4, clamp=False), growth=0.02)


@healthy
def scale_of_the_first_batch_with_room(opened: Open) -> None:
    _learn(opened, _two(_First, E5, clamp=False, margin=64.0), growth=0.02)


@healthy
def gradients_in_e5m2_with_their_own_scale(opened: Open) -> None:
    _learn(opened, _Backward(0.0))


@healthy
def gradients_in_e5m2_within_its_range(opened: Open) -> None:
    _learn(opened, _Backward(1.0), loss_scale=2.0**10)


@healthy
def minus_infinity_kept_by_a_cast(opened: Open) -> None:
    """A mask of -Inf goes through E5M2 as it is, and is taken out behind it."""
    _learn(opened, nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 10)), mask=True)
