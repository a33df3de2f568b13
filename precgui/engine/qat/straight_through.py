"""Rounding to few integers, and what stands in for its gradient, which is zero almost everywhere.

All of these are functions of their own: under autograd, a clamp would stop the gradient at its bound, too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def highest(bits: int) -> int:
    """The largest integer of a weight of so many bits; the smallest is its negative. One bit is a sign."""
    return max(1, (1 << (bits - 1)) - 1)


def weight_scale(weight: Tensor, bits: int, axes: tuple[int, ...]) -> Tensor:
    """The step between two weights, shaped to divide them; `axes` share one.

    8 and 4 bits cover the largest weight. Two bits (ternary: Ma et al. 2024, BitNet b1.58) and one (binary: Rastegari
    et al. 2016, XNOR-Net) take the mean size of the weights, which is the best scale of a sign in the least squares.
    """
    size = weight.abs()
    scale = size.amax(axes, keepdim=True) / highest(bits) if bits > 2 else size.mean(axes, keepdim=True)
    return torch.where(scale > 0, scale, 1.0)


def weight_integers(weight: Tensor, bits: int, scale: Tensor) -> Tensor:
    """The integers that the weights become, in the dtype of the weights."""
    if bits == 1:
        return torch.where(weight >= 0, 1.0, -1.0).to(weight.dtype)
    return (weight / scale).round_().clamp_(-highest(bits), highest(bits))


class _Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, rounded: Tensor) -> Tensor:
        return rounded

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None


def fake_weight(weight: Tensor, bits: int, axes: tuple[int, ...]) -> Tensor:
    """The weights as they come back from their integers. The gradient passes unchanged (Bengio et al. 2013)."""
    values = weight.detach()
    scale = weight_scale(values, bits, axes)
    return _Straight.apply(weight, weight_integers(values, bits, scale).mul_(scale))  # type: ignore[no-any-return]


class _Learned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, scale: Tensor, largest: int) -> Tensor:
        steps = weight / scale
        integers = steps.round().clamp_(-largest, largest)
        ctx.save_for_backward(steps, integers)
        ctx.largest, ctx.shape = largest, scale.shape
        return integers * scale

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        steps, integers = ctx.saved_tensors
        inside = steps.abs() <= ctx.largest
        per_scale = steps.numel() / ctx.shape.numel()
        grad_scale = grads[0] * torch.where(inside, integers - steps, integers)
        return grads[0] * inside, grad_scale.sum_to_size(ctx.shape) / (per_scale * ctx.largest) ** 0.5, None


def learned_weight(weight: Tensor, bits: int, scale: Tensor) -> Tensor:
    """The weights as they come back from integers with a trained scale (LSQ: Esser et al. 2020, equations 3 and 5)."""
    return _Learned.apply(weight, scale, highest(bits))  # type: ignore[no-any-return]


class _Input(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, scale: Tensor, zero: Tensor, largest: int) -> Tensor:
        steps = (value / scale).round_().add_(zero)
        ctx.save_for_backward((steps >= 0) & (steps <= largest))
        return steps.clamp_(0, largest).sub_(zero).mul_(scale)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (inside,) = ctx.saved_tensors
        return grads[0] * inside, None, None, None


def fake_input(value: Tensor, scale: Tensor, zero: Tensor, largest: int) -> Tensor:
    """Values as they come back from the integers 0 to `largest`. The gradient passes where they are in range."""
    return _Input.apply(value, scale, zero, largest)  # type: ignore[no-any-return]


def input_steps(low: Tensor, high: Tensor, largest: int) -> tuple[Tensor, Tensor]:
    """The step between two values of a range that holds 0, and the zero point, the integer that stands for 0."""
    scale = ((high - low) / largest).clamp_min(1e-12)
    return scale, (-low / scale).round_().clamp_(0, largest)


class _Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, low: Tensor, high: Tensor, largest: int) -> Tensor:
        scale, zero = input_steps(low, high, largest)
        ctx.save_for_backward(value < low, value >= high)
        return (value / scale).round_().add_(zero).clamp_(0, largest).sub_(zero).mul_(scale)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        below, above = ctx.saved_tensors
        return grads[0] * ~(below | above), (grads[0] * below).sum(), (grads[0] * above).sum(), None


def clipped_input(value: Tensor, low: Tensor, high: Tensor, largest: int) -> Tensor:
    """Values as they come back from integers, with a trained range (PACT: Choi et al. 2018, equations 1 to 3).

    A bound takes the gradients of the values that it clips, the others go to the values. With `low` 0, which stays 0
    for inputs that are never negative, this is the paper's activation with `high` for its alpha. The paper's penalty
    on alpha is the weight decay of the optimizer.
    """
    return _Clipped.apply(value, low, high, largest)  # type: ignore[no-any-return]


def relative(value: Tensor, reference: Tensor) -> float:
    """The error of a tensor in the L2 norm, as a share of its size."""
    size = float(reference.float().norm())
    return float((value.float() - reference.float()).norm()) / size if size else 0.0
