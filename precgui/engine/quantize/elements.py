"""Tensors rounded to a number format, on any device: the same answers as the exact form, at the speed of a copy."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from precgui.engine.quantize.as_operation import as_operation
from precgui.engine.quantize.cpu import round_into
from precgui.formats.model import FloatFormat, Format
from precgui.formats.registry import get
from precgui.formats.rounding import OVERFLOWS, ROUNDINGS, CastPolicy, Overflow, RoundingMode, round_ordinal

Nan = Literal["keep", "negative_zero", "zero", "max"]
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def quantize(
    tensor: Tensor, format: str | Format, *, rounding: RoundingMode = "nearest_even", saturate: bool = False,
    seed: int | None = None, overflow: Overflow | None = None, nan: Nan = "keep",
) -> Tensor:  # fmt: skip
    """Round every element to a format; shape, dtype and device stay as they were.

    rounding: nearest_even, nearest_away, toward_zero, up, down, to_odd or stochastic. Stochastic rounding depends on
    `seed` and on the place of the element alone; without a seed one is drawn from torch's generator.
    saturate: what is too large becomes the largest value, infinity included; short for overflow="saturate".
    overflow: ieee (infinity, else NaN, else the largest value, whichever the format has), saturate, or nan.
    nan: what NaN becomes in a format without one; `keep` leaves it a NaN, `negative_zero` is what ml_dtypes does.

    The gradient of the result passes through unchanged (straight-through estimator). Raises ValueError for an unknown
    word, TypeError for a tensor that is not of a float dtype, UnknownFormatError for an unknown format.
    """
    fmt = get(format) if isinstance(format, str) else format
    _check(tensor, rounding, overflow, nan)
    chosen: Overflow = overflow or ("saturate" if saturate else "ieee")
    convention = CastPolicy(rounding, chosen)
    drawn = _seed(seed) if rounding == "stochastic" else 0
    if tensor.requires_grad and torch.is_grad_enabled():
        return StraightThrough.apply(tensor, fmt, convention, drawn, nan)  # type: ignore[no-any-return]
    return _quantized(tensor.detach(), fmt, convention, drawn, nan)


def _check(tensor: Tensor, rounding: str, overflow: str | None, nan: str) -> None:
    if tensor.dtype not in DTYPES:
        raise TypeError(f"quantize takes float32, float64, bfloat16 or float16 tensors, not {tensor.dtype}")
    for word, known in ((rounding, ROUNDINGS), (overflow, (None, *OVERFLOWS)), (nan, get_args(Nan))):
        if word not in known:
            raise ValueError(f"{word!r} is not known here; there are {', '.join(str(k) for k in known if k)}")


def _seed(seed: int | None) -> int:
    return int(torch.randint(2**62, ())) if seed is None else seed


class StraightThrough(torch.autograd.Function):
    """Forward rounds; backward hands the gradient on as it is (Bengio et al. 2013)."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, fmt: Format, convention: CastPolicy, seed: int, nan: Nan) -> Tensor:
        return _quantized(tensor, fmt, convention, seed, nan)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        return gradients[0], None, None, None, None


def _quantized(tensor: Tensor, fmt: Format, convention: CastPolicy, seed: int, nan: Nan) -> Tensor:
    key = ("elements", fmt, convention, seed, nan)
    return as_operation(tensor, key, lambda source: _any_order(source, fmt, convention, seed, nan))


def _any_order(tensor: Tensor, fmt: Format, convention: CastPolicy, seed: int, nan: Nan) -> Tensor:
    """Rounded, in whatever order the elements lie in memory."""
    source = tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
    if source.is_contiguous():
        return _rounded(source, fmt, convention, seed, nan).to(tensor.dtype)
    order = _memory_order(source)
    if convention.rounding != "stochastic" and (dense := source.permute(order)).is_contiguous():
        back = sorted(range(len(order)), key=order.__getitem__)
        return _rounded(dense, fmt, convention, seed, nan).permute(back).to(tensor.dtype)
    # Draws belong to the place of an element in its tensor, whatever the order in memory.
    result = _rounded(source.contiguous(), fmt, convention, seed, nan)
    return torch.empty_like(tensor).copy_(result)


def _memory_order(tensor: Tensor) -> list[int]:
    """The dimensions from the one with the widest stride on, as channels-last tensors need it."""
    strides = tensor.stride()
    return sorted(range(tensor.dim()), key=lambda dimension: (-strides[dimension], dimension))


def _rounded(source: Tensor, fmt: Format, convention: CastPolicy, seed: int, nan: Nan) -> Tensor:
    """A contiguous float32 or float64 tensor, rounded."""
    if source.device.type == "cpu":
        result = torch.empty_like(source)
        round_into(source.view(-1).numpy(), result.view(-1).numpy(), fmt, convention, seed, torch.get_num_threads())
    else:
        from precgui.engine.quantize.device import rounded_on_device

        result = rounded_on_device(source, fmt, convention, seed)
    return _with_nan(result, source, fmt, nan)


def _with_nan(result: Tensor, source: Tensor, fmt: Format, nan: Nan) -> Tensor:
    """NaN of the input as the caller wants it, in a format that has none; the loops keep it."""
    if fmt.has_nan:
        return result
    if nan == "keep" and isinstance(fmt, FloatFormat) and fmt.has_zero:
        return result
    if nan == "negative_zero" and fmt.has_negative_zero:
        stand_in = -torch.copysign(torch.zeros_like(source), source)
    else:
        zero = float(fmt.value(round_ordinal(Fraction(0), fmt, "nearest_even")))
        value = {"keep": float("nan"), "max": float(fmt.max_finite)}.get(nan, zero)
        stand_in = torch.full((), value, dtype=result.dtype, device=result.device)
    return torch.where(source.isnan(), stand_in, result)
