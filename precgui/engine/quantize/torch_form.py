"""Rounding as torch operations: the one form for accelerators and for exported scripts.

The constants and the order of steps are those of the compiled loops, on int32 or int64 words, so the results are the
same bit for bit. Imports nothing but torch, `engine.quantize.plan` and modules of `formats` that need only the standard
library, so a script carries these files as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from precgui.engine.quantize.plan import (
    DOUBLE,
    SHARES,
    SINGLE,
    HostFloat,
    PowerConstants,
    RoundingPlan,
    book_thresholds,
    make_plan,
    power_constants,
)
from precgui.formats.model import BlockFormat, CodeBook, FloatFormat, Format, IntFormat, floor_log2
from precgui.formats.registry import blocks, get
from precgui.formats.rounding import DRAW_BITS, MIX_A, MIX_B, STRIDE, CastPolicy, RoundingMode, stream_keys

LOWEST_SCALE, HIGHEST_SCALE = -127, 127  # exponents that E8M0 holds
MOST_ELEMENTS = 1 << 32  # beyond it the keys of the draws change
_WORDS = {SINGLE: torch.int32, DOUBLE: torch.int64}
_REALS = {SINGLE: torch.float32, DOUBLE: torch.float64}
_EXACT_GAP = 1 << (53 - DRAW_BITS - 1)  # times a draw it is exact in double precision

ElementCast = Callable[[Tensor, Format, RoundingMode], Tensor]


def quantize(
    tensor: Tensor, format: str, *, rounding: RoundingMode = "nearest_even", saturate: bool = False,
    seed: int | None = None,
) -> Tensor:  # fmt: skip
    """Round every element to a format; shape, dtype and device stay, no gradient passes.

    Raises UnknownFormatError, and ValueError where torch operations cannot round to the format.
    """
    fmt, policy = get(format), CastPolicy(rounding, "saturate" if saturate else "ieee")
    source = tensor.detach() if tensor.dtype in (torch.float32, torch.float64) else tensor.detach().float()
    result = in_memory_order(source, lambda dense: _cast(dense, fmt, policy, seed), by_place=rounding == "stochastic")
    return result.to(tensor.dtype)


@torch.no_grad()
def copy_rounded(sources: list[Tensor], targets: list[Tensor], format: str, seeds: list[int]) -> None:
    """Round each FP32 source stochastically, by its own seed, into its target."""
    for source, target, seed in zip(sources, targets, seeds, strict=True):
        target.copy_(quantize(source, format, rounding="stochastic", seed=seed))


def in_memory_order(tensor: Tensor, run: Callable[[Tensor], Tensor], *, by_place: bool) -> Tensor:
    """`run`, which takes contiguous tensors, on one of any order in memory, such as channels-last; the result has it.

    `by_place`: results depend on the place of an element in its tensor, as random draws do.
    """
    strides = tensor.stride()
    if tensor.is_contiguous():
        return _with_strides(run(tensor), strides)
    order = sorted(range(tensor.dim()), key=lambda dimension: (-strides[dimension], dimension))  # widest first
    if not by_place and (dense := tensor.permute(order)).is_contiguous():
        return _with_strides(run(dense).permute(sorted(range(len(order)), key=order.__getitem__)), strides)
    result = run(tensor.contiguous())
    return torch.empty_like(tensor, dtype=result.dtype).copy_(result)


def _with_strides(result: Tensor, strides: tuple[int, ...]) -> Tensor:
    """The same, also in dimensions of one element, by whose strides torch chooses kernels of convolutions."""
    return result if result.stride() == strides else result.as_strided(result.shape, strides)


def _cast(source: Tensor, fmt: Format, policy: CastPolicy, seed: int | None) -> Tensor:
    result = rounded(source.contiguous(), fmt, policy, seed or 0)
    if result is None:
        raise ValueError(f"{fmt.name} in {policy.rounding} has no form in torch operations; choose another rounding")
    return result


def quantize_blocks(
    tensor: Tensor, format: str, *, rule: str = "floor", rounding: RoundingMode = "nearest_even",
    seed: int | None = None, axis: int = -1, largest: float | None = None,
) -> Tensor:  # fmt: skip
    """Round a tensor to a block format, blocks running along `axis`; no gradient passes.

    `largest`: of NVFP4 the largest finite magnitude of the whole tensor, where this is a piece of it.
    """
    chosen = blocks()[format]

    def cast(elements: Tensor, fmt: Format, mode: RoundingMode) -> Tensor:
        return _cast(elements, fmt, CastPolicy(mode, "saturate"), seed)

    def run(padded: Tensor) -> Tensor:
        local = get(chosen.scale) if chosen.two_level else None
        return round_blocks(padded, chosen, get(chosen.element), local, rule, rounding, cast, largest)

    return in_blocks(tensor.detach().movedim(axis, -1), chosen.block, run).movedim(-1, axis)


def rounded(source: Tensor, fmt: Format, policy: CastPolicy, seed: int) -> Tensor | None:
    """Round a contiguous float32 or float64 tensor; NaN stays. None for rare formats that need the array form."""
    if source.numel() > MOST_ELEMENTS:
        return None
    keys = [signed(key, 32) for key in stream_keys(seed, 0)]
    flat = source.view(-1)
    if isinstance(fmt, IntFormat):
        limits = float(fmt.min_ordinal), float(fmt.max_ordinal), float(fmt.step)
        return _integers(flat, *limits, policy.rounding, *keys).view(source.shape)
    if isinstance(fmt, CodeBook):
        entries = _entries(flat, fmt, policy.rounding, *keys)
        return None if entries is None else entries.view(source.shape)
    if not fmt.has_zero and not fmt.mantissa_bits:
        machine = SINGLE if source.dtype == torch.float32 else DOUBLE
        constants = power_constants(fmt, machine, policy)
        return _powers(flat, machine, constants, policy.rounding, *keys).view(source.shape)
    plan = chosen_plan(fmt, policy, source.dtype)
    if plan is None:
        return None
    result = round_tensor(flat.to(_REALS[plan.machine]), plan, policy.rounding, *keys)
    return result.view(source.shape).to(source.dtype)


@lru_cache(maxsize=256)
def chosen_plan(fmt: FloatFormat, policy: CastPolicy, dtype: torch.dtype) -> RoundingPlan | None:
    """The plan in the tensor's type where its range exceeds the format's; else in float64, without subnormals."""
    if not fmt.has_zero:
        return None
    plan = make_plan(fmt, policy, SINGLE if dtype == torch.float32 else DOUBLE)
    if plan.method in ("add_subtract", "bit_mask", "identity"):
        return plan
    wider = make_plan(fmt, policy, DOUBLE)
    return None if dtype == torch.float64 or wider.method in ("add_subtract_below", "none") else wider


def _powers(flat: Tensor, machine: HostFloat, k: PowerConstants, rounding: str, first: int, second: int) -> Tensor:
    """Powers of two without zero and sign. Subnormals of the type are doubled before rounding, and halved after it."""
    bits = flat.view(_WORDS[machine])
    c = bits.clamp(min=k.lowest)
    tiny = c < k.normal
    added: Any = k.added
    if rounding == "stochastic":
        added = k.added - _shares(flat, machine.mantissa_bits, bits.dtype, first, second)
    result = (torch.where(tiny, c + c, c) + added) & k.infinity
    result = torch.where(tiny, result >> 1, result)
    result = torch.where(result > k.largest, k.over, result)
    result = torch.where(bits == k.infinity, k.infinite, result)
    result = torch.where(bits <= 0, k.negative, result)
    return torch.where((bits & (machine.sign - 1)) > k.infinity, bits, result).view(flat.dtype)


def _shares(like: Tensor, dropped_bits: int, dtype: torch.dtype, first: int, second: int) -> Tensor:
    """A draw for every place, above 0 and up to 2^dropped_bits."""
    drawn = _draws(like, first, second).to(dtype)
    return ((drawn >> max(DRAW_BITS - dropped_bits, 0)) + 1) << max(dropped_bits - DRAW_BITS, 0)


def _integers(
    flat: Tensor, lowest: float, highest: float, step: float, rounding: str, first: int, second: int
) -> Tensor:
    t = flat * (1 / step)
    if rounding == "nearest_even":
        whole = t.round()
    else:
        t = t.clamp(lowest - 1, highest + 1)
        inner = t.abs().trunc()  # its floor, which CUDA computes without subnormals
        whole = (inner + _outward(t, inner, rounding, first, second)) * t.sign()
    return whole.clamp(lowest, highest) * step + 0.0  # an integer has no negative zero


def _outward(t: Tensor, inner: Tensor, rounding: str, first: int, second: int) -> Any:
    """Which numbers between two integers take the one that is further from zero."""
    share = t.abs() - inner
    match rounding:
        case "stochastic":
            return share >= (_draws(t, first, second) + 1).to(t.dtype) * 2.0**-DRAW_BITS
        case "nearest_away":
            return share >= 0.5
        case "to_odd":
            return (share > 0) & (inner % 2 == 0)
        case "toward_zero":
            return torch.zeros_like(share)
        case _:
            return (share > 0) & ((t > 0) if rounding == "up" else (t < 0))


def _entries(flat: Tensor, fmt: CodeBook, rounding: RoundingMode, first: int, second: int) -> Tensor | None:
    """The entry of a code book for each number; NaN stays. None where the array form is needed."""
    if not book_has_form(fmt, rounding, flat.dtype):
        return None
    if rounding != "stochastic":
        return _nearest_entries(flat, *code_book_tables(fmt, rounding, flat.dtype, flat.device))
    book, _ = code_book_tables(fmt, "nearest_even", flat.dtype, flat.device)
    return _drawn_entries(flat, book, first, second)


def book_has_form(fmt: CodeBook, rounding: RoundingMode, dtype: torch.dtype) -> bool:
    """Whether operations of a GPU can round to a code book in a direction."""
    if rounding == "toward_zero":
        return fmt.has_zero  # else the gap around zero is entered from both sides
    return rounding != "stochastic" or (dtype != torch.float64 and _has_short_gaps(fmt))


def code_book_tables(
    fmt: CodeBook, rounding: RoundingMode, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The values of a code book and the thresholds between them, on a device, to which they are copied once."""
    key = fmt, rounding, dtype, device
    if key in _kept_tables:
        return _kept_tables[key]
    machine = SINGLE if dtype == torch.float32 else DOUBLE
    book = torch.tensor([float(value) for value in fmt.values], dtype=dtype, device=device)
    thresholds = torch.tensor(list(book_thresholds(fmt, machine, rounding)), dtype=dtype, device=device)
    if type(book) is Tensor and device.type == "cuda":  # not a tensor of a mode that only traces
        _kept_tables[key] = book, thresholds
    return book, thresholds


