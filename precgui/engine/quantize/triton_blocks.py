"""Rounding to block formats on a GPU: one Triton kernel that reads a tensor once and writes the result once.

The arithmetic is that of `block_kernels` and of `torch_form`, on the bits of FP32, so results are the same bit for bit.
NVFP4 has a scale of the tensor, so its largest finite magnitude is found first, by a kernel that reads only.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from precgui.engine.quantize.block_kernels import scale_constants
from precgui.engine.quantize.plan import SHARES, SINGLE, make_plan
from precgui.engine.quantize.torch_form import signed
from precgui.formats.blocks import ScaleRule
from precgui.formats.model import BlockFormat, FloatFormat, Format, IntFormat
from precgui.formats.registry import get
from precgui.formats.rounding import DRAW_BITS, MIX_A, MIX_B, STRIDE, CastPolicy, RoundingMode, stream_keys

TILE = 2048  # elements of a program
WARPS = 4
_KINDS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
_STRIDE, _MIX_A, _MIX_B = (tl.constexpr(signed(word, 32)) for word in (STRIDE, MIX_A, MIX_B))
_LOW_BITS, _DRAW_MASK = tl.constexpr(32 - DRAW_BITS), tl.constexpr((1 << DRAW_BITS) - 1)
_DRAW_GAP = tl.constexpr(2.0**-DRAW_BITS)
# One kernel for all formats of a kind: Triton would compile numbers that 16 divides, and 1, apart.
_NUMBERS = (
    "blocks", "each", "added", "even", "dropped_bits", "shift", "limit", "whole_limit", "local_lowest", "local_magic",
    "local_largest", "local_clamp", "lowest_binade", "magic_exponent", "largest", "clamp", "ulp", "inverse_step",
    "step", "lowest", "highest", "up", "down", "first", "second",
)  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def _read(source, offset, inside, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """Numbers as the bits of FP32; outside they are 0. BF16 is read as integers, whose subnormals nothing flushes."""
    if KIND == "bf16":
        words = tl.load(source.to(tl.pointer_type(tl.int16)) + offset, mask=inside, other=0)
        bits = words.to(tl.int32) << 16
    else:
        bits = tl.load(source + offset, mask=inside, other=0.0).to(tl.float32).to(tl.int32, bitcast=True)
    return bits


@triton.jit  # type: ignore[untyped-decorator]
def _write(out, offset, inside, bits, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    if KIND == "bf16":
        nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        words = tl.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FC0, nearest)
        tl.store(out.to(tl.pointer_type(tl.int16)) + offset, words.to(tl.int16), mask=inside)
    else:
        tl.store(out + offset, bits.to(tl.float32, bitcast=True).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _nearest(bits, lowest_binade, magic_exponent, largest, clamp):  # type: ignore[no-untyped-def]
    """Nearest-even to a float format, saturating, on the bits of magnitudes."""
    c = tl.minimum(bits, clamp)
    x = c.to(tl.float32, bitcast=True)
    big = (tl.maximum(c & 0x7F800000, lowest_binade) + magic_exponent).to(tl.float32, bitcast=True)
    return tl.minimum(((x + big) - big).to(tl.int32, bitcast=True), largest)


@triton.jit  # type: ignore[untyped-decorator]
def _shifted(word, BY: tl.constexpr):  # type: ignore[no-untyped-def]
    return (word >> BY) & ((1 << (32 - BY)) - 1)


@triton.jit
def _shares(place, first, second):  # type: ignore[no-untyped-def]
    """The draw for every place as a share of the gap, above 0 and up to 1; see `torch_form._draws`."""
    word = place * _STRIDE + first
    word = (word ^ _shifted(word, 16)) * _MIX_A + second
    word = (word ^ _shifted(word, 15)) * _MIX_B
    word = ((word ^ _shifted(word, 15)) >> _LOW_BITS) & _DRAW_MASK
    return (word + 1).to(tl.float32) * _DRAW_GAP


@triton.jit  # type: ignore[untyped-decorator]
def _directed(bits, negative, share, lowest_binade, magic_exponent, largest, clamp, ulp, ROUNDING: tl.constexpr):  # type: ignore[no-untyped-def]
    """As `_nearest`, in another direction; `share` of the gap on goes outwards."""
    c = tl.minimum(bits, clamp)
    x = c.to(tl.float32, bitcast=True)
    binade = tl.maximum(c & 0x7F800000, lowest_binade)
    big = (binade + magic_exponent).to(tl.float32, bitcast=True)
    gap = (binade - ulp).to(tl.float32, bitcast=True)
    grown = x + big
    near = grown - big
    if ROUNDING == "to_odd":
        even = (near != x) & ((grown.to(tl.int32, bitcast=True) & 1) == 0)
        result = tl.where(even, tl.where(near < x, near + gap, near - gap), near)
    else:
        inner = tl.where(near > x, near - gap, near)
        outer = (x > inner) & (x - inner >= share * gap)
        result = tl.where(outer, inner + gap, inner)
    return tl.minimum(result.to(tl.int32, bitcast=True), largest)


@triton.jit  # type: ignore[untyped-decorator]
def _integer(t, share, lowest, highest, ROUNDING: tl.constexpr):  # type: ignore[no-untyped-def]
    """Integers, saturating; `share` of the distance on goes outwards."""
    t = tl.minimum(tl.maximum(t, lowest - 1), highest + 1)
    if ROUNDING == "nearest_even":
        whole = (t + 12582912.0) - 12582912.0  # 1.5 * 2^23: the adder rounds to integers
    else:
        size = tl.abs(t)
        inner = size.to(tl.int32).to(tl.float32)  # tl.floor flushes subnormals
        rest = size - inner
        goes = (size.to(tl.int32) & 1) == 0 if ROUNDING == "to_odd" else rest >= share
        outer = (rest > 0) & goes
        inner = tl.where(outer, inner + 1, inner)
        whole = tl.where(t < 0, -inner, inner)
    return tl.minimum(tl.maximum(whole, lowest), highest)


@triton.jit  # type: ignore[untyped-decorator]
def _rounded(  # type: ignore[no-untyped-def]
    bits, negative, place, lowest_binade, magic_exponent, largest, clamp, ulp, first, second,
    up, down, inverse_step, step, lowest, highest, INTEGERS: tl.constexpr, ROUNDING: tl.constexpr,
):  # fmt: skip
    """Magnitudes, as bits of FP32, in the element format: FP32 numbers with their sign."""
    share = _shares(place, first, second) if ROUNDING == "stochastic" else tl.where(negative, down, up)
    if INTEGERS:
        value = bits.to(tl.float32, bitcast=True)
        t = tl.where(negative, -value, value) * inverse_step
        result = _integer(t, share, lowest, highest, ROUNDING) * step + 0.0  # an integer has no negative zero
    else:
        if ROUNDING == "nearest_even":
            near = _nearest(bits, lowest_binade, magic_exponent, largest, clamp)
        else:
            near = _directed(bits, negative, share, lowest_binade, magic_exponent, largest, clamp, ulp, ROUNDING)
        result = tl.where(negative, near | -2147483648, near).to(tl.float32, bitcast=True)
    return result


@triton.jit
def _power(exponent):  # type: ignore[no-untyped-def]
    """2^exponent for -127 <= exponent <= 127."""
    return tl.where(exponent > -127, (exponent + 127) << 23, 0x00400000).to(tl.float32, bitcast=True)


@triton.jit
def _exponent(peak, added, even, dropped_bits, shift):  # type: ignore[no-untyped-def]
    """The exponent of the scale of a block from the bits of its largest magnitude."""
    tiny = peak < 0x00800000
    raised = (peak.to(tl.float32, bitcast=True) * 18446744073709551616.0).to(tl.int32, bitcast=True)  # by 2^64
    normal = tl.where(tiny, raised, peak)
    exponent = ((normal + added + ((normal >> dropped_bits) & even)) >> 23) - shift - tl.where(tiny, 64, 0)
    return tl.minimum(tl.maximum(exponent, -127), 127)


@triton.jit
def _local_scale(peak, tensor_scale, limit, lowest, magic, largest, clamp):  # type: ignore[no-untyped-def]
    """The scale of a block of a two-level format: rounded to the format of scales, times that of the tensor."""
    share = tl.div_rn(tl.div_rn(peak.to(tl.float32, bitcast=True), limit), tensor_scale)
    share = tl.where(tensor_scale > 0, share, 0.0)
    local = _nearest(share.to(tl.int32, bitcast=True), lowest, magic, largest, clamp)
    return local.to(tl.float32, bitcast=True) * tensor_scale


@triton.jit(do_not_specialize=_NUMBERS)  # type: ignore[untyped-decorator]
def _blocks(  # type: ignore[no-untyped-def]
    source, out, whole, blocks, width, each, line_stride, stride,
    added, even, dropped_bits, shift,
    limit, whole_limit, local_lowest, local_magic, local_largest, local_clamp,
    lowest_binade, magic_exponent, largest, clamp, ulp, inverse_step, step, lowest, highest,
    up, down, first, second,
    KIND: tl.constexpr, BLOCK: tl.constexpr, SIZE: tl.constexpr, TWO_LEVEL: tl.constexpr, INTEGERS: tl.constexpr,
    ROUNDING: tl.constexpr,
):  # fmt: skip
    """SIZE blocks of BLOCK numbers. A line of `width` numbers has `each` blocks, the last one padded with zeros."""
    block = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    line = (block // each)[:, None]
    column = ((block % each) * BLOCK)[:, None] + tl.arange(0, BLOCK)[None, :]
    inside = (block < blocks)[:, None] & (column < width)
    bits = _read(source, line * line_stride + column * stride, inside, KIND)
    magnitude = bits & 0x7FFFFFFF
    peak = tl.max(magnitude, axis=1)
    known = peak < 0x7F800000
    peak = tl.where(known, peak, 0)
    size = magnitude.to(tl.float32, bitcast=True)
    if TWO_LEVEL:
        tensor_scale = tl.div_rn(tl.load(whole).to(tl.float32, bitcast=True), whole_limit)
        scale = _local_scale(peak, tensor_scale, limit, local_lowest, local_magic, local_largest, local_clamp)
        divisor = tl.where(scale == 0, 1.0, scale)
        scaled = tl.div_rn(size, tl.broadcast_to(divisor[:, None], (SIZE, BLOCK)))
    else:
        exponent = _exponent(peak, added, even, dropped_bits, shift)
        scale = _power(exponent)
        scaled = size * _power(-exponent)[:, None]
    scaled = tl.where(known[:, None], scaled, 0.0)
    place = (block * BLOCK).to(tl.int32)[:, None] + tl.arange(0, BLOCK)[None, :]
    elements = _rounded(
        scaled.to(tl.int32, bitcast=True), bits < 0, place, lowest_binade, magic_exponent, largest, clamp, ulp,
        first, second, up, down, inverse_step, step, lowest, highest, INTEGERS, ROUNDING,
    )  # fmt: skip
    result = (elements * scale[:, None]).to(tl.int32, bitcast=True)
    result = tl.where(known[:, None], result, 0x7FC00000)
    _write(out, line * width + column, inside, result, KIND)


@triton.jit  # type: ignore[untyped-decorator]
def _peak(source, whole, lines, width, line_stride, stride, KIND: tl.constexpr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The largest finite magnitude, as bits of FP32, into `whole`, which is 0 before."""
    place = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    bits = _read(source, (place // width) * line_stride + (place % width) * stride, place < lines * width, KIND)
    magnitude = bits & 0x7FFFFFFF
    tl.atomic_max(whole, tl.max(tl.where(magnitude < 0x7F800000, magnitude, 0), axis=0))


def rounded_blocks(
    tensor: Tensor, chosen: BlockFormat, rule: ScaleRule, rounding: RoundingMode, seed: int, largest: float | None
) -> Tensor:
    """Round a tensor to a block format along its last axis, into a new contiguous tensor of its dtype and device.

    One launch for MX. NVFP4 needs three, for a 0, the largest magnitude and the rounding; two where `largest` is given.
    """
    out = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    if not tensor.numel():
        return out
    lines = tensor.reshape(-1, tensor.shape[-1])
    kind, width, each = _KINDS[tensor.dtype], lines.shape[1], -(-lines.shape[1] // chosen.block)
    blocks, size = len(lines) * each, TILE // chosen.block
    element = get(chosen.element)
    whole = _largest(lines, largest) if chosen.two_level else out
    _blocks[(-(-blocks // size),)](
        lines, out, whole, blocks, width, each, *lines.stride(), *_constants(chosen, rule, rounding, seed),
        kind, chosen.block, size, chosen.two_level, isinstance(element, IntFormat), rounding,
        num_warps=WARPS, enable_fp_fusion=False,
    )  # fmt: skip
    return out


def _largest(lines: Tensor, known: float | None) -> Tensor:
    """The largest finite magnitude of the tensor as one FP32 number on its device, seen as int32."""
    whole = torch.full((), known or 0.0, dtype=torch.float32, device=lines.device).view(torch.int32)
    if known is None:
        grid = (-(-lines.numel() // TILE),)
        _peak[grid](lines, whole, *lines.shape, *lines.stride(), _KINDS[lines.dtype], TILE, num_warps=WARPS)
    return whole


def _constants(chosen: BlockFormat, rule: ScaleRule, rounding: RoundingMode, seed: int) -> list[int | float]:
    """The numbers of a format, its scale and a rounding, in the order of the kernel."""
    keys = [signed(key, 32) for key in stream_keys(seed, 0)]
    return [*_format_constants(chosen, rule), *SHARES.get(rounding, (0.0, 0.0)), *keys]


@lru_cache(maxsize=64)
def _format_constants(chosen: BlockFormat, rule: ScaleRule) -> tuple[int | float, ...]:
    element, local = get(chosen.element), get(chosen.scale)
    limit = float(element.max_finite)
    scale, shift = scale_constants(element, rule)
    numbers: list[int | float] = [*map(int, scale), shift, limit, float(local.max_finite) * limit]
    numbers += _float_constants(local if chosen.two_level else None)[:4] + _float_constants(element)
    if isinstance(element, IntFormat):
        return (
            *numbers,
            1 / float(element.step),
            float(element.step),
            float(element.min_ordinal),
            float(element.max_ordinal),
        )
    return *numbers, 1.0, 1.0, 0.0, 0.0


def _float_constants(fmt: Format | None) -> list[int | float]:
    if not isinstance(fmt, FloatFormat):
        return [0] * 5
    plan = make_plan(fmt, CastPolicy(overflow="saturate"), SINGLE)
    return [plan.lowest_binade, plan.magic_exponent, plan.largest, plan.clamp, plan.ulp_offset]
