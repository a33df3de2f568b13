"""Rounding to element formats on a GPU: one Triton kernel that reads a tensor once and writes the result once.

The arithmetic is that of `torch_form`, on the bits of FP32 or FP64, so results are the same bit for bit. The kernels
for block formats take their parts from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from precgui.engine.device import upload
from precgui.engine.quantize.plan import DOUBLE, SHARES, SINGLE, largest_in_both, power_constants
from precgui.engine.quantize.torch_form import MOST_ELEMENTS, book_has_form, chosen_plan, code_book_tables, signed
from precgui.formats.model import CodeBook, FloatFormat, Format, IntFormat
from precgui.formats.registry import get
from precgui.formats.rounding import DRAW_BITS, MIX_A, MIX_B, STRIDE, CastPolicy, stream_keys

BYTES = 4096  # of numbers of the kind in which a program computes; with twice as many, some kernels spill registers
WARPS = 4
KINDS = {torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16", torch.float16: "fp16"}
_STRIDE, _MIX_A, _MIX_B = (tl.constexpr(signed(word, 32)) for word in (STRIDE, MIX_A, MIX_B))
_LOW_BITS, _DRAW_MASK = tl.constexpr(32 - DRAW_BITS), tl.constexpr((1 << DRAW_BITS) - 1)
_DRAW_GAP, _DRAW_COUNT = tl.constexpr(2.0**-DRAW_BITS), tl.constexpr(2.0**DRAW_BITS)
_DRAW_BITS, _NO_LIMIT = tl.constexpr(DRAW_BITS), tl.constexpr(0x7FFFFFFF)


@triton.jit  # type: ignore[untyped-decorator]
def read(source, offset, inside, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """Numbers as the bits of FP32; outside they are 0. BF16 is read as integers, whose subnormals nothing flushes."""
    if KIND == "bf16":
        words = tl.load(source.to(tl.pointer_type(tl.int16)) + offset, mask=inside, other=0)
        bits = words.to(tl.int32) << 16
    else:
        bits = tl.load(source + offset, mask=inside, other=0.0).to(tl.float32).to(tl.int32, bitcast=True)
    return bits


@triton.jit  # type: ignore[untyped-decorator]
def write(out, offset, inside, bits, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """The bits of FP32 as numbers of the kind, rounded to nearest even."""
    if KIND == "bf16":
        nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        words = tl.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FC0, nearest)
        tl.store(out.to(tl.pointer_type(tl.int16)) + offset, words.to(tl.int16), mask=inside)
    else:
        tl.store(out + offset, bits.to(tl.float32, bitcast=True).to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def shifted(word, BY: tl.constexpr):  # type: ignore[no-untyped-def]
    """A logical shift of int32 to the right."""
    return (word >> BY) & ((1 << (32 - BY)) - 1)


@triton.jit
def draws(place, first, second):  # type: ignore[no-untyped-def]
    """The draw for every place; see `torch_form._draws`."""
    word = place * _STRIDE + first
    word = (word ^ shifted(word, 16)) * _MIX_A + second
    word = (word ^ shifted(word, 15)) * _MIX_B
    return ((word ^ shifted(word, 15)) >> _LOW_BITS) & _DRAW_MASK


@triton.jit  # type: ignore[untyped-decorator]
def share_of(place, negative, up, down, first, second, ROUNDING: tl.constexpr):  # type: ignore[no-untyped-def]
    """From which share of the gap on a number goes outwards: drawn, above 0 and up to 1, or by its sign."""
    if ROUNDING == "stochastic":
        share = (draws(place, first, second) + 1).to(tl.float32) * _DRAW_GAP
    else:
        share = tl.where(negative, down, up)
    return share


@triton.jit  # type: ignore[untyped-decorator]
def by_adding(bits, share, lowest_binade, magic_exponent, clamp, ulp, DOUBLE: tl.constexpr, ROUNDING: tl.constexpr):  # type: ignore[no-untyped-def]
    """Magnitudes, as bits, rounded by an addition; in a direction, `share` of the gap on goes outwards."""
    if DOUBLE:
        c = tl.minimum(bits, clamp)
        x = c.to(tl.float64, bitcast=True)
        binade = tl.maximum(c & 0x7FF0000000000000, lowest_binade)
        big = (binade + magic_exponent).to(tl.float64, bitcast=True)
        gap = (binade - ulp).to(tl.float64, bitcast=True)
    else:
        c = tl.minimum(bits, clamp)
        x = c.to(tl.float32, bitcast=True)
        binade = tl.maximum(c & 0x7F800000, lowest_binade)
        big = (binade + magic_exponent).to(tl.float32, bitcast=True)
        gap = (binade - ulp).to(tl.float32, bitcast=True)
    grown = x + big
    near = grown - big
    if ROUNDING == "nearest_even":
        result = near
    elif ROUNDING == "to_odd":
        even = (near != x) & ((grown.to(bits.dtype, bitcast=True) & 1) == 0)
        result = tl.where(even, tl.where(near < x, near + gap, near - gap), near)
    else:
        inner = tl.where(near > x, near - gap, near)
        outer = (x > inner) & (x - inner >= share * gap)
        result = tl.where(outer, inner + gap, inner)
    return result.to(bits.dtype, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def to_integers(value, share, lowest, highest, DOUBLE: tl.constexpr, ROUNDING: tl.constexpr):  # type: ignore[no-untyped-def]
    """Integers, saturating; in a direction, `share` of the distance on goes outwards."""
    t = tl.minimum(tl.maximum(value, lowest - 1), highest + 1)
    size = tl.abs(t)
    if DOUBLE:
        large = size >= 4503599627370496.0  # 2^52: has no fraction
        small = tl.where(size < 4503599627370496.0, size, 0.0)
        count = small.to(tl.int64)
        inner = count.to(tl.float64)
        near = (small + 4503599627370496.0) - 4503599627370496.0
    else:
        large = size >= 8388608.0  # 2^23
        small = tl.where(size < 8388608.0, size, 0.0)
        count = small.to(tl.int32)
        inner = count.to(tl.float32)  # tl.floor flushes subnormals
        near = (small + 8388608.0) - 8388608.0  # the adder rounds to integers
    if ROUNDING == "nearest_even":
        result = near
    else:
        rest = small - inner
        goes = (count & 1) == 0 if ROUNDING == "to_odd" else rest >= share
        result = tl.where((rest > 0) & goes, inner + 1, inner)
    result = tl.where(large, size, result)
    return tl.minimum(tl.maximum(tl.where(t < 0, -result, result), lowest), highest)


@triton.jit  # type: ignore[untyped-decorator]
def _masked(magnitude, negative, draw, dropped, dropped_bits, up, down, ROUNDING: tl.constexpr):  # type: ignore[no-untyped-def]
    """Magnitudes, as bits, rounded by an integer addition and a mask."""
    half = dropped >> 1
    if ROUNDING == "to_odd":
        carried = magnitude | ((magnitude & dropped) + dropped)
    elif ROUNDING == "nearest_even":
        carried = magnitude + half + ((magnitude >> dropped_bits) & 1)
    elif ROUNDING == "stochastic":
        carried = magnitude + ((dropped + 1) - _drawn_bits(draw, dropped_bits))
    else:
        share = tl.where(negative, down, up)
        carried = magnitude + tl.where(share > 1, 0, tl.where(share == 0, dropped, dropped - half))
    return carried & ~dropped


@triton.jit
def _drawn_bits(draw, dropped_bits):  # type: ignore[no-untyped-def]
    """Draws, above 0 and up to 2^dropped_bits, in the word of `dropped_bits`."""
    right, left = tl.maximum(_DRAW_BITS - dropped_bits, 0), tl.maximum(dropped_bits - _DRAW_BITS, 0)
    return ((draw.to(dropped_bits.dtype) >> right) + 1) << left


@triton.jit  # type: ignore[untyped-decorator]
def _bits(source, offset, inside, KIND: tl.constexpr, DOUBLE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Numbers as the bits of the float in which they are rounded."""
    if KIND == "fp64":
        bits = tl.load(source + offset, mask=inside, other=0.0).to(tl.int64, bitcast=True)
    else:
        bits = read(source, offset, inside, KIND)
        if DOUBLE:
            bits = bits.to(tl.float32, bitcast=True).to(tl.float64).to(tl.int64, bitcast=True)
    return bits


