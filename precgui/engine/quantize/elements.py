"""Tensors rounded to a number format, on any device: the same answers as the exact form, at the speed of a copy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from precgui.engine.quantize.as_operation import as_operation, is_followed
from precgui.engine.quantize.cpu import round_into
from precgui.engine.quantize.plan import largest_in_both
from precgui.engine.quantize.torch_form import MOST_ELEMENTS, in_memory_order
from precgui.formats.model import CodeBook, FloatFormat, Format, IntFormat
from precgui.formats.registry import get
from precgui.formats.rounding import OVERFLOWS, ROUNDINGS, CastPolicy, Overflow, RoundingMode, round_ordinal

Nan = Literal["keep", "negative_zero", "zero", "max"]
_SUBNORMAL, _ONE = np.float32(2.0**-140), np.float32(1)
_NARROW = {torch.bfloat16: "bf16", torch.float16: "fp16"}
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

    Rounding is exact and once, to the format; a result that the dtype of the tensor does not hold is rounded once more,
    to the dtype, and never beyond the largest number of the format. `torch.set_flush_denormal` changes nothing.
    The gradient of the result passes through unchanged (straight-through estimator). Raises ValueError for an unknown
    word, TypeError for a tensor that is not of a float dtype, UnknownFormatError for an unknown format.
    """
    fmt = _format(format)
    _check(tensor, rounding, overflow, nan)
    chosen: Overflow = overflow or ("saturate" if saturate else "ieee")
    cast_policy = CastPolicy(rounding, chosen)
    key = drawn(seed) if rounding == "stochastic" else 0
    if tensor.requires_grad and torch.is_grad_enabled():
        return StraightThrough.apply(tensor, fmt, cast_policy, key, nan)  # type: ignore[no-any-return]
    return _quantized(tensor.detach(), fmt, cast_policy, key, nan)


@torch.no_grad()
def copy_rounded(sources: Sequence[Tensor], targets: Sequence[Tensor], format: str, seeds: Sequence[int]) -> None:
    """Round each FP32 source stochastically, by its own seed, into its target; on a GPU all of them by one kernel."""
    fmt, cast_policy = get(format), CastPolicy("stochastic")
    if _go_together(sources, targets):
        from precgui.engine.quantize.device import together_on_device

        if together_on_device(sources, targets, fmt, cast_policy, seeds):
            torch.autograd.graph.increment_version(targets)  # the kernel wrote past torch
            return
    for source, target, seed in zip(sources, targets, seeds, strict=True):
        target.copy_(quantize(source, fmt, rounding="stochastic", seed=seed))


