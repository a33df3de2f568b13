"""Rounding on accelerators: the loops of `float_kernels` as tensor operations, fused where torch.compile can.

The same constants and the same order of steps, on int32 or int64 words, so the results are the same bit for bit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from precgui.engine.quantize.cpu import SHARES
from precgui.engine.quantize.plan import DOUBLE, SINGLE, RoundingPlan, make_plan
from precgui.formats.arrays import quantize_array
from precgui.formats.model import FloatFormat, Format
from precgui.formats.rounding import DRAW_BITS, MIX_A, MIX_B, STRIDE, CastPolicy, stream_keys

_WORDS = {SINGLE: torch.int32, DOUBLE: torch.int64}
_REALS = {SINGLE: torch.float32, DOUBLE: torch.float64}
_BLOCK = 1 << 32
VARIANTS = 64  # ways, roundings and overflow policies are compiled apart; torch gives up after 8 by default


def rounded_on_device(source: Tensor, fmt: Format, convention: CastPolicy, seed: int) -> Tensor:
    """Round a contiguous float32 or float64 tensor where it is; rare combinations take the way over the CPU."""
    machine = SINGLE if source.dtype == torch.float32 else DOUBLE
    plan = make_plan(fmt, convention, machine) if isinstance(fmt, FloatFormat) and fmt.has_zero else None
    fast = plan is not None and plan.way in ("narrow", "fixed")
    if plan is None or not fast or source.numel() > _BLOCK:
        return _over_cpu(source, fmt, convention, seed)
    keys = stream_keys(seed, 0)
    words = [_signed(key, 32) for key in keys]
    return fused(source.device.type)(source.view(-1), plan, convention.rounding, *words).view(source.shape)


def _over_cpu(source: Tensor, fmt: Format, convention: CastPolicy, seed: int) -> Tensor:
    with np.errstate(over="ignore"):
        rounded = quantize_array(source.cpu().numpy(), fmt, convention, seed)
    return torch.from_numpy(rounded).to(source)


@cache
def fused(device: str) -> Callable[..., Tensor]:
    """`round_tensor`, as one kernel where torch can build one for the device, operation by operation elsewhere."""
    if device != "cuda" or not torch.cuda.is_available():
        return round_tensor
    from torch._dynamo import config as limits

    limits.recompile_limit = max(limits.recompile_limit, VARIANTS)
    compiled = torch.compile(round_tensor, dynamic=True)
    try:
        plan = make_plan(_probe_format(), CastPolicy(), SINGLE)
        compiled(torch.ones(1024, device=device), plan, "nearest_even", 0, 0)
    except (RuntimeError, ImportError, OSError) as error:  # no Triton, or no compiler for its launcher
        logging.getLogger(__name__).info("rounding is not fused on this machine: %s", error)
        return round_tensor
    return compiled


def _probe_format() -> FloatFormat:
    return FloatFormat("e4m3", "", 4, 3, 7)


def round_tensor(source: Tensor, plan: RoundingPlan, rounding: str, first: int, second: int) -> Tensor:
    """Round a flat tensor; `first` and `second` are the keys of the draws of stochastic rounding."""
    machine = plan.machine
    bits = source.view(_WORDS[machine])
    magnitude = bits & (machine.sign - 1)
    if plan.way == "narrow":
        rounded = _narrow(bits, magnitude, plan, rounding, first, second)
    else:
        rounded = _fixed(bits, magnitude, plan, rounding, first, second)
    return _finished(bits, magnitude, rounded, plan).view(_REALS[machine])


def _narrow(bits: Tensor, magnitude: Tensor, plan: RoundingPlan, rounding: str, first: int, second: int) -> Tensor:
    real, word = _REALS[plan.machine], _WORDS[plan.machine]
    c = magnitude.clamp(max=plan.cap)
    binade = (c & plan.machine.infinity).clamp(min=plan.lowest_binade)
    big = (binade + plan.lift).view(real)
    x = c.view(real)
    grown = x + big
    near = grown - big
    if rounding == "nearest_even":
        return near.view(word)
    gap = (binade - plan.fall).view(real)
    if rounding == "to_odd":
        even = (near != x) & ((grown.view(word) & 1) == 0)
        return torch.where(even, torch.where(near < x, near + gap, near - gap), near).view(word)
    inner = torch.where(near > x, near - gap, near)
    if rounding == "stochastic":
        share: Any = (_draws(bits, first, second) + 1).to(real) * 2.0**-DRAW_BITS
    else:
        up, down = SHARES[rounding]
        share = torch.where(bits < 0, down, up).to(real)
    outer = (x > inner) & (x - inner >= share * gap)
    return torch.where(outer, inner + gap, inner).view(word)


def _fixed(bits: Tensor, magnitude: Tensor, plan: RoundingPlan, rounding: str, first: int, second: int) -> Tensor:
    dropped = (1 << plan.drop) - 1
    if rounding == "to_odd":
        odd: Tensor = (magnitude | ((magnitude & dropped) + dropped)) & ~dropped
        return odd
    if rounding == "nearest_even":
        added: Any = (dropped >> 1) + ((magnitude >> plan.drop) & 1)
    elif rounding == "stochastic":
        drawn = _draws(bits, first, second).to(bits.dtype)
        share = ((drawn >> max(DRAW_BITS - plan.drop, 0)) + 1) << max(plan.drop - DRAW_BITS, 0)
        added = (dropped + 1) - share
    else:
        moves = [0 if share > 1 else dropped if share == 0 else (dropped + 1) >> 1 for share in SHARES[rounding]]
        added = torch.where(bits < 0, moves[1], moves[0]).to(bits.dtype)
    rounded: Tensor = (magnitude + added) & ~dropped
    return rounded


def _draws(bits: Tensor, first: int, second: int) -> Tensor:
    """`formats.rounding.draw` for every place, in int32, whose products wrap as those of uint32 do."""
    word = torch.arange(bits.numel(), device=bits.device, dtype=torch.int32) * _signed(STRIDE, 32) + first
    word = (word ^ _shifted(word, 16)) * _signed(MIX_A, 32) + second
    word = (word ^ _shifted(word, 15)) * _signed(MIX_B, 32)
    return _shifted(word ^ _shifted(word, 15), 32 - DRAW_BITS)


def _shifted(word: Tensor, by: int) -> Tensor:
    """A logical shift of int32 to the right."""
    return (word >> by) & ((1 << (32 - by)) - 1)


def _finished(bits: Tensor, magnitude: Tensor, rounded: Tensor, plan: RoundingPlan) -> Tensor:
    machine = plan.machine
    negative = bits < 0
    over = _either(negative, plan.over_down, plan.over_up, bits)
    at_infinity = _either(negative, plan.inf_down, plan.inf_up, bits)
    result = torch.where(rounded > plan.largest, over, rounded)
    result = torch.where(magnitude == machine.infinity, at_infinity, result)
    if plan.negative is not None:
        result = torch.where(negative & (result != 0), plan.negative, result)
    result = torch.where(magnitude > machine.infinity, magnitude, result)
    if plan.negative is not None:
        return result
    signed = negative if plan.keeps_zero_sign else negative & (result != 0)
    return torch.where(signed, result | _signed(machine.sign, machine.bits), result)


def _either(choice: Tensor, yes: int, no: int, like: Tensor) -> Any:
    return no if yes == no else torch.where(choice, yes, no).to(like.dtype)


def _signed(word: int, bits: int) -> int:
    return word - (1 << bits) if word >> (bits - 1) else word