_kept_tables: dict[Any, tuple[Tensor, Tensor]] = {}


def _nearest_entries(flat: Tensor, book: Tensor, thresholds: Tensor) -> Tensor:
    entries = book[torch.bucketize(flat, thresholds, right=True)]
    return torch.where(flat != flat, flat, entries)  # NaN stays; isnan would be compiled to flush subnormals


def _drawn_entries(flat: Tensor, book: Tensor, first: int, second: int) -> Tensor:
    t = flat.clamp(book[0], book[-1])
    place = torch.bucketize(t, book, right=True).clamp(1, book.numel() - 1)
    low, high = book[place - 1].double(), book[place].double()
    inner = torch.where(t > 0, low, high)
    moved = (t.double() - inner).abs() * 2.0**DRAW_BITS
    away = (_draws(flat, first, second) + 1) * (high - low) <= moved
    return torch.where(flat != flat, flat, torch.where(away == (t > 0), high, low).to(flat.dtype))


@lru_cache(maxsize=64)
def _has_short_gaps(fmt: CodeBook) -> bool:
    """Whether a draw times a distance of neighbours is exact in double precision."""
    held = [Fraction(float(torch.tensor(float(value)))) for value in fmt.values]
    gaps = [Fraction(float(high - low)) for low, high in pairwise(held)]
    return all(gap.numerator < _EXACT_GAP for gap in gaps)