@triton.jit  # type: ignore[untyped-decorator]
def _store(out, offset, inside, bits, limit, limited, KIND: tl.constexpr, DOUBLE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Results as numbers of the kind; magnitudes from `limit` to `limited`, as bits of FP32, become `limit`."""
    if KIND == "fp64":
        tl.store(out + offset, bits.to(tl.float64, bitcast=True), mask=inside)
    else:
        if DOUBLE:
            bits = bits.to(tl.float64, bitcast=True).to(tl.float32).to(tl.int32, bitcast=True)
        magnitude = bits & 0x7FFFFFFF
        if KIND != "fp32":
            held = (magnitude > limit) & (magnitude < limited)
            bits = tl.where(held, (bits & -2147483648) | limit, bits)
        write(out, offset, inside, bits, KIND)


@triton.jit  # type: ignore[untyped-decorator]
def _places(size, SIZE: tl.constexpr, EVEN: tl.constexpr):  # type: ignore[no-untyped-def]
    """The places of a program, and which of them are inside. EVEN: 16 divides the size, so that vectors are read."""
    if EVEN:
        size = tl.multiple_of(size, 16)
    place = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    return place, place < size


# One kernel for all formats of a kind: Triton would compile numbers that 16 divides, and 1, apart.
_NUMBERS = (
    "size", "dropped_bits", "dropped", "clamp", "lowest_binade", "magic_exponent", "ulp", "lowest", "highest",
    "over_up", "over_down", "inf_up", "inf_down", "negative", "zero_sign", "raised", "inverse_step", "step", "limit",
    "limited", "up", "down", "first", "second", "count",
)  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def _to_floats(  # type: ignore[no-untyped-def]
    bits, place, dropped_bits, dropped, clamp, lowest_binade, magic_exponent, ulp, highest, over_up, over_down, inf_up,
    inf_down, negative, zero_sign, up, down, first, second,
    DOUBLE: tl.constexpr, METHOD: tl.constexpr, ROUNDING: tl.constexpr, SIGNED: tl.constexpr,
):  # fmt: skip
    """The bits of numbers in a float format, by the constants of its plan."""
    WORD: tl.constexpr = tl.int64 if DOUBLE else tl.int32
    INFINITY: tl.constexpr = 0x7FF0000000000000 if DOUBLE else 0x7F800000
    MAGNITUDE: tl.constexpr = 0x7FFFFFFFFFFFFFFF if DOUBLE else 0x7FFFFFFF
    SIGN: tl.constexpr = -0x8000000000000000 if DOUBLE else -0x80000000
    below = bits < 0
    magnitude = bits & MAGNITUDE
    if METHOD == "identity":
        rounded = magnitude
    elif METHOD == "add_subtract":
        share = share_of(place.to(tl.int32), below, up, down, first, second, ROUNDING)
        share = share.to(tl.float64) if DOUBLE else share
        rounded = by_adding(
            magnitude, share, lowest_binade.to(WORD), magic_exponent.to(WORD), clamp.to(WORD), ulp.to(WORD), DOUBLE,
            ROUNDING,
        )  # fmt: skip
    else:
        draw = draws(place.to(tl.int32), first, second)
        rounded = _masked(magnitude, below, draw, dropped.to(WORD), dropped_bits.to(WORD), up, down, ROUNDING)
    result = tl.where(rounded > highest.to(WORD), tl.where(below, over_down.to(WORD), over_up.to(WORD)), rounded)
    result = tl.where(magnitude == INFINITY, tl.where(below, inf_down.to(WORD), inf_up.to(WORD)), result)
    if not SIGNED:
        result = tl.where(below & (result != 0), negative.to(WORD), result)
    result = tl.where(magnitude > INFINITY, magnitude, result)
    if SIGNED:
        result |= tl.where(below, tl.where(result != 0, SIGN, zero_sign.to(WORD)), 0)
    return result


@triton.jit(do_not_specialize=_NUMBERS)  # type: ignore[untyped-decorator]
def _floats(  # type: ignore[no-untyped-def]
    source, out, size: tl.int64, dropped_bits: tl.int64, dropped: tl.int64, clamp: tl.int64, lowest_binade: tl.int64,
    magic_exponent: tl.int64, ulp: tl.int64, highest: tl.int64, over_up: tl.int64, over_down: tl.int64,
    inf_up: tl.int64, inf_down: tl.int64, negative: tl.int64, zero_sign: tl.int64, limit: tl.int64, limited: tl.int64,
    up, down, first, second,
    KIND: tl.constexpr, DOUBLE: tl.constexpr, METHOD: tl.constexpr, ROUNDING: tl.constexpr, SIGNED: tl.constexpr,
    SIZE: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """SIZE numbers to a float format."""
    place, inside = _places(size, SIZE, EVEN)
    result = _to_floats(
        _bits(source, place, inside, KIND, DOUBLE), place, dropped_bits, dropped, clamp, lowest_binade, magic_exponent,
        ulp, highest, over_up, over_down, inf_up, inf_down, negative, zero_sign, up, down, first, second, DOUBLE,
        METHOD, ROUNDING, SIGNED,
    )  # fmt: skip
    _store(out, place, inside, result, limit.to(tl.int32), limited.to(tl.int32), KIND, DOUBLE)


@triton.jit(do_not_specialize=_NUMBERS)  # type: ignore[untyped-decorator]
def _together(  # type: ignore[no-untyped-def]
    pieces, table, dropped_bits: tl.int64, dropped: tl.int64, clamp: tl.int64, lowest_binade: tl.int64,
    magic_exponent: tl.int64, ulp: tl.int64, highest: tl.int64, over_up: tl.int64, over_down: tl.int64,
    inf_up: tl.int64, inf_down: tl.int64, negative: tl.int64, zero_sign: tl.int64, up, down,
    KIND: tl.constexpr, METHOD: tl.constexpr, ROUNDING: tl.constexpr, SIGNED: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """SIZE numbers of one of many FP32 tensors to a float format, as numbers of the kind.

    pieces[program] is (row, number of the piece), table[row] (address, that of the result, size, two keys of draws).
    """
    row = table + 5 * tl.load(pieces + 2 * tl.program_id(0))
    place = tl.load(pieces + 2 * tl.program_id(0) + 1) * SIZE + tl.arange(0, SIZE)
    source = tl.load(row).to(tl.pointer_type(tl.float32))
    out = tl.load(row + 1).to(tl.pointer_type(tl.bfloat16 if KIND == "bf16" else tl.float16))
    inside = place < tl.load(row + 2)
    result = _to_floats(
        read(source, place, inside, "fp32"), place, dropped_bits, dropped, clamp, lowest_binade, magic_exponent, ulp,
        highest, over_up, over_down, inf_up, inf_down, negative, zero_sign, up, down, tl.load(row + 3).to(tl.int32),
        tl.load(row + 4).to(tl.int32), False, METHOD, ROUNDING, SIGNED,
    )  # fmt: skip
    write(out, place, inside, result, KIND)


@triton.jit(do_not_specialize=_NUMBERS)  # type: ignore[untyped-decorator]
def _powers(  # type: ignore[no-untyped-def]
    source, out, size: tl.int64, lowest: tl.int64, highest: tl.int64, over: tl.int64, infinite: tl.int64,
    negative: tl.int64, raised: tl.int64, limit: tl.int64, limited: tl.int64, first, second,
    KIND: tl.constexpr, DOUBLE: tl.constexpr, STOCHASTIC: tl.constexpr, SIZE: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """SIZE numbers to a format of powers of two without zero and sign; subnormals are doubled before, halved after."""
    WORD: tl.constexpr = tl.int64 if DOUBLE else tl.int32
    INFINITY: tl.constexpr = 0x7FF0000000000000 if DOUBLE else 0x7F800000
    MAGNITUDE: tl.constexpr = 0x7FFFFFFFFFFFFFFF if DOUBLE else 0x7FFFFFFF
    MANTISSA_BITS: tl.constexpr = 52 if DOUBLE else 23
    place, inside = _places(size, SIZE, EVEN)
    bits = _bits(source, place, inside, KIND, DOUBLE)
    c = tl.maximum(bits, lowest.to(WORD))
    tiny = c < (1 << MANTISSA_BITS)
    more = raised.to(WORD)
    if STOCHASTIC:
        drawn = draws(place.to(tl.int32), first, second)
        more = more - _drawn_bits(drawn, tl.full((), MANTISSA_BITS, WORD))
    result = (tl.where(tiny, c + c, c) + more) & INFINITY
    result = tl.where(tiny, result >> 1, result)
    result = tl.where(result > highest.to(WORD), over.to(WORD), result)
    result = tl.where(bits == INFINITY, infinite.to(WORD), result)
    result = tl.where(bits <= 0, negative.to(WORD), result)
    result = tl.where((bits & MAGNITUDE) > INFINITY, bits, result)
    _store(out, place, inside, result, limit.to(tl.int32), limited.to(tl.int32), KIND, DOUBLE)


@triton.jit(do_not_specialize=_NUMBERS)  # type: ignore[untyped-decorator]
def _integers(  # type: ignore[no-untyped-def]
    source, out, size: tl.int64, inverse_step: tl.int64, step: tl.int64, lowest: tl.int64, highest: tl.int64,
    up, down, first, second,
    KIND: tl.constexpr, DOUBLE: tl.constexpr, ROUNDING: tl.constexpr, SIZE: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """SIZE numbers to integers times a step. Numbers of the host come as the bits of FP64."""
    REAL: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    place, inside = _places(size, SIZE, EVEN)
    value = _bits(source, place, inside, KIND, DOUBLE).to(REAL, bitcast=True)
    share = share_of(place.to(tl.int32), value < 0, up, down, first, second, ROUNDING).to(REAL)
    scaled = value * _real(inverse_step, REAL)
    result = to_integers(scaled, share, _real(lowest, REAL), _real(highest, REAL), DOUBLE, ROUNDING)
    result = result * _real(step, REAL) + 0.0  # an integer has no negative zero
    result = tl.where(value == value, result, value)
    WORD: tl.constexpr = tl.int64 if DOUBLE else tl.int32
    _store(out, place, inside, result.to(WORD, bitcast=True), _NO_LIMIT, 0, KIND, DOUBLE)


@triton.jit  # type: ignore[untyped-decorator]
def _real(bits, REAL: tl.constexpr):  # type: ignore[no-untyped-def]
    return bits.to(tl.int64).to(tl.float64, bitcast=True).to(REAL)


@triton.jit  # type: ignore[untyped-decorator]
def _reached(value, table, count, LEVELS: tl.constexpr):  # type: ignore[no-untyped-def]
    """How many numbers of an ascending table are not above the value."""
    place = tl.zeros(value.shape, tl.int32)
    for level in tl.static_range(LEVELS):
        further = place + (1 << (LEVELS - 1 - level))
        fits = further <= count
        bound = tl.load(table + further - 1, mask=fits, other=0.0)
        place = tl.where(fits & (value >= bound), further, place)
    return place


@triton.jit(do_not_specialize=_NUMBERS)  # type: ignore[untyped-decorator]
def _entries(  # type: ignore[no-untyped-def]
    source, out, book, thresholds, size: tl.int64, count, first, second,
    KIND: tl.constexpr, DOUBLE: tl.constexpr, STOCHASTIC: tl.constexpr, LEVELS: tl.constexpr,
    SIZE: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """SIZE numbers to the entries of a book of `count`, by the thresholds between them or by draws."""
    WORD: tl.constexpr = tl.int64 if DOUBLE else tl.int32
    place, inside = _places(size, SIZE, EVEN)
    value = _bits(source, place, inside, KIND, DOUBLE).to(tl.float64 if DOUBLE else tl.float32, bitcast=True)
    if STOCHASTIC:
        t = tl.minimum(tl.maximum(value, tl.load(book)), tl.load(book + count - 1))
        upper = tl.minimum(tl.maximum(_reached(t, book, count, LEVELS), 1), count - 1)
        low, high = tl.load(book + upper - 1), tl.load(book + upper)
        gap = high.to(tl.float64) - low.to(tl.float64)
        moved = tl.abs(t.to(tl.float64) - tl.where(t > 0, low, high).to(tl.float64)) * _DRAW_COUNT
        draw = (draws(place.to(tl.int32), first, second) + 1).to(tl.float64)
        result = tl.where((draw * gap <= moved) == (t > 0), high, low)
    else:
        result = tl.load(book + _reached(value, thresholds, count - 1, LEVELS))
    result = tl.where(value == value, result, value)
    _store(out, place, inside, result.to(WORD, bitcast=True), _NO_LIMIT, 0, KIND, DOUBLE)


def launch(
    kernel: Any, programs: int, tensors: tuple[Tensor, ...], shape: tuple[int, ...], numbers: tuple[float, ...],
    kind: tuple[Any, ...],
) -> None:  # fmt: skip
    """Launch a kernel, whose arguments are all of these in their order.

    Triton looks at each argument at each launch, which takes the host longer than the launch. What it would compile
    apart is known here: `kind`, the device, the dtypes of the tensors and which of them are not aligned in memory, and
    what is special of the `shape`.
    """
    special = [(size == 1, size % 16 == 0, size >> 31) for size in shape]
    pointers = [(tensor.dtype, tensor.data_ptr() % 16 == 0) for tensor in tensors]
    key = (kernel, kind, tensors[0].device, *pointers, *special)
    arguments = (*tensors, *shape, *numbers, *kind)
    if key in _machine_code:
        _machine_code[key][programs, 1, 1](*arguments)
    elif code := kernel[programs,](*arguments, num_warps=WARPS, enable_fp_fusion=False):
        _machine_code[key] = code


_machine_code: dict[Any, Any] = {}


def rounded_elements(dense: Tensor, fmt: Format, cast_policy: CastPolicy, seed: int) -> Tensor | None:
    """Round a contiguous tensor on a GPU by one launch; NaN stays. None for what no kernel serves."""
    chosen = _chosen(fmt, cast_policy, dense.dtype)
    if chosen is None or (cast_policy.rounding == "stochastic" and dense.numel() > MOST_ELEMENTS):
        return None
    out = torch.empty_like(dense)
    if count := dense.numel():
        keys = [signed(key, 32) for key in stream_keys(seed, 0)]
        tables: tuple[Tensor, ...] = ()
        if isinstance(fmt, CodeBook):
            reals = torch.float64 if dense.dtype == torch.float64 else torch.float32
            own = "nearest_even" if cast_policy.rounding == "stochastic" else cast_policy.rounding
            tables = code_book_tables(fmt, own, reals, dense.device)
        size = BYTES // (8 if chosen.double else 4)
        launch(
            chosen.kernel, -(-count // size), (dense, out, *tables), (), (count, *chosen.numbers, *keys),
            (KINDS[dense.dtype], chosen.double, *chosen.kind, size, count % 16 == 0),
        )  # fmt: skip
    return out


def round_together(
    sources: Sequence[Tensor], targets: Sequence[Tensor], fmt: Format, cast_policy: CastPolicy, seeds: Sequence[int]
) -> bool:
    """Round FP32 tensors, each by its own seed, into others of one dtype by one launch; False where it does not serve.

    All are contiguous, have numbers and lie on one GPU.
    """
    chosen = _chosen(fmt, cast_policy, torch.float32)
    if chosen is None or chosen.kernel is not _floats or chosen.double:
        return False
    device, size = sources[0].device, BYTES // 4
    sizes = tuple(source.numel() for source in sources)
    table = np.array([
        (source.data_ptr(), target.data_ptr(), count, *stream_keys(seed, 0))
        for source, target, count, seed in zip(sources, targets, sizes, seeds, strict=True)
    ])  # fmt: skip
    pieces = _pieces(sizes, size, device)
    constants, shares = chosen.numbers[:-4], chosen.numbers[-2:]
    launch(
        _together, len(pieces), (pieces, upload(torch.from_numpy(table), device)), (), (*constants, *shares),
        (KINDS[targets[0].dtype], *chosen.kind, size),
    )  # fmt: skip
    return True


@lru_cache(maxsize=8)
def _pieces(sizes: tuple[int, ...], piece: int, device: torch.device) -> Tensor:
    """(place of the tensor, number of the piece) for each piece of tensors of these sizes, on a device."""
    each = -(-np.array(sizes) // piece)
    numbers = np.arange(each.sum()) - np.repeat(each.cumsum() - each, each)
    return upload(torch.from_numpy(np.stack((np.repeat(np.arange(len(sizes)), each), numbers), 1)), device)


_UNLIMITED = 0x7FFFFFFF, 0


class _Chosen(NamedTuple):
    """A kernel with the numbers of a format and a rounding."""

    kernel: Any
    double: bool  # whether it computes in FP64
    kind: tuple[Any, ...]  # what is compiled apart
    numbers: tuple[int | float, ...]


@lru_cache(maxsize=256)
def _chosen(fmt: Format, cast_policy: CastPolicy, dtype: torch.dtype) -> _Chosen | None:
    rounding = cast_policy.rounding
    machine = DOUBLE if dtype == torch.float64 else SINGLE
    shares = SHARES.get(rounding, (0.0, 0.0))
    way = "directed" if rounding in SHARES else rounding
    if isinstance(fmt, IntFormat):
        reals = (1 / fmt.step, fmt.step, fmt.min_ordinal, fmt.max_ordinal)
        bits = np.array([float(real) for real in reals]).view(np.int64).tolist()
        return _Chosen(_integers, machine is DOUBLE, (way,), (*bits, *shares))
    if isinstance(fmt, CodeBook):
        drawn = rounding == "stochastic"
        if not book_has_form(fmt, rounding, dtype):
            return None
        count = len(fmt.values)
        return _Chosen(_entries, machine is DOUBLE, (drawn, count.bit_length()), (count,))
    limits = _limits(fmt, cast_policy, dtype)
    if not fmt.has_zero and not fmt.mantissa_bits:
        k = power_constants(fmt, machine, cast_policy)
        powers = (k.lowest, k.largest, k.over, k.infinite, k.negative, k.added)
        return _Chosen(_powers, machine is DOUBLE, (rounding == "stochastic",), (*powers, *limits))
    plan = chosen_plan(fmt, cast_policy, torch.float64 if dtype == torch.float64 else torch.float32)
    if plan is None:
        return None
    numbers = (
        plan.dropped_bits, plan.dropped, plan.clamp, plan.lowest_binade, plan.magic_exponent, plan.ulp_offset,
        plan.largest, plan.over_up, plan.over_down, plan.inf_up, plan.inf_down, plan.negative or 0,
        signed(plan.machine.sign, plan.machine.bits) if plan.keeps_zero_sign else 0,
    )  # fmt: skip
    method = plan.method if plan.method in ("identity", "add_subtract") else "bit_mask"
    kind = (method, "nearest_even" if method == "identity" else way, plan.negative is None)
    return _Chosen(_floats, plan.machine is DOUBLE, kind, (*numbers, *limits, *shares))


def _limits(fmt: FloatFormat, cast_policy: CastPolicy, dtype: torch.dtype) -> tuple[int, int]:
    """Between which magnitudes, as bits of FP32, results become the first of them; see `elements._held`."""
    limit = largest_in_both(fmt, KINDS[dtype]) if dtype in (torch.bfloat16, torch.float16) else None
    if limit is None:
        return _UNLIMITED
    if cast_policy.overflow == "saturate":
        return SINGLE.bits_of(limit), SINGLE.infinity + 1
    return (SINGLE.bits_of(limit), SINGLE.infinity) if fmt.max_finite <= get(KINDS[dtype]).max_finite else _UNLIMITED
