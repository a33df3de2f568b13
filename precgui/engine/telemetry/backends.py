"""Backends that measure tensors: compiled loops on the CPU, torch operations without synchronisation elsewhere."""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from precgui.engine.device import has_fp64
from precgui.engine.dtype_names import dtype_name
from precgui.engine.telemetry import cpu_kernels as k
from precgui.engine.telemetry.readable import are_plain, dense, readable, single
from precgui.engine.telemetry.statistics import Rows, StatisticsTable, empty, finished, half_ulps
from precgui.engine.torch_private import current_stream_number, foreach_norm

SMALL = 4096  # elements, below which a tensor is always measured in full
_KINDS = {torch.float32: k.FLOAT32, torch.bfloat16: k.BFLOAT16}  # what the loops read; other types are cast before
_INF, _MAGNITUDE = 0x7F800000, 0x7FFFFFFF
_GOLDEN = 0x9E3779B1  # 2^32 / 1.618
_DTYPE, _DEVICE = attrgetter("dtype"), attrgetter("device")
_ROWS_IN_TURN = 64  # in a table, of 136 KiB
_NO_ROWS = torch.empty(0, device="cpu")


class StatsBackend(Protocol):
    """Measures readable tensors of any type, order and size; `stride` k reads every k-th block."""

    def measure(self, tensors: Sequence[Tensor], strides: Sequence[int], tick: int, factor: float = 1.0) -> Any:
        """Rows of WIDTH numbers, one for each tensor, of the tensor times `factor`; see `fetched`."""
        ...

    def compiling_s(self) -> float:
        """CPU seconds so far in which the calling thread has made kernels ready; no part of what measurements cost."""
        ...

    def in_turn(self) -> RowsInTurn:
        """Rows of tensors that come one by one."""
        ...

    def norms(self, tensors: Sequence[Tensor]) -> Tensor:
        """The L2 norm of each, NaN or Inf where an element is; shape (tensors,), still on the device."""
        ...

    def keep(self, tensors: Sequence[Tensor], strides: Sequence[int], tick: int) -> Any:
        """Copies of the sampled blocks, for `compare`."""
        ...

    def compare(self, tensors: Sequence[Tensor], strides: Sequence[int], tick: int, kept: Any) -> Any:
        """Rows on what was added to the tensors since `keep` with the same strides and tick."""
        ...


def stats_backend_for(device: torch.device) -> StatsBackend:
    return CpuStats() if device.type == "cpu" else CudaStats(device, _fused_for(device))