def _go_together(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> bool:
    """Whether one kernel could round all sources into their targets."""
    if not sources or not sources[0].is_cuda or is_followed():
        return False
    device, dtype = sources[0].device, targets[0].dtype
    return dtype in _NARROW and all(
        source.dtype == torch.float32 and target.dtype == dtype and source.device == target.device == device
        and source.is_contiguous() and target.is_contiguous() and 0 < source.numel() <= MOST_ELEMENTS
        for source, target in zip(sources, targets, strict=True)
    )  # fmt: skip


def _format(format: Any) -> Format:
    if isinstance(format, str):
        return get(format)
    if not isinstance(format, FloatFormat | IntFormat | CodeBook):
        raise TypeError(f"format is the name of a number format, such as 'e4m3fn', not {format!r}")
    return format


def _check(tensor: Tensor, rounding: str, overflow: str | None, nan: str) -> None:
    check_dtype(tensor)
    for word, known in ((rounding, ROUNDINGS), (overflow, (None, *OVERFLOWS)), (nan, get_args(Nan))):
        if word not in known:
            raise ValueError(f"{word!r} is not known here; there are {', '.join(str(k) for k in known if k)}")


def check_dtype(tensor: Tensor) -> None:
    """Refuse integers, complex numbers and floats of 8 bits. Raises TypeError."""
    if tensor.dtype not in DTYPES:
        raise TypeError(f"rounding takes float32, float64, bfloat16 or float16 tensors, not {tensor.dtype}")


@contextlib.contextmanager
def subnormals_kept(tensor: Tensor) -> Iterator[None]:
    """Switch off `torch.set_flush_denormal` for what is rounded on the CPU meanwhile: rounding needs subnormals."""
    if tensor.device.type != "cpu" or np.multiply(_SUBNORMAL, _ONE) != 0:
        yield
        return
    torch.set_flush_denormal(False)
    try:
        yield
    finally:
        torch.set_flush_denormal(True)


def drawn(seed: int | None) -> int:
    """The seed, or one of torch's generator."""
    return int(torch.randint(2**62, ())) if seed is None else seed


class StraightThrough(torch.autograd.Function):
    """Straight-through estimator: forward rounds, backward passes the gradient unchanged (Bengio et al. 2013)."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, fmt: Format, cast_policy: CastPolicy, seed: int, nan: Nan) -> Tensor:
        return _quantized(tensor, fmt, cast_policy, seed, nan)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        return gradients[0], None, None, None, None


def _quantized(tensor: Tensor, fmt: Format, cast_policy: CastPolicy, seed: int, nan: Nan) -> Tensor:
    key = ("elements", fmt, cast_policy, seed, nan)
    bits = fmt.mantissa_bits if isinstance(fmt, FloatFormat) else None
    return as_operation(tensor, key, lambda source: _any_order(source, fmt, cast_policy, seed, nan), bits)


def _any_order(tensor: Tensor, fmt: Format, cast_policy: CastPolicy, seed: int, nan: Nan) -> Tensor:
    """Round a tensor of any memory order, with its subnormals."""
    if tensor.is_meta:
        return torch.empty_like(tensor)
    with subnormals_kept(tensor):
        return _in_order(tensor, fmt, cast_policy, seed, nan)


def _in_order(tensor: Tensor, fmt: Format, cast_policy: CastPolicy, seed: int, nan: Nan) -> Tensor:
    def plain(dense: Tensor) -> Tensor:
        source = dense if dense.dtype in (torch.float32, torch.float64) else dense.float()
        return _held(_rounded(source, fmt, cast_policy, seed, nan), fmt, cast_policy, dense.dtype)

    def run(dense: Tensor) -> Tensor:
        if dense.device.type != "cuda" or _exchanges_nan(fmt, nan):
            return plain(dense)
        from precgui.engine.quantize.device import elements_on_device

        return elements_on_device(dense, fmt, cast_policy, seed, lambda: plain(dense))

    return in_memory_order(tensor, run, by_place=cast_policy.rounding == "stochastic")


def _held(result: Tensor, fmt: Format, cast_policy: CastPolicy, dtype: torch.dtype) -> Tensor:
    """The result in the dtype of the tensor; no finite number passes the largest that both of them hold."""
    shared = largest_in_both(fmt, _NARROW[dtype]) if isinstance(fmt, FloatFormat) and dtype in _NARROW else None
    if isinstance(fmt, FloatFormat) and shared is not None:
        limit = float(shared)
        if cast_policy.overflow == "saturate":
            result = result.clamp(-limit, limit)
        elif fmt.max_finite <= Fraction(torch.finfo(dtype).max):
            result = torch.where(result.isfinite(), result.clamp(-limit, limit), result)
    return result.to(dtype)


def _rounded(source: Tensor, fmt: Format, cast_policy: CastPolicy, seed: int, nan: Nan) -> Tensor:
    """Round a contiguous float32 or float64 tensor."""
    if source.device.type == "cpu":
        result = torch.empty_like(source)
        round_into(source.view(-1).numpy(), result.view(-1).numpy(), fmt, cast_policy, seed, torch.get_num_threads())
    else:
        from precgui.engine.quantize.device import rounded_on_device

        result = rounded_on_device(source, fmt, cast_policy, seed)
    return _with_nan(result, source, fmt, nan)


def _exchanges_nan(fmt: Format, nan: Nan) -> bool:
    """Whether NaN becomes something else, in a format that has none."""
    return not fmt.has_nan and (nan != "keep" or (isinstance(fmt, FloatFormat) and not fmt.has_zero))


def _with_nan(result: Tensor, source: Tensor, fmt: Format, nan: Nan) -> Tensor:
    """Replace NaN in a format that has none, as the caller asked; the loops themselves keep it."""
    if not _exchanges_nan(fmt, nan):
        return result
    if nan == "negative_zero" and fmt.has_negative_zero:
        stand_in = -torch.copysign(torch.zeros_like(source), source)
    else:
        zero = float(fmt.value(round_ordinal(Fraction(0), fmt, "nearest_even")))
        value = {"keep": float("nan"), "max": float(fmt.max_finite)}.get(nan, zero)
        stand_in = torch.full((), value, dtype=result.dtype, device=result.device)
    return torch.where(source.isnan(), stand_in, result)
