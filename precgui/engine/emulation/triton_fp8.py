"""Matrices scaled and cast to FP8 by one Triton kernel, as they lie, turned, or both; for GPUs that have FP8.

The arithmetic is that of `AmaxScale` and of torch's cast, so results are the same bit for bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from precgui.engine.quantize.plan import SINGLE, RoundingPlan, make_plan
from precgui.engine.quantize.triton_elements import by_adding, launch
from precgui.formats.model import FloatFormat
from precgui.formats.registry import get
from precgui.formats.rounding import CastPolicy

_FORMATS = {torch.float8_e4m3fn: "e4m3fn", torch.float8_e5m2: "e5m2"}
ROWS, COLUMNS = 32, 32  # of the tile of a program


_NUMBERS = (
    "rows", "columns", "largest", "tiny", "lowest_binade", "magic_exponent", "clamp", "highest",
)  # fmt: skip


@triton.jit(do_not_specialize=_NUMBERS)  # type: ignore[untyped-decorator]
def _scaled(  # type: ignore[no-untyped-def]
    source, amax, plain, turned, inverse, row_stride, stride, rows: tl.int64, columns: tl.int64,
    largest, tiny, lowest_binade, magic_exponent, clamp, highest,
    STRAIGHT: tl.constexpr, TURNED: tl.constexpr, OF_ROW: tl.constexpr, OF_COLUMN: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A tile times largest / amax, saturated, in FP8; `amax` has a number for the matrix, each row or each column."""
    across = (columns + COLUMNS - 1) // COLUMNS
    tile = tl.program_id(0).to(tl.int64)
    row = ((tile // across) * ROWS + tl.arange(0, ROWS))[:, None]
    column = ((tile % across) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    inside = (row < rows) & (column < columns)
    value = tl.load(source + row * row_stride + column * stride, mask=inside, other=0.0)
    place = tl.zeros((ROWS, COLUMNS), tl.int64)
    first = inside  # where a factor is met at first
    if OF_ROW:
        place += row
        first &= column == 0
    elif OF_COLUMN:
        place += column
        first &= row == 0
    else:
        first &= (row == 0) & (column == 0)
    peak = tl.load(amax + place, mask=inside, other=1.0)
    factor = tl.div_rn(tl.full((ROWS, COLUMNS), 1.0, tl.float32), tl.where(peak < tiny, tiny, peak)) * largest
    factor = tl.where(peak > 0, factor, tl.where(peak == 0, 1.0, peak))  # Inf and NaN make all of it NaN
    scaled = value * factor
    bits = scaled.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    near = by_adding(magnitude, 0.0, lowest_binade, magic_exponent, clamp, 0, False, "nearest_even")
    held = tl.minimum(near, highest) | (bits & -2147483648)
    held = tl.where(magnitude > 0x7F800000, scaled, held.to(tl.float32, bitcast=True))  # which FP8 holds
    if STRAIGHT:
        tl.store(plain + row * columns + column, held.to(plain.dtype.element_ty), mask=inside)
    if TURNED:
        tl.store(turned + column * rows + row, held.to(turned.dtype.element_ty), mask=inside)
    tl.store(inverse + place, tl.div_rn(tl.full((ROWS, COLUMNS), 1.0, tl.float32), factor), mask=first)


def scaled(
    matrix: Tensor, amax: Tensor, largest: float, tiny: float, dtype: torch.dtype, *, straight: bool, turned: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The FP32 matrix in FP8, its transpose in FP8, both contiguous, and the factors that undo the scaling.

    `amax`, in FP32, has shape [1, 1], [rows, 1] or [1, columns]. Of the first two results one may be asked for alone;
    the other is empty then.
    """
    rows, columns = matrix.shape
    plain = torch.empty((rows, columns) if straight else (0, columns), dtype=dtype, device=matrix.device)
    across = torch.empty((columns, rows) if turned else (0, rows), dtype=dtype, device=matrix.device)
    amax = amax.contiguous()
    inverse = torch.empty_like(amax)
    k = _plan(dtype)
    programs = -(-rows // ROWS) * -(-columns // COLUMNS)
    launch(
        _scaled, programs, (matrix, amax, plain, across, inverse), matrix.stride(),
        (rows, columns, largest, tiny, k.lowest_binade, k.magic_exponent, k.clamp, k.largest),
        (straight, turned, amax.shape[0] > 1, amax.shape[1] > 1, ROWS, COLUMNS),
    )  # fmt: skip
    return plain, across, inverse


def _plan(dtype: torch.dtype) -> RoundingPlan:
    fmt = get(_FORMATS[dtype])
    assert isinstance(fmt, FloatFormat)
    return make_plan(fmt, CastPolicy(overflow="saturate"), SINGLE)