def _fused_for(device: torch.device) -> ModuleType | None:
    """`engine.telemetry.triton_kernels` where there is a Triton that can do it."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return None
    fused = importlib.import_module("precgui.engine.telemetry.triton_kernels")
    return fused if fused.works(device) else None


def stride_for(size: int, stride: int) -> int:
    """The stride for a tensor of `size` elements: a power of two of at most `stride`, 1 for small tensors."""
    return min(stride, 1 << max(0, (size // SMALL).bit_length() - 1)) if size >= SMALL else 1


def listed(kind: str, named: Sequence[tuple[str, Tensor]], stride: int) -> tuple[list[Tensor], StatisticsTable]:
    """The tensors that can be read, and the table of their statistics, with a stride for each."""
    if are_plain([tensor for _, tensor in named]):
        results: list[tuple[str, Tensor, Tensor | None]] = [(name, tensor, tensor) for name, tensor in named]
    else:
        results = [(name, tensor, readable(tensor)) for name, tensor in named]
    rows = [(name, tensor, values) for name, tensor, values in results if values is not None and values.numel()]
    tensors = [values for _, _, values in rows]
    sizes = [tensor.numel() for tensor in tensors]
    strides = [stride_for(size, stride) for size in sizes] if stride > 1 else [1] * len(sizes)
    dtypes = [dtype_name(tensor.dtype) for _, tensor, _ in rows]
    return tensors, StatisticsTable(kind, [name for name, _, _ in rows], strides, sizes, dtypes)


def _blocks(tensor: Tensor, stride: int, first: int) -> Tensor:
    """The sampled elements, flat: every `stride`-th block from block `first` on."""
    flat = dense(tensor)
    if stride == 1:
        return flat
    whole = flat.numel() // k.BLOCK
    kept = flat[: whole * k.BLOCK].view(-1, k.BLOCK)[first::stride].reshape(-1)
    has_tail = flat.numel() % k.BLOCK and whole % stride == first
    return torch.cat((kept, flat[whole * k.BLOCK :])) if has_tail else kept


def _first(stride: Any, tick: int) -> Any:
    """The first block of a tensor (of each of an array): it varies, so that all elements are sampled over the steps.

    By the golden section, which covers all blocks whether every step is measured or one of 2, 10 or 64.
    """
    return (tick * _GOLDEN & 0xFFFFFFFF) * stride >> 32


def _firsts(strides: Sequence[int], tick: int) -> list[int]:
    return [_first(stride, tick) for stride in strides]


def _difference(now: Tensor, before: Tensor) -> Tensor:
    """The difference in FP32, but in FP64 for FP64 tensors: a small change of a large number would vanish."""
    if now.dtype is torch.float64:
        return single(now - before)
    return now.float() - before.float()


def fetched(rows: Sequence[Any]) -> list[Rows]:
    """Rows, or real numbers of any shape, as NumPy arrays in one transfer; arrays fetched before stay.

    The host waits once, for the device of the first tensor that is not in main memory.
    """
    return Transfer(rows).arrays()


class Transfer:
    """The same, but on CUDA nothing waits for the device before `arrays` does, for the work queued so far."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self._rows, self._numbers = rows, _together(rows)
        self._done: torch.Event | None = None
        self.waited_s = 0.0  # CPU time of `arrays` in which the device was waited for: torch asks it again and again
        if self._numbers is not None and self._numbers.is_cuda:
            together, device = self._numbers, self._numbers.device
            self._numbers = torch.empty(together.shape, dtype=together.dtype, device="cpu", pin_memory=True)
            self._numbers.copy_(together, non_blocking=True)
            self._done = torch.Event(device)
            self._done.record(torch.accelerator.current_stream(device))

    def arrays(self) -> list[Rows]:
        """See `fetched`."""
        begin = time.thread_time()
        if self._done is not None:
            self._done.synchronize()
        numbers = self._numbers if self._numbers is None else self._numbers.cpu()
        self.waited_s = time.thread_time() - begin if numbers is not None else 0.0
        return _apart(self._rows, numbers)


def _together(rows: Sequence[Any]) -> Tensor | None:
    """All numbers that are not in main memory, on the device of the first; None where there are none."""
    tensors = [part.detach() for part in rows if isinstance(part, Tensor) and not part.is_cpu]
    if not tensors:
        return None
    place = tensors[0].device
    dtype = torch.float64 if has_fp64(place) else torch.float32
    return torch.cat([part.to(place, dtype).reshape(-1) for part in tensors])


def _apart(rows: Sequence[Any], together: Tensor | None) -> list[Rows]:
    """The rows as arrays; `together`, in main memory, has the numbers of those that were not."""
    sizes = [part.numel() for part in rows if isinstance(part, Tensor) and not part.is_cpu]
    parts = iter([] if together is None else np.split(together.double().numpy(), np.cumsum(sizes)[:-1]))
    return [
        part if not isinstance(part, Tensor) else _array(part) if part.is_cpu else next(parts).reshape(part.shape)
        for part in rows
    ]


def _array(tensor: Tensor) -> Rows:
    """A copy of a tensor in main memory."""
    return tensor.detach().to(torch.float64, copy=True).numpy()


def device_norms(tensors: Sequence[Tensor]) -> Tensor:
    """The L2 norm of each, by torch, in FP32 at least; on the device of the first."""
    dtypes, devices = set(map(_DTYPE, tensors)), set(map(_DEVICE, tensors))
    if any(dtype.is_complex for dtype in dtypes):
        tensors = [torch.view_as_real(each.resolve_conj()) if each.is_complex() else each for each in tensors]
    wide = not dtypes.isdisjoint((torch.float64, torch.complex128))
    norms = foreach_norm(list(tensors), dtype=torch.float64 if wide else torch.float32)
    return torch.stack(norms if len(devices) == 1 else [norm.to(norms[0].device) for norm in norms])


