"""One pass over a tensor for block formats: read, scaled, rounded and written while it is in the cache."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numba.extending import register_jitable

from precgui.engine.compiled_loops import compiled
from precgui.engine.quantize.float_kernels import Loop, Words
from precgui.engine.quantize.plan import SINGLE
from precgui.engine.quantize.table_kernels import IntegerConstants
from precgui.formats.blocks import HIGHEST_SCALE, LOWEST_SCALE, ScaleRule
from precgui.formats.model import FloatFormat, Format, floor_log2, power_of_two

W, F = np.uint32, np.float32
MAGNITUDE, INFINITY, SIGN, NORMAL = W(0x7FFFFFFF), W(0x7F800000), W(0x80000000), W(0x00800000)
NAN = W(0x7FC00000)
RAISE, RAISED_BY = F(2.0**64), 64
TILE = 2048  # elements; a multiple of every block size


class ScaleConstants(NamedTuple):
    """The scale rule: what is added to the bits of the largest magnitude before its exponent is read."""

    added: Any
    even: Any
    dropped_bits: Any


class ElementConstants(NamedTuple):
    """A float element format, in bits of float32, as in `engine.quantize.plan.RoundingPlan`."""

    lowest_binade: Any
    magic_exponent: Any
    largest: Any
    clamp: Any


def serves(dtype: torch.dtype) -> bool:
    """Whether `fused_blocks` can round this dtype: single precision only."""
    return dtype == torch.float32


def fused_blocks(source: Words, out: Words, element: Format, rule: ScaleRule, block: int) -> None:
    """Round flat float32 to an MX format, into another array; the size is a multiple of `block`."""
    scale_numbers, shift = scale_constants(element, rule)
    bits, result = source.view(W), out.view(W)
    if isinstance(element, FloatFormat):
        _mx_loop()(bits, result, block, scale_numbers, np.int64(shift), _element_numbers(element))
    else:
        ends = IntegerConstants(
            *(F(float(v)) for v in (1 / element.epsilon, element.epsilon, element.min_ordinal, element.max_ordinal))
        )
        _mxint_loop()(bits, result, block, scale_numbers, np.int64(shift), ends)


def scale_constants(element: Format, rule: ScaleRule) -> tuple[ScaleConstants, int]:
    """The scale rule for an element format, and what is taken from the exponent bits of the largest magnitude."""
    top = floor_log2(element.max_finite)
    mantissa_bits = element.mantissa_bits if isinstance(element, FloatFormat) else element.bits - 2
    drop = SINGLE.mantissa_bits - mantissa_bits
    limit = SINGLE.bits_of(element.max_finite)
    add, even = {
        "floor": (0, 0),
        "ceil": (0x007FFFFF, 0),
        "even": ((1 << (drop - 1)) - 1, 1),
        "rceil": (0x007FFFFF - (limit & 0x007FFFFF), 0),
    }[rule]
    return ScaleConstants(W(add), W(even), W(drop)), SINGLE.bias + top


def fused_nvfp4(source: Words, out: Words, peak: float, element: FloatFormat, local: FloatFormat, block: int) -> None:
    """Round flat float32 to NVFP4; `peak` is the largest finite magnitude of those blocks that are finite."""
    limit, local_limit = F(float(element.max_finite)), F(float(local.max_finite))
    tensor_scale = F(peak) / (local_limit * limit)
    _nvfp4_loop()(
        source.view(W), out.view(W), block, limit, tensor_scale, _element_numbers(local), _element_numbers(element)
    )


def largest_magnitude(values: Words) -> float:
    """The largest magnitude of float32 values; infinity or NaN if there is one."""
    return float(W(_peak(values.view(W))).view(F))


def _element_numbers(element: FloatFormat) -> ElementConstants:
    drop = SINGLE.mantissa_bits - element.mantissa_bits
    numbers = (
        SINGLE.bits_of(power_of_two(element.emin)), drop << SINGLE.mantissa_bits,
        SINGLE.bits_of(element.max_finite), SINGLE.bits_of(4 * element.max_finite),
    )  # fmt: skip
    return ElementConstants(*(W(n) for n in numbers))


@register_jitable(inline="always")
def _rounded(magnitude: Any, k: Any) -> Any:
    """Nearest-even to the element format, saturating, on the bits of a magnitude."""
    c = min(magnitude, k.clamp)
    big = W(max(W(c & INFINITY), k.lowest_binade) + k.magic_exponent).view(F)
    return min(F((W(c).view(F) + big) - big).view(W), k.largest)


@register_jitable
def _scale_exponent(peak: Any, k: Any, shift: Any) -> Any:
    """The exponent of the block scale from the bits of the largest magnitude."""
    raised = np.int64(0)
    if peak < NORMAL:
        peak = F(W(peak).view(F) * RAISE).view(W)
        raised = np.int64(RAISED_BY)
    carried = W(peak + k.added + W(W(peak >> k.dropped_bits) & k.even))
    return min(max(np.int64(carried >> W(23)) - shift - raised, np.int64(LOWEST_SCALE)), np.int64(HIGHEST_SCALE))


@register_jitable
def _power(exponent: Any) -> Any:
    """2^exponent for -127 <= exponent <= 127, as float32."""
    return W(W(exponent + np.int64(127)) << W(23) if exponent > -127 else W(0x00400000)).view(F)


def _largest(part: Any) -> Any:
    peak = W(0)
    for j in range(part.size):
        peak = max(peak, W(part[j] & MAGNITUDE))
    return peak


_peak: Any = compiled(_largest)


@register_jitable(error_model="numpy")
def _apply(x: Any, y: Any, inverse: Any, scale: Any, k: Any) -> None:
    for j in range(x.size):
        b = x[j]
        scaled = F(W(b & MAGNITUDE).view(F) * inverse[j]).view(W)
        value = F(W(_rounded(scaled, k)).view(F) * scale[j]).view(W)
        y[j] = W(value | W(b & SIGN))


@register_jitable(error_model="numpy")
def _apply_divided(x: Any, y: Any, divisor: Any, scale: Any, k: Any) -> None:
    for j in range(x.size):
        b = x[j]
        scaled = F(W(b & MAGNITUDE).view(F) / divisor[j]).view(W)
        value = F(W(_rounded(scaled, k)).view(F) * scale[j]).view(W)
        y[j] = W(value | W(b & SIGN))


@register_jitable(error_model="numpy")
def _apply_integer(x: Any, y: Any, inverse: Any, scale: Any, k: Any) -> None:
    for j in range(x.size):
        t = np.rint(W(x[j]).view(F) * inverse[j] * k.inverse_step)
        t = k.lowest if t < k.lowest else t
        t = k.highest if t > k.highest else t
        y[j] = F((t * k.step + F(0)) * scale[j]).view(W)


def _mx(apply: Any) -> Loop:
    """The loop over tiles that stay in the cache: scales of the blocks first, then all elements in one sweep."""

    def nearest_mx(bits: Words, out: Words, block: Any, s: Any, shift: Any, k: Any) -> None:
        inverse, scale = np.empty(TILE, F), np.empty(TILE, F)
        for start in range(0, bits.size, TILE):
            x, y = bits[start : start + TILE], out[start : start + TILE]
            for first in range(0, x.size, block):
                peak = _peak(x[first : first + block])
                exponent = _scale_exponent(peak, s, shift)
                inverse[first : first + block] = _power(-exponent)
                scale[first : first + block] = F(np.nan) if peak >= INFINITY else _power(exponent)
            apply(x, y, inverse, scale, k)

    return compiled(nearest_mx)


@cache
def _mx_loop() -> Loop:
    return _mx(_apply)


@cache
def _mxint_loop() -> Loop:
    return _mx(_apply_integer)


@cache
def _nvfp4_loop() -> Loop:
    def nearest_nvfp4(bits: Words, out: Words, block: Any, limit: Any, tensor_scale: Any, local: Any, k: Any) -> None:
        divisor, scale = np.empty(TILE, F), np.empty(TILE, F)
        for start in range(0, bits.size, TILE):
            x, y = bits[start : start + TILE], out[start : start + TILE]
            for first in range(0, x.size, block):
                peak = _peak(x[first : first + block])
                requested = F(F(W(peak).view(F) / limit) / tensor_scale)
                chosen = F(W(_rounded(requested.view(W), local)).view(F) * tensor_scale)
                divisor[first : first + block] = F(1) if chosen == 0 else chosen
                scale[first : first + block] = F(np.nan) if peak >= INFINITY else chosen
            _apply_divided(x, y, divisor, scale, k)

    return compiled(nearest_nvfp4)
