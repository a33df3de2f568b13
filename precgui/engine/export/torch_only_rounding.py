"""Rounding in plain torch, for scripts that must run without precgui: slow, but with the answers of `quantize`.

FORMATS and BLOCKS are filled by whoever uses it (an exported script fills them in its main function).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

FORMATS: dict[str, dict[str, Any]] = {}  # what `quantize` needs to know of each
BLOCKS: dict[str, dict[str, Any]] = {}  # length of a block, format of its elements
WHOLE: dict[str, Any] = {
    "nearest_even": torch.round,
    "toward_zero": torch.trunc,
    "up": torch.ceil,
    "down": torch.floor,
}
LOWEST_SCALE = -127
HIGHEST_SCALE = 127


def quantize(
    tensor: Tensor, name: str, *, rounding: str = "nearest_even", saturate: bool = False, seed: int | None = None
) -> Tensor:
    """Each element rounded to a format; shape and dtype stay."""
    fmt = FORMATS[name]
    x: Tensor = tensor.double()
    if "values" in fmt:
        return to_nearest(x, torch.tensor(fmt["values"], dtype=torch.float64)).to(tensor.dtype)
    if "step" in fmt:
        step: float = fmt["step"]
        whole = whole_numbers(x / step, rounding, seed).clamp(fmt["lowest"], fmt["highest"])
        return (whole * step).to(tensor.dtype)
    finite = torch.where(x.isfinite(), x, 0.0)
    exponent = (torch.frexp(finite)[1] - 1).clamp_min(fmt["emin"]) - fmt["mantissa"]
    quantum = torch.ldexp(torch.ones_like(x), exponent)
    result = whole_numbers(finite / quantum, rounding, seed) * quantum
    result = torch.where(x.isinf(), x, result)
    over = result.abs() > fmt["largest"]
    beyond = fmt["largest"] if saturate else fmt["beyond"]
    inward = torch.full_like(over, rounding in ("toward_zero", "to_odd")) | ((x < 0) if rounding == "up" else False)
    inward |= (x > 0) if rounding == "down" else False
    stays = over & inward & x.isfinite()
    result = torch.where(over, torch.where(stays, fmt["largest"], beyond) * x.sign(), result)
    return torch.where(x.isnan(), x, torch.copysign(result, x)).to(tensor.dtype)


def whole_numbers(x: Tensor, rounding: str, seed: int | None) -> Tensor:
    """Each element rounded to an integer."""
    if rounding in WHOLE:
        rounded: Tensor = WHOLE[rounding](x)
        return rounded
    low, rest = x.abs().floor(), x.abs().frac()
    if rounding == "nearest_away":
        away = rest >= 0.5
    elif rounding == "to_odd":
        away = (rest > 0) & (low % 2 == 0)
    else:
        away = rest >= (draws(x, seed or 0) + 1.0) / 2**24
    return (low + away) * x.sign()


def draws(like: Tensor, seed: int) -> Tensor:
    """A random integer in [0, 2^24) for each element, from the seed and its place."""
    mask, word = 2**64 - 1, (seed + 0x9E3779B97F4A7C15) & (2**64 - 1)
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & mask
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & mask
    word ^= word >> 31
    low = 2**32 - 1
    value = (torch.arange(like.numel(), device=like.device) * 0x9E3779B9 + (word & low)) & low
    value = ((value ^ (value >> 16)) * 0x21F0AAAD + (word >> 32)) & low
    value = ((value ^ (value >> 15)) * 0x735A2D97) & low
    return ((value ^ (value >> 15)) >> 8).reshape(like.shape)


def to_nearest(x: Tensor, values: Tensor) -> Tensor:
    """The nearest of a few ascending values; a tie goes to the one with the even place, of two values to the upper."""
    above = torch.bucketize(x, values).clamp(1, len(values) - 1)
    low, high = values[above - 1], values[above]
    up = (x - low > high - x) | ((x - low == high - x) & ((above % 2 == 0) | (len(values) == 2)))
    return torch.where(up, high, low)


def quantize_blocks(
    tensor: Tensor,
    name: str,
    *,
    rule: str = "floor",
    rounding: str = "nearest_even",
    seed: int | None = None,
    axis: int = -1,
) -> Tensor:
    """A tensor rounded to a block format, blocks running along `axis`."""
    block, element = BLOCKS[name]["block"], BLOCKS[name]["element"]
    lines = tensor.movedim(axis, -1)
    shape, length = lines.shape, lines.shape[-1]
    rows = torch.nn.functional.pad(lines.reshape(-1, length), (0, -length % block)).reshape(-1, block)
    amax = rows.abs().amax(1, keepdim=True)
    if BLOCKS[name]["two_level"]:
        largest = FORMATS[element]["largest"]
        tensor_scale = amax.max() / (FORMATS["ue4m3"]["largest"] * largest)
        scale = quantize(amax / largest / tensor_scale, "ue4m3", saturate=True) * tensor_scale
    else:
        scale = torch.ldexp(torch.ones_like(amax), block_exponents(amax, FORMATS[element], rule))
    known = torch.where(scale == 0, 0.0, rows / scale)
    values = quantize(known, element, rounding=rounding, saturate=True, seed=seed) * scale
    values = torch.where(amax.isfinite(), values, torch.nan)
    padded = length + -length % block
    return values.reshape(-1, padded)[:, :length].reshape(shape).movedim(-1, axis)


def block_exponents(amax: Tensor, element: dict[str, Any], rule: str) -> Tensor:
    """The exponent of each block's power-of-two scale, from its largest magnitude."""
    mantissa, exponent = torch.frexp(amax)
    top, bits = element["top"], element["mantissa"]
    if rule == "floor":
        chosen = exponent - 1 - top
    elif rule == "ceil":
        chosen = exponent - (mantissa == 0.5).int() - top
    elif rule == "even":
        chosen = torch.frexp(torch.round(mantissa * 2.0 ** (bits + 1)))[1] + exponent - bits - 2 - top
    else:
        limit = torch.frexp(torch.tensor(element["largest"]))
        chosen = exponent - limit[1] + (mantissa > limit[0]).int()
    return torch.where(amax == 0, LOWEST_SCALE, chosen.clamp(LOWEST_SCALE, HIGHEST_SCALE))