def round_tensor(source: Tensor, plan: RoundingPlan, rounding: str, first: int, second: int) -> Tensor:
    """Round a flat tensor; `first` and `second` are the keys of the draws of stochastic rounding."""
    machine = plan.machine
    bits = source.view(_WORDS[machine])
    magnitude = bits & (machine.sign - 1)
    if plan.method == "add_subtract":
        rounded = _add_subtract(bits, magnitude, plan, rounding, first, second)
    elif plan.method == "identity":
        rounded = magnitude
    else:
        rounded = _bit_mask(bits, magnitude, plan, rounding, first, second)
    return _finished(bits, magnitude, rounded, plan).view(_REALS[machine])


def _add_subtract(
    bits: Tensor, magnitude: Tensor, plan: RoundingPlan, rounding: str, first: int, second: int
) -> Tensor:
    real, word = _REALS[plan.machine], _WORDS[plan.machine]
    c = magnitude.clamp(max=plan.clamp)
    binade = (c & plan.machine.infinity).clamp(min=plan.lowest_binade)
    big = (binade + plan.magic_exponent).view(real)
    x = c.view(real)
    grown = x + big
    near = grown - big
    if rounding == "nearest_even":
        return near.view(word)
    gap = (binade - plan.ulp_offset).view(real)
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


