"""Statistics and exponent histograms of tensors on a GPU: one Triton kernel for all tensors of a measurement.

Tensors are named by address. A program reads a piece of PIECE numbers of one tensor and adds its sums to the tensor's
row by atomic operations, so that each number is read once. A tensor that a hook sees alone goes by its address as an
argument, without tables, because tables take the host longer than the launch. `works` tries all of them; `CudaStats`
goes on without them where they fail.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from precgui.engine.device import upload
from precgui.engine.telemetry import cpu_kernels as k
from precgui.engine.telemetry.statistics import WIDTH, half_ulps
from precgui.sentences import Sentence, first_line

PIECE = 4096
BLOCK = 64
WARPS = 16  # of a program: with 4, the numbers of a piece need all registers there are, and some are spilled
_WARPS_OF_CHANGES = WARPS if torch.version.hip else 2 * WARPS  # which hold more numbers; ROCm has no more threads
_NO_LEAST = 0x7F800000  # the LEAST of no numbers
_POINTERS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
_AS_THEY_ARE = ("address", "size", "stride", "first", "row")  # arguments whose values Triton builds no variants for


@triton.jit  # type: ignore[untyped-decorator]
def _read(address, offset, inside, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """Numbers of a tensor in FP32, 0 where a place is not `inside`."""
    address = address.to(tl.int64)  # an argument below 2^32 has 32 bits, which make no pointer
    if KIND == "fp32":
        read = tl.load(address.to(tl.pointer_type(tl.float32)) + offset, mask=inside, other=0.0)
    elif KIND == "bf16":
        read = tl.load(address.to(tl.pointer_type(tl.bfloat16)) + offset, mask=inside, other=0.0).to(tl.float32)
    else:
        read = tl.load(address.to(tl.pointer_type(tl.float16)) + offset, mask=inside, other=0.0).to(tl.float32)
    return read


@triton.jit  # type: ignore[untyped-decorator]
def _add(at, value, inside, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add numbers to the row that begins `at`, whose columns are those of cpu_kernels.

    Positive FP64 numbers are in the order of their bits, so that extremes are those of integers.
    """
    magnitude = value.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    finite = magnitude < 0x7F800000
    bad = magnitude > 0x7F800000
    infinite = magnitude == 0x7F800000
    kept = tl.where(finite, value, 0.0).to(tl.float64)
    bits = at.to(tl.pointer_type(tl.int64), bitcast=True)
    largest = tl.max(tl.where(finite, magnitude, 0), axis=0)
    least = tl.min(tl.where(magnitude > 0, magnitude - 1, 0x7F800000), axis=0)
    count = tl.sum(inside.to(tl.int32), axis=0)
    tl.atomic_max(bits, largest.to(tl.float64).to(tl.int64, bitcast=True))
    tl.atomic_min(bits + 1, least.to(tl.float64).to(tl.int64, bitcast=True))
    tl.atomic_add(at + 2, tl.sum(kept, axis=0))
    tl.atomic_add(at + 3, tl.sum(kept * kept, axis=0))
    tl.atomic_add(at + 4, tl.sum((inside & (magnitude == 0)).to(tl.int32), axis=0).to(tl.float64))
    tl.atomic_add(at + 5, tl.sum((inside & bad).to(tl.int32), axis=0).to(tl.float64))
    tl.atomic_add(at + 6, tl.sum((inside & infinite & (value > 0)).to(tl.int32), axis=0).to(tl.float64))
    tl.atomic_add(at + 7, tl.sum((inside & infinite & (value < 0)).to(tl.int32), axis=0).to(tl.float64))
    tl.atomic_add(at + 8, count.to(tl.float64))
    bins = tl.arange(0, 256)
    result = tl.histogram(magnitude >> 23, 256)
    result -= tl.where(bins == 0, SIZE - count, 0)  # the places outside were read as 0
    tl.atomic_add(at + 15 + bins, result.to(tl.float64), mask=result > 0)


