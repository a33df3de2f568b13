"""Statistics and exponent histograms of tensors on a GPU: one Triton kernel for all tensors of a measurement.

Tensors are named by address. A program reads a piece of PIECE numbers of one tensor and adds its sums to the tensor's
row by atomic operations, so that each number is read once. `works` tries it; `CudaStats` goes on without it where it
fails.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from precgui.engine.device import upload
from precgui.sentences import Sentence, first_line

PIECE = 4096
BLOCK = 64
WARPS = 16  # of a program: with 4, the numbers of a piece need all registers there are, and some are spilled
BINS = 256
# Columns of the two tables of sums; the order is that of telemetry_kernels.
_WHOLE = ("amax", "least", "zeros", "nan", "pos_inf", "neg_inf", "count")
_POINTERS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


@triton.jit  # type: ignore[untyped-decorator]
def _piece(  # type: ignore[no-untyped-def]
    pieces, places, whole, sums, counts, factor, KIND: tl.constexpr, SIZE: tl.constexpr, GROUP: tl.constexpr
):  # fmt: skip
    """One piece: pieces[program] is (row, number of the piece), places[row] (address, size, stride, first block)."""
    program = tl.program_id(0)
    row = tl.load(pieces + 2 * program)
    number = tl.load(pieces + 2 * program + 1)
    address = tl.load(places + 4 * row)
    size = tl.load(places + 4 * row + 1)
    stride = tl.load(places + 4 * row + 2)
    first = tl.load(places + 4 * row + 3)
    lane = number * SIZE + tl.arange(0, SIZE)  # of the sampled numbers
    offset = ((lane // GROUP) * stride + first) * GROUP + lane % GROUP
    inside = offset < size
    if KIND == "fp32":
        read = tl.load(address.to(tl.pointer_type(tl.float32)) + offset, mask=inside, other=0.0)
    elif KIND == "bf16":
        read = tl.load(address.to(tl.pointer_type(tl.bfloat16)) + offset, mask=inside, other=0.0).to(tl.float32)
    else:
        read = tl.load(address.to(tl.pointer_type(tl.float16)) + offset, mask=inside, other=0.0).to(tl.float32)
    value = read * factor
    magnitude = value.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    finite = magnitude < 0x7F800000
    bad = magnitude > 0x7F800000
    infinite = magnitude == 0x7F800000
    kept = tl.where(finite, value, 0.0).to(tl.float64)
    at = whole + 7 * row
    tl.atomic_max(at, tl.max(tl.where(finite, magnitude, 0), axis=0))
    tl.atomic_min(at + 1, tl.min(tl.where(magnitude > 0, magnitude - 1, 0x7F800000), axis=0))
    tl.atomic_add(at + 2, tl.sum((inside & (magnitude == 0)).to(tl.int32), axis=0))
    tl.atomic_add(at + 3, tl.sum((inside & bad).to(tl.int32), axis=0))
    tl.atomic_add(at + 4, tl.sum((inside & infinite & (value > 0)).to(tl.int32), axis=0))
    tl.atomic_add(at + 5, tl.sum((inside & infinite & (value < 0)).to(tl.int32), axis=0))
    tl.atomic_add(at + 6, tl.sum(inside.to(tl.int32), axis=0))
    tl.atomic_add(sums + 2 * row, tl.sum(kept, axis=0))
    tl.atomic_add(sums + 2 * row + 1, tl.sum(kept * kept, axis=0))
    bins = tl.arange(0, 256)
    result = tl.histogram(magnitude >> 23, 256)
    result -= tl.where(bins == 0, SIZE - tl.sum(inside.to(tl.int32), axis=0), 0)  # the places outside were read as 0
    tl.atomic_add(counts + 256 * row + bins, result, mask=result > 0)


def measure(tensors: Sequence[Tensor], strides: Sequence[int], firsts: Sequence[int], factor: float) -> Tensor:
    """Rows of flat tensors on one device times `factor`: amax, least, sum, squares, zeros, NaN, +Inf, -Inf, count.

    Shape (tensors, 9 + BINS), float64, in the manner of telemetry_kernels. Nothing waits for the device.
    """
    device = tensors[0].device
    whole = torch.zeros(len(tensors), len(_WHOLE), dtype=torch.int32, device=device)
    whole[:, 1] = 0x7F800000
    sums = torch.zeros(len(tensors), 2, dtype=torch.float64, device=device)
    counts = torch.zeros(len(tensors), BINS, dtype=torch.int32, device=device)
    sizes = [tensor.numel() for tensor in tensors]
    table = [list(row) for row in zip([t.data_ptr() for t in tensors], sizes, strides, firsts, strict=True)]
    work: dict[str, Tensor] = {}
    for dtype, kind in _POINTERS.items():
        own = [row for row, tensor in enumerate(tensors) if tensor.dtype is dtype and tensor.numel()]
        if own:
            work[kind] = _pieces(own, [sizes[row] for row in own], [strides[row] for row in own])
    places, *pieces = _uploaded([torch.tensor(table, dtype=torch.int64), *work.values()], device)
    for kind, own_pieces in zip(work, pieces, strict=True):
        with _current(device):
            _piece[(len(own_pieces),)](
                own_pieces, places, whole, sums, counts, factor, kind, PIECE, BLOCK, num_warps=WARPS
            )
    parts: list[Any] = [whole[:, :2].double(), sums, _unsigned(whole[:, 2:]), _unsigned(counts)]
    return torch.cat(parts, 1)


def _unsigned(counts: Tensor) -> Tensor:
    """Counts below 2^32, which the kernel adds up in 32 bits, as float64."""
    return (counts.long() & 0xFFFFFFFF).double()


def _uploaded(tables: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Tables of integers on the device, by one copy. Their rows of 16 or 32 bytes keep each of them aligned."""
    together = upload(torch.cat([table.reshape(-1) for table in tables]), device)
    parts = together.split([table.numel() for table in tables])
    return [part.view(table.shape) for part, table in zip(parts, tables, strict=True)]


def _current(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Triton launches on the current device, whatever the device of the operands."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def _pieces(rows: Sequence[int], sizes: Sequence[int], strides: Sequence[int]) -> Tensor:
    """(row, number of the piece) for all pieces of some tensors, int64 of shape (pieces, 2)."""
    sampled = -(-np.array(sizes) // (np.array(strides) * BLOCK)) * BLOCK
    each = -(-sampled // PIECE)
    numbers = np.arange(each.sum()) - np.repeat(each.cumsum() - each, each)
    return torch.from_numpy(np.stack((np.repeat(np.array(rows), each), numbers), 1).astype(np.int64))


def reads(tensor: Tensor) -> bool:
    """Whether the kernel reads this type."""
    return tensor.dtype in _POINTERS


def works(device: torch.device) -> bool:
    """Whether the kernel compiles for the device and counts right there; why not, is logged."""
    odd = torch.tensor([0.0, 1.5, -3.0, 2.0**-130, torch.inf, -torch.inf, torch.nan], device=device)
    try:
        row = measure([odd], [1], [0], 1.0)[0].tolist()
    except Exception as error:  # noqa: BLE001  # of compilers, linkers and loaders, which know no common class
        logging.getLogger(__name__).warning(
            "%s",
            Sentence(
                "tensors are measured by more than one operation each, because no kernel can be built for this GPU: "
                "{error}",
                error=first_line(error),
            ),
        )
        return False
    histogram = {place: count for place, count in enumerate(row[9:]) if count}
    return row[2:9] == [-1.5, 11.25, 1, 1, 1, 1, 7] and histogram == {0: 2, 127: 1, 128: 1, 255: 3}