class RowsInTurn:
    """Rows of tensors that are measured one by one, as hooks meet them."""

    def __init__(self, meter: StatsBackend) -> None:
        self._meter = meter
        self._parts: list[Any] = []

    def add(self, tensor: Tensor, stride: int, tick: int, factor: float) -> None:
        """Measure a tensor; its row is the next one."""
        self._parts.append(self._meter.measure([tensor], [stride], tick, factor))

    def rows(self) -> Any:
        """All rows, as from one call of `measure`."""
        parts = self._parts
        if len(parts) == 1:
            return parts[0]
        if isinstance(parts[0], np.ndarray):
            return np.concatenate(parts)
        return torch.cat([part.to(parts[0].device) for part in parts])  # of a model on several devices


class CpuStats:
    """Numba loops over the memory of the tensors."""

    def __init__(self) -> None:
        self._halves = half_ulps()
        probe = [torch.ones(3, dtype=torch.float32, device="cpu")]  # loads the loops before they are timed
        self.compare(probe, [1], 0, self.keep(probe, [1], 0))
        finished(StatisticsTable("gradient", [""], [1], [3]), self.measure(probe, [1], 0), 0, 0.0)

    def measure(self, tensors: Sequence[Tensor], strides: Sequence[int], tick: int, factor: float = 1.0) -> Rows:
        places, _alive = self._places(tensors, strides, tick)
        rows = empty(len(tensors))
        k.measure(*places, factor, rows)
        return rows

    def compiling_s(self) -> float:
        return 0.0

    def in_turn(self) -> RowsInTurn:
        return RowsInTurn(self)

    def norms(self, tensors: Sequence[Tensor]) -> Tensor:
        if not all(tensor.is_cpu and tensor.dtype in _KINDS for tensor in tensors):
            return device_norms(tensors)
        (addresses, sizes, kinds, *_), _alive = self._places(tensors, [1] * len(tensors), 0)
        sums = np.empty(len(tensors))
        k.squares(addresses, sizes, kinds, sums)
        return torch.from_numpy(np.sqrt(sums))

    def keep(self, tensors: Sequence[Tensor], strides: Sequence[int], tick: int) -> Any:
        places, _alive = self._places(tensors, strides, tick)
        kept = np.empty(int(places[1].sum()) if len(tensors) else 0, np.float32)
        k.sample(*places, kept)
        doubles = {
            place: _blocks(tensor, strides[place], _first(strides[place], tick)).clone()
            for place, tensor in enumerate(tensors)
            if tensor.dtype is torch.float64
        }
        return kept, doubles

    def compare(self, tensors: Sequence[Tensor], strides: Sequence[int], tick: int, kept: Any) -> Rows:
        before, doubles = kept
        tensors, strides = list(tensors), list(strides)
        for place, double in doubles.items():
            now = _blocks(tensors[place], strides[place], _first(strides[place], tick))
            tensors[place], strides[place] = _difference(now, double), 1
        places, _alive = self._places(tensors, strides, tick)
        places[2][list(doubles)] = k.CHANGE
        rows = empty(len(tensors))
        k.compare(*places, before, self._halves, rows)
        return rows

    def _places(
        self, tensors: Sequence[Tensor], strides: Sequence[int], tick: int
    ) -> tuple[tuple[NDArray[np.int64], ...], list[Tensor]]:
        """Addresses, sizes, strides and first blocks, and the objects that keep the addresses valid."""
        alive = [tensor if tensor.is_cpu else tensor.cpu() for tensor in tensors]  # of a model on several devices
        requested = np.array(strides, np.int64)
        firsts = _first(requested, tick)
        for place, tensor in enumerate(alive):
            if tensor.dtype not in _KINDS:
                alive[place] = single(_blocks(tensor, strides[place], int(firsts[place])))
                requested[place], firsts[place] = 1, 0
            elif not tensor.is_contiguous():
                alive[place] = dense(tensor)
        addresses = np.array(list(map(Tensor.data_ptr, alive)), np.int64)
        sizes = np.array(list(map(Tensor.numel, alive)), np.int64)
        kinds = np.array([_KINDS[tensor.dtype] for tensor in alive], np.int64)
        return (addresses, sizes, kinds, requested, firsts), alive