def _bit_mask(bits: Tensor, magnitude: Tensor, plan: RoundingPlan, rounding: str, first: int, second: int) -> Tensor:
    dropped = plan.dropped
    if rounding == "to_odd":
        odd: Tensor = (magnitude | ((magnitude & dropped) + dropped)) & plan.kept
        return odd
    if rounding == "nearest_even":
        added: Any = plan.half + ((magnitude >> plan.dropped_bits) & 1)
    elif rounding == "stochastic":
        share = _shares(bits, plan.dropped_bits, bits.dtype, first, second)
        added = (dropped + 1) - share
    else:
        moves = [0 if share > 1 else dropped if share == 0 else dropped - plan.half for share in SHARES[rounding]]
        added = torch.where(bits < 0, moves[1], moves[0]).to(bits.dtype)
    rounded: Tensor = (magnitude + added) & plan.kept
    return rounded


def _draws(like: Tensor, first: int, second: int) -> Tensor:
    """`formats.rounding.draw` for every place of a flat tensor, in int32, whose products wrap as those of uint32 do."""
    word = torch.arange(like.numel(), device=like.device, dtype=torch.int32) * signed(STRIDE, 32) + first
    word = (word ^ _shifted(word, 16)) * signed(MIX_A, 32) + second
    word = (word ^ _shifted(word, 15)) * signed(MIX_B, 32)
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
    below = negative if plan.keeps_zero_sign else negative & (result != 0)
    return torch.where(below, result | signed(machine.sign, machine.bits), result)


def _either(choice: Tensor, yes: int, no: int, like: Tensor) -> Any:
    return no if yes == no else torch.where(choice, yes, no).to(like.dtype)


def signed(word: int, bits: int) -> int:
    """The word of so many bits, read as a two's complement."""
    return word - (1 << bits) if word >> (bits - 1) else word


