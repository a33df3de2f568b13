"""One pass over a tensor for MX formats: each block is read, scaled, rounded and written while it is in the cache."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch

from precgui.engine.quantize_kernels import Loop, Words, compiled
from precgui.engine.quantize_plan import SINGLE
from precgui.formats.blocks import HIGHEST_SCALE, LOWEST_SCALE, ScaleRule
from precgui.formats.model import BlockFormat, FloatFormat, Format, floor_log2, power_of_two

W, F = np.uint32, np.float32
MAGNITUDE, INFINITY, SIGN, MANTISSA, NORMAL = (
    W(0x7FFFFFFF), W(0x7F800000), W(0x80000000), W(0x007FFFFF), W(0x00800000)
)  # fmt: skip
NAN = W(0x7FC00000)
RAISE, RAISED_BY = F(2.0**64), 64


def serves(dtype: torch.dtype, element: Format, chosen: BlockFormat) -> bool:
    """Whether `fused_blocks` can round this: single precision, power-of-two scale, float elements."""
    return dtype == torch.float32 and not chosen.two_level and isinstance(element, FloatFormat)


def fused_blocks(source: Words, out: Words, element: Format, rule: ScaleRule, block: int) -> None:
    """Round a flat float32 array, whose size is a multiple of `block`, into another one."""
    assert isinstance(element, FloatFormat)
    drop = SINGLE.mantissa_bits - element.mantissa_bits
    limit = SINGLE.bits_of(element.max_finite)
    rules = {
        "floor": (W(0), W(0)),
        "ceil": (W(0x007FFFFF), W(0)),
        "even": (W((1 << (drop - 1)) - 1), W(1)),
        "rceil": (W(0x007FFFFF - (limit & 0x007FFFFF)), W(0)),
    }
    add, even = rules[rule]
    numbers = (
        SINGLE.bits_of(power_of_two(element.emin)), drop << SINGLE.mantissa_bits, limit,
        SINGLE.bits_of(4 * element.max_finite), add, even, drop,
    )  # fmt: skip
    shift = np.int64(SINGLE.bias + floor_log2(element.max_finite))
    loop(block)(source.view(W), out.view(W), tuple(W(n) for n in numbers), shift)


@cache
def loop(block: int) -> Loop:
    """The compiled loop for blocks of that size."""

    def nearest_blocks(bits: Words, out: Words, k: Any, shift: Any) -> None:
        for start in range(0, bits.size, block):
            part, result = bits[start : start + block], out[start : start + block]
            peak = W(0)
            for j in range(block):
                peak = max(peak, W(part[j] & MAGNITUDE))
            if peak >= INFINITY:
                for j in range(block):
                    result[j] = NAN
                continue
            raised = np.int64(0)
            if peak < NORMAL:
                peak = F(W(peak).view(F) * RAISE).view(W)
                raised = np.int64(RAISED_BY)
            carried = W(peak + k[4] + W(W(peak >> k[6]) & k[5]))
            exponent = np.int64(carried >> W(23)) - shift - raised
            exponent = min(max(exponent, np.int64(LOWEST_SCALE)), np.int64(HIGHEST_SCALE))
            down = W(np.int64(127) - exponent) << W(23) if exponent < 127 else W(0x00400000)
            up = W(exponent + np.int64(127)) << W(23) if exponent > -127 else W(0x00400000)
            inverse, scale = W(down).view(F), W(up).view(F)
            for j in range(block):
                scaled = F(W(part[j]).view(F) * inverse).view(W)
                c = min(W(scaled & MAGNITUDE), k[3])
                big = W(max(W(c & INFINITY), k[0]) + k[1]).view(F)
                rounded = min(F((W(c).view(F) + big) - big).view(W), k[2])
                result[j] = F(W(rounded | W(part[j] & SIGN)).view(F) * scale).view(W)

    return compiled(nearest_blocks)
