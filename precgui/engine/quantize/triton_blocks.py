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
from precgui.engine.quantize.triton_elements import KINDS, by_adding, launch, read, share_of, to_integers, write
from precgui.formats.blocks import ScaleRule
from precgui.formats.model import BlockFormat, FloatFormat, Format, IntFormat
from precgui.formats.registry import get
from precgui.formats.rounding import CastPolicy, RoundingMode, stream_keys

TILE = 2048  # elements of a program
# One kernel for all formats of a kind: Triton would compile numbers that 16 divides, and 1, apart.
_NUMBERS = (
    "blocks", "each", "added", "even", "dropped_bits", "shift", "limit", "whole_limit", "local_lowest", "local_magic",
    "local_largest", "local_clamp", "lowest_binade", "magic_exponent", "largest", "clamp", "ulp", "inverse_step",
    "step", "lowest", "highest", "up", "down", "first", "second",
)  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def _rounded(  # type: ignore[no-untyped-def]
    bits, negative, place, lowest_binade, magic_exponent, largest, clamp, ulp, first, second,
    up, down, inverse_step, step, lowest, highest, INTEGERS: tl.constexpr, ROUNDING: tl.constexpr,
):  # fmt: skip
    """Magnitudes, as bits of FP32, in the element format: FP32 numbers with their sign."""
    share = share_of(place, negative, up, down, first, second, ROUNDING)
    if INTEGERS:
        value = bits.to(tl.float32, bitcast=True) * inverse_step
        result = to_integers(tl.where(negative, -value, value), share, lowest, highest, False, ROUNDING) * step + 0.0
    else:
        near = tl.minimum(by_adding(bits, share, lowest_binade, magic_exponent, clamp, ulp, False, ROUNDING), largest)
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
    local = by_adding(share.to(tl.int32, bitcast=True), share, lowest, magic, clamp, 0, False, "nearest_even")
    return tl.minimum(local, largest).to(tl.float32, bitcast=True) * tensor_scale


@triton.jit(do_not_specialize=_NUMBERS)  # type: ignore[untyped-decorator]
def _blocks(  # type: ignore[no-untyped-def]
    source, out, whole, width, line_stride, stride, blocks: tl.int64, each: tl.int64,
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
    bits = read(source, line * line_stride + column * stride, inside, KIND)
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
    write(out, line * width + column, inside, result, KIND)


@triton.jit  # type: ignore[untyped-decorator]
def _peak(source, whole, lines, width, line_stride, stride, KIND: tl.constexpr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The largest finite magnitude, as bits of FP32, into `whole`, which is 0 before."""
    place = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    bits = read(source, (place // width) * line_stride + (place % width) * stride, place < lines * width, KIND)
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
    kind, width, each = KINDS[tensor.dtype], lines.shape[1], -(-lines.shape[1] // chosen.block)
    blocks, size = len(lines) * each, TILE // chosen.block
    element = get(chosen.element)
    whole = _largest(lines, largest) if chosen.two_level else out
    launch(
        _blocks, -(-blocks // size), (lines, out, whole), (width, *lines.stride()),
        (blocks, each, *_constants(chosen, rule, rounding, seed)),
        (kind, chosen.block, size, chosen.two_level, isinstance(element, IntFormat), rounding),
    )  # fmt: skip
    return out


def _largest(lines: Tensor, known: float | None) -> Tensor:
    """The largest finite magnitude of the tensor as one FP32 number on its device, seen as int32."""
    whole = torch.full((), known or 0.0, dtype=torch.float32, device=lines.device).view(torch.int32)
    if known is None:
        shape = (*lines.shape, *lines.stride())
        launch(_peak, -(-lines.numel() // TILE), (lines, whole), shape, (), (KINDS[lines.dtype], TILE))
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