class CudaStats:
    """torch operations on the tensor's device, or one kernel for all tensors; nothing waits for it before `fetched`."""

    def __init__(self, device: torch.device, fused: ModuleType | None = None) -> None:
        """`fused` is `engine.telemetry.triton_kernels`, where it works."""
        self._device, self._fused = device, fused
        self._wide = torch.float64 if has_fp64(device) else torch.float32
        self._halves = half_ulps().tolist()

    def measure(self, tensors: Sequence[Tensor], strides: Sequence[int], tick: int, factor: float = 1.0) -> Tensor:
        devices = [tensor.device for tensor in tensors]
        if len(set(devices)) > 1:  # of a model on several devices
            return self._measure_apart(tensors, strides, tick, factor)
        if self._fused is not None and self._reads(tensors):
            rows: Tensor = self._fused.measure(_packed(tensors), strides, _firsts(strides, tick), factor)
            return rows
        samples = [single(blocks) for blocks in self._sampled_blocks(tensors, strides, tick)]
        with _any_algorithm():
            return torch.stack([self._row(sample * factor if factor != 1 else sample) for sample in samples])

    def _measure_apart(self, tensors: Sequence[Tensor], strides: Sequence[int], tick: int, factor: float) -> Tensor:
        """As `measure`: the tensors of each device by themselves, their rows on the device of this object."""
        rows: list[Tensor] = [torch.empty(0)] * len(tensors)
        for device in {tensor.device for tensor in tensors}:
            own = [place for place, tensor in enumerate(tensors) if tensor.device == device]
            measured = self.measure([tensors[n] for n in own], [strides[n] for n in own], tick, factor)
            for place, row in zip(own, measured.to(self._device), strict=True):
                rows[place] = row
        return torch.stack(rows)

    def norms(self, tensors: Sequence[Tensor]) -> Tensor:
        return device_norms(tensors)

    def compiling_s(self) -> float:
        return 0.0 if self._fused is None else float(self._fused.compiling_s())

    def in_turn(self) -> RowsInTurn:
        return RowsInTurn(self) if self._fused is None else FusedRowsInTurn(self, self._device, self._fused)

    def keep(self, tensors: Sequence[Tensor], strides: Sequence[int], tick: int) -> list[Tensor] | _Kept:
        if self._fused is not None and self._reads(tensors):
            packed = _packed(tensors)
            return _Kept(_sizes(tensors), self._fused.keep(packed, strides, _firsts(strides, tick)))
        return [blocks.clone() for blocks in self._sampled_blocks(tensors, strides, tick)]

    def compare(self, tensors: Sequence[Tensor], strides: Sequence[int], tick: int, kept: Any) -> Tensor:
        if isinstance(kept, _Kept) and self._fused is not None:
            if kept.sizes != _sizes(tensors):
                raise ValueError("the tensors to compare are not those that were kept")
            read = [each if self._fused.reads(each) else single(each) for each in tensors]  # of a type of its own now
            there = _packed([each.to(self._device) for each in read])
            changes: Tensor = self._fused.compare(there, strides, _firsts(strides, tick), kept.numbers)
            return changes
        now = self._sampled_blocks(tensors, strides, tick)
        with _any_algorithm():
            pairs = zip(now, kept, strict=True)
            rows = [self._changed_row(_difference(new, old), single(old)) for new, old in pairs]
            return torch.stack([row.to(self._device) for row in rows])

    def _reads(self, tensors: Sequence[Tensor]) -> bool:
        """Whether the fused kernels read these: all in types that they know, on this device."""
        reads, device = self._fused.reads, self._device  # type: ignore[union-attr]
        return bool(tensors) and all(tensor.device == device and reads(tensor) for tensor in tensors)

    @staticmethod
    def _sampled_blocks(tensors: Sequence[Tensor], strides: Sequence[int], tick: int) -> list[Tensor]:
        return [_blocks(tensor, stride, _first(stride, tick)) for tensor, stride in zip(tensors, strides, strict=True)]

    def _row(self, values: Tensor, changes: Sequence[Tensor] = ()) -> Tensor:
        bits = values.view(torch.int32) & _MAGNITUDE
        finite = bits < _INF
        kept = torch.where(finite, values, 0).to(self._wide)
        none = kept.new_zeros(1)
        amax = torch.cat((torch.where(finite, bits, 0).to(self._wide), none)).amax()
        least = torch.cat((torch.where(bits > 0, bits - 1, _INF).to(self._wide), none + float(_INF))).amin()
        sums = [
            amax, least, kept.sum(), kept.square().sum(), (bits == 0).sum(), (bits > _INF).sum(),
            torch.isposinf(values).sum(), torch.isneginf(values).sum(), none[0] + values.numel(), *changes,
        ]  # fmt: skip
        sums += [none[0]] * (k.SUMS - len(sums))
        return torch.cat((torch.stack([each.to(self._wide) for each in sums]), self._histogram(bits >> 23)))

    def _changed_row(self, change: Tensor, old: Tensor) -> Tensor:
        exponent = (change.view(torch.int32) & _MAGNITUDE) >> 23
        binade = (old.view(torch.int32) & _MAGNITUDE) >> 23
        moved = (change.view(torch.int32) & _MAGNITUDE) != 0
        lost = [((exponent < (binade - down).clamp(min=low)) & moved).sum() for low, down in self._halves]
        return self._row(change, [moved.sum(), *lost])

    def _histogram(self, exponents: Tensor) -> Tensor:
        counted = exponents if exponents.device.type == "cuda" else exponents.to(self._wide)
        return torch.histc(counted, k.BINS, 0, k.BINS).to(self._wide)