@triton.jit  # type: ignore[untyped-decorator]
def _piece(  # type: ignore[no-untyped-def]
    pieces, places, rows, factor, KIND: tl.constexpr, SIZE: tl.constexpr, GROUP: tl.constexpr
):  # fmt: skip
    """One piece: pieces[program] is (row, number of the piece), places[row] is
    (address, size, stride, first block, place of the first sampled number among those of all tensors)."""
    program = tl.program_id(0)
    row = tl.load(pieces + 2 * program)
    number = tl.load(pieces + 2 * program + 1)
    address = tl.load(places + 5 * row)
    size = tl.load(places + 5 * row + 1)
    stride = tl.load(places + 5 * row + 2)
    first = tl.load(places + 5 * row + 3)
    lane = number * SIZE + tl.arange(0, SIZE)  # of the sampled numbers
    offset = ((lane // GROUP) * stride + first) * GROUP + lane % GROUP
    inside = offset < size
    _add(rows + 271 * row, _read(address, offset, inside, KIND) * factor, inside, SIZE)


@triton.jit(do_not_specialize=_AS_THEY_ARE)  # type: ignore[untyped-decorator]
def _alone(  # type: ignore[no-untyped-def]
    rows, address, size, stride, first, row, factor, KIND: tl.constexpr, SIZE: tl.constexpr, GROUP: tl.constexpr
):  # fmt: skip
    """One piece of a tensor that is measured alone."""
    lane = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    offset = ((lane // GROUP) * stride + first) * GROUP + lane % GROUP
    inside = offset < size
    _add(rows + 271 * row, _read(address, offset, inside, KIND) * factor, inside, SIZE)


@triton.jit  # type: ignore[untyped-decorator]
def _keep(  # type: ignore[no-untyped-def]
    pieces, places, kept, KIND: tl.constexpr, SIZE: tl.constexpr, GROUP: tl.constexpr
):  # fmt: skip
    """Copy the sampled numbers of one piece to `kept`."""
    program = tl.program_id(0)
    row = tl.load(pieces + 2 * program)
    number = tl.load(pieces + 2 * program + 1)
    address = tl.load(places + 5 * row)
    size = tl.load(places + 5 * row + 1)
    stride = tl.load(places + 5 * row + 2)
    first = tl.load(places + 5 * row + 3)
    begin = tl.load(places + 5 * row + 4)
    lane = number * SIZE + tl.arange(0, SIZE)
    offset = ((lane // GROUP) * stride + first) * GROUP + lane % GROUP
    inside = offset < size
    tl.store(kept + begin + lane, _read(address, offset, inside, KIND), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _change(  # type: ignore[no-untyped-def]
    pieces, places, kept, halves, rows, KIND: tl.constexpr, SIZE: tl.constexpr, GROUP: tl.constexpr
):  # fmt: skip
    """The change of the sampled numbers of one piece since `_keep`; `halves` are those of cpu_kernels.compare."""
    program = tl.program_id(0)
    row = tl.load(pieces + 2 * program)
    number = tl.load(pieces + 2 * program + 1)
    address = tl.load(places + 5 * row)
    size = tl.load(places + 5 * row + 1)
    stride = tl.load(places + 5 * row + 2)
    first = tl.load(places + 5 * row + 3)
    begin = tl.load(places + 5 * row + 4)
    lane = number * SIZE + tl.arange(0, SIZE)
    offset = ((lane // GROUP) * stride + first) * GROUP + lane % GROUP
    inside = offset < size
    old = tl.load(kept + begin + lane, mask=inside, other=0.0)
    value = _read(address, offset, inside, KIND) - old
    at = rows + 271 * row
    magnitude = value.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    moved = inside & (magnitude != 0)
    exponent = magnitude >> 23
    binade = (old.to(tl.int32, bitcast=True) & 0x7FFFFFFF) >> 23
    tl.atomic_add(at + 9, tl.sum(moved.to(tl.int32), axis=0).to(tl.float64))
    for place in tl.static_range(5):
        low = tl.load(halves + 2 * place)
        down = tl.load(halves + 2 * place + 1)
        lost = moved & (exponent < tl.maximum(binade - down, low))
        tl.atomic_add(at + 10 + place, tl.sum(lost.to(tl.int32), axis=0).to(tl.float64))
    _add(at, value, inside, SIZE)


def measure(tensors: Sequence[Tensor], strides: Sequence[int], firsts: Sequence[int], factor: float) -> Tensor:
    """Rows of contiguous tensors on one device times `factor`, in the manner of cpu_kernels, without changes.

    Shape (tensors, WIDTH), float64. Nothing waits for the device.
    """
    rows = empty_rows(len(tensors), tensors[0].device)
    for kind, pieces, places in _tables(tensors, strides, firsts):
        _launch(_piece, len(pieces), rows.device, kind, pieces, places, rows, factor)
    return rows


def measure_alone(tensor: Tensor, stride: int, first: int, factor: float, rows: Tensor, row: int) -> None:
    """The same, of one tensor, into a row of `empty_rows`."""
    size, kind = tensor.numel(), _POINTERS[tensor.dtype]
    programs = -(-_sampled(size, stride) // PIECE)
    _launch(_alone, programs, rows.device, kind, rows, tensor.data_ptr(), size, stride, first, row, factor)


def keep(tensors: Sequence[Tensor], strides: Sequence[int], firsts: Sequence[int]) -> Tensor:
    """The sampled numbers of contiguous tensors on one device in FP32, for `compare`."""
    device = tensors[0].device
    room = sum(_sampled(tensor.numel(), stride) for tensor, stride in zip(tensors, strides, strict=True))
    kept = torch.empty(room, dtype=torch.float32, device=device)
    for kind, pieces, places in _tables(tensors, strides, firsts):
        _launch(_keep, len(pieces), device, kind, pieces, places, kept)
    return kept


def compare(tensors: Sequence[Tensor], strides: Sequence[int], firsts: Sequence[int], kept: Tensor) -> Tensor:
    """Rows on what was added to the tensors since `keep`, in which they had the same sizes, strides and firsts."""
    rows = empty_rows(len(tensors), tensors[0].device)
    halves = _halves(rows.device)
    for kind, pieces, places in _tables(tensors, strides, firsts):
        _launch(_change, len(pieces), rows.device, kind, pieces, places, kept, halves, rows)
    return rows


class _FirstLaunches:
    """The kernels that are ready, and the CPU seconds that the first launches have taken."""

    def __init__(self) -> None:
        self.known: set[tuple[int, torch.device, str]] = set()
        self.seconds = 0.0


_first_launches = _FirstLaunches()


def _launch(kernel: Any, programs: int, device: torch.device, kind: str, *operands: Any) -> None:
    """Launch a kernel for numbers of a type; the first time, Triton compiles it or loads it from its cache."""
    begin, this = time.thread_time(), (id(kernel), device, kind)
    with _current(device):
        kernel[(programs,)](*operands, kind, PIECE, BLOCK, num_warps=_WARPS_OF_CHANGES if kernel is _change else WARPS)
    if this not in _first_launches.known:
        _first_launches.known.add(this)
        _first_launches.seconds += time.thread_time() - begin


def compiling_s() -> float:
    """CPU seconds so far of the first launch of each kernel, which are no part of what a measurement costs."""
    return _first_launches.seconds


def empty_rows(count: int, device: torch.device) -> Tensor:
    """Rows to which nothing was added yet."""
    return _empty_row(device).expand(count, WIDTH).clone(memory_format=torch.contiguous_format)


@functools.cache
def _empty_row(device: torch.device) -> Tensor:
    row = torch.zeros(1, WIDTH, dtype=torch.float64, device="cpu")
    row[0, k.LEAST] = _NO_LEAST
    return upload(row, device)


@functools.cache
def _halves(device: torch.device) -> Tensor:
    return upload(torch.from_numpy(half_ulps()), device)


def _sampled(size: int, stride: int) -> int:
    """The most elements of a tensor that are read, with those of a last block that has fewer."""
    return -(-size // (stride * BLOCK)) * BLOCK


def _tables(
    tensors: Sequence[Tensor], strides: Sequence[int], firsts: Sequence[int]
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """For each type among the tensors its name and the tables `pieces` and `places`, all of them uploaded together.

    Rows of `pieces` have 16 bytes, which keeps each table aligned.
    """
    sizes = np.array([tensor.numel() for tensor in tensors])
    sampled = -(-sizes // (np.array(strides) * BLOCK)) * BLOCK
    each = -(-sampled // PIECE)
    addresses = [tensor.data_ptr() for tensor in tensors]
    places = np.stack((np.array(addresses, np.int64), sizes, strides, firsts, sampled.cumsum() - sampled), 1)
    dtypes = [tensor.dtype for tensor in tensors]
    tables, kinds = [], []
    for dtype in dict.fromkeys(dtypes):
        own = np.flatnonzero([each is dtype for each in dtypes] & (sizes > 0))
        if own.size:
            kinds.append(_POINTERS[dtype])
            tables.append(_pieces(own, each[own]))
    together = torch.from_numpy(np.concatenate([part.reshape(-1) for part in (*tables, places)]))
    *uploaded, places_there = upload(together, tensors[0].device).split([part.size for part in (*tables, places)])
    for kind, pieces in zip(kinds, uploaded, strict=True):
        yield kind, pieces.view(-1, 2), places_there.view(-1, 5)


def _pieces(rows: Any, each: Any) -> Any:
    """(row, number of the piece) for all pieces of some tensors, which have `each` so many; shape (pieces, 2)."""
    numbers = np.arange(each.sum()) - np.repeat(each.cumsum() - each, each)
    return np.stack((np.repeat(rows, each), numbers), 1)


def _current(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Triton launches on the current device, whatever the device of the operands."""
    if device.type != "cuda" or torch.cuda.current_device() == device.index:
        return contextlib.nullcontext()
    return torch.cuda.device(device)


def reads(tensor: Tensor) -> bool:
    """Whether the kernels read this type."""
    return tensor.dtype in _POINTERS


def works(device: torch.device) -> bool:
    """Whether the kernels compile for the device and count right there; why not, is logged."""
    odd = torch.tensor([0.0, 1.5, -3.0, 2.0**-130, torch.inf, -torch.inf, torch.nan], device=device)
    try:
        rows = measure([odd], [1], [0], 1.0)
        measure_alone(odd, 1, 0, 1.0, alone := empty_rows(1, device), 0)
        changes = compare([odd + 1], [1], [0], keep([odd], [1], [0]))
        row, same, change = torch.cat((rows, alone, changes)).tolist()
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
    histogram = {place: count for place, count in enumerate(row[k.SUMS :]) if count}
    right = row[k.SUM : k.CHANGED] == [-1.5, 11.25, 1, 1, 1, 1, 7] and histogram == {0: 2, 127: 1, 128: 1, 255: 3}
    return right and same == row and change[k.SUM : k.LOST] == [4, 4, 0, 3, 0, 0, 7, 7]