def in_blocks(tensor: Tensor, block: int, run: Callable[[Tensor], Tensor]) -> Tensor:
    """`run` on a float32 or float64 copy whose last axis is padded to whole blocks; shape and dtype are put back."""
    source = tensor.contiguous() if tensor.dtype == torch.float64 else tensor.float().contiguous()
    width = source.shape[-1]
    padding = -width % block
    result = run(torch.nn.functional.pad(source, (0, padding)) if padding else source)
    return (result[..., :width] if padding else result).to(tensor.dtype)


def round_blocks(
    padded: Tensor, chosen: BlockFormat, element: Format, local: Format | None, rule: str, rounding: RoundingMode,
    cast: ElementCast, largest: float | None = None,
) -> Tensor:  # fmt: skip
    """Scale each block, round its elements with `cast`, which saturates, and scale back.

    `largest`: the largest finite magnitude of the tensor, for the tensor scale of two-level formats; None: of `padded`.

    `local` is the format of the block scales of a two-level format. The last axis holds whole blocks.
    """
    rows = padded.view(-1, chosen.block)
    peak = rows.abs().amax(dim=1, keepdim=True)
    known = peak.isfinite()
    peak = torch.where(known, peak, 0.0)
    if chosen.two_level and local is not None:
        whole = finite_peak(padded) if largest is None else torch.full((), largest, device=padded.device)
        scale = _two_level_scale(peak.float(), whole, element, local, cast)
        scaled = (rows.float() / torch.where(scale == 0, 1.0, scale)).to(rows.dtype)  # times 0 later: zeros have signs
    else:
        exponent = mx_exponent(peak, element, rule)
        scale = torch.ldexp(torch.ones_like(peak), exponent)
        scaled = torch.ldexp(rows, -exponent)
    elements = cast(torch.where(known, scaled, 0.0), element, rounding)
    return torch.where(known, elements * scale.to(rows.dtype), float("nan")).view(padded.shape)


def finite_peak(tensor: Tensor) -> Tensor:
    """The largest magnitude of the finite elements, 0 where there are none; shape (), still on the device."""
    return torch.where(tensor.isfinite(), tensor, 0.0).abs().amax() if tensor.numel() else tensor.new_zeros(())


def mx_exponent(peak: Tensor, element: Format, rule: str) -> Tensor:
    """The exponent of the scale for the largest magnitude of each block, by rule, clamped to what E8M0 holds."""
    mantissa, exponent = torch.frexp(peak)
    limit = float(element.max_finite)
    top = floor_log2(element.max_finite)
    bits = element.mantissa_bits if isinstance(element, FloatFormat) else element.bits - 2
    match rule:
        case "floor":
            chosen = exponent - 1 - top
        case "ceil":
            chosen = exponent - (mantissa == 0.5).int() - top
        case "even":
            chosen = exponent - 1 - top + (torch.round(mantissa * 2.0 ** (bits + 1)) == 2.0 ** (bits + 1)).int()
        case _:
            fraction, power = limit / 2.0 ** (top + 1), top + 1
            chosen = exponent - power + (mantissa > fraction).int()
    return torch.where(peak == 0, LOWEST_SCALE, chosen.clamp(LOWEST_SCALE, HIGHEST_SCALE)).int()


def _two_level_scale(peak: Tensor, largest: Tensor, element: Format, local: Format, cast: ElementCast) -> Tensor:
    """Block scales in `local` times the FP32 scale of the tensor, whose largest finite magnitude is `largest`."""
    limit = float(element.max_finite)
    tensor_scale = _quotient(largest.float(), float(local.max_finite) * limit)
    shares = torch.where(tensor_scale > 0, _quotient(peak, limit) / tensor_scale, 0.0)
    return cast(shares, local, "nearest_even") * tensor_scale


def _quotient(dividend: Tensor, divisor: float) -> Tensor:
    """The quotient rounded once. A GPU multiplies by the rounded inverse of a divisor that is a number of the host."""
    return dividend / torch.full((), divisor, dtype=dividend.dtype, device=dividend.device)