class _Kept(NamedTuple):
    """Numbers that the fused kernel has kept, and the tensors that they are of."""

    sizes: list[int]
    numbers: Tensor


class FusedRowsInTurn(RowsInTurn):
    """One launch for each tensor, into rows of one table; others as `RowsInTurn`."""

    def __init__(self, meter: StatsBackend, device: torch.device, fused: ModuleType) -> None:
        super().__init__(meter)
        self._device, self._fused = device, fused
        self._table, self._used, self._stream = _NO_ROWS, 0, 0

    def add(self, tensor: Tensor, stride: int, tick: int, factor: float) -> None:
        if tensor.device != self._device or not self._fused.reads(tensor):
            self._end_table()
            super().add(tensor, stride, tick, factor)
            return
        stream = current_stream_number(self._device)  # on another one a launch may come before the table is there
        if self._used == len(self._table) or stream != self._stream:
            self._end_table()
            self._table, self._stream = self._fused.empty_rows(_ROWS_IN_TURN, self._device), stream
        (packed,) = _packed([tensor])
        self._fused.measure_alone(packed, stride, _first(stride, tick), factor, self._table, self._used)
        self._used += 1

    def rows(self) -> Any:
        self._end_table()
        return super().rows()

    def _end_table(self) -> None:
        if self._used:
            self._parts.append(self._table[: self._used])
        self._table, self._used = _NO_ROWS, 0


def _packed(tensors: Sequence[Tensor]) -> list[Tensor]:
    """As `dense`, but those that are so in their own order stay as they are: their address is all that is asked for."""
    return [tensor if tensor.is_contiguous() and not tensor.is_neg() else dense(tensor) for tensor in tensors]


def _sizes(tensors: Sequence[Tensor]) -> list[int]:
    return list(map(Tensor.numel, tensors))


@contextmanager
def _any_algorithm() -> Iterator[None]:
    """Counting gives the same result in any order, also where torch's deterministic mode refuses it."""
    strict, warn = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(strict, warn_only=warn)
