"""Measures the cost of telemetry: CPU time of the calling thread, on a GPU also the time of the device."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch

_ROWS_OF_A_PIECE = 64  # tensors that the run file compresses together
_MARKED = 7  # one of so many tensors that are measured alone is timed on the device; no divisor of many layers' parts
_PIECES_OF_A_ROW, _TENSORS_OF_A_PIECE = 2.0, 18.0  # measured with rows of 6 to 200 tensors


class CostMeter:
    """Adds up seconds by name; `take` returns the sums since its last call.

    Where the device works on its own, both times are taken and the longer one counts: the device is timed by marks in
    its queue, which are read when the results have been fetched and cost no waiting. CPU time in which a thread only
    waits for the device is no cost: the device is at work for the training.
    """

    OF_STEP: ClassVar[tuple[str, ...]] = ("_host_s", "_marks", "_begin_s")

    def __init__(self, device: torch.device, compiling_s: Callable[[], float] = lambda: 0.0) -> None:
        """`compiling_s` gives the seconds so far in which kernels were made ready, which are no cost either."""
        self.compiling_s = compiling_s
        self._device = device if device.type == "cuda" else None
        self._waited_s = 0.0  # so far, by the thread of the training
        self._alone = 0  # measurements of `booked_alone` so far
        self.begin_step()

    def worked_s(self) -> float:
        """CPU seconds of the calling thread, the one of the training, without those in which it only waited."""
        return time.thread_time() - self._waited_s - self.compiling_s()

    def waited(self, seconds: float) -> None:
        """So many of them were a wait for the device."""
        self._waited_s += seconds

    def begin_step(self) -> None:
        """Forget what has not been taken."""
        self._host_s: dict[str, float] = {}
        self._marks: list[tuple[str, Any, Any, float]] = []
        self._begin_s = self.worked_s()

    def busy_s(self, step_s: float, now_s: float) -> float:
        """The part of a step of `step_s` to which costs are compared: without the time in which others had the CPU."""
        return step_s if self._device is not None else min(step_s, now_s - self._begin_s)

    def booked(self, name: str) -> CostTimer:
        """A context whose time is added to `name`."""
        return CostTimer(self, name)

    def book(self, name: str, seconds: float) -> None:
        self._host_s[name] = self._host_s.get(name, 0.0) + seconds

    def booked_alone(self, name: str) -> CostTimer:
        """The same, for one of many measurements in a step: marks take as long as they do, so some have them for all.

        These are others in each step.
        """
        self._alone += 1
        return CostTimer(self, name, float(_MARKED) if self._alone % _MARKED == 0 else 0.0)

    def book_device(self, name: str, first: Any, weight: float) -> None:
        """Adds `weight` times the time of the device since the mark `first`."""
        self._marks.append((name, first, self.mark(), weight))

    def take(self) -> dict[str, float]:
        """Seconds by name; the device must have done its work."""
        taken, self._host_s = self._host_s, {}
        device_s: dict[str, float] = {}
        for name, first, last, weight in self._marks:
            device_s[name] = device_s.get(name, 0.0) + weight * 1e-3 * first.elapsed_time(last)
        self._marks = []
        return taken | {name: max(taken[name], seconds) for name, seconds in device_s.items()} if device_s else taken

    def start(self) -> float:
        """Starts timing; returns the present time."""
        self._begin_s = self.worked_s()
        return self._begin_s

    def mark(self) -> Any:
        if self._device is None:
            return None
        mark = torch.Event(self._device, enable_timing=True)
        mark.record(torch.accelerator.current_stream(self._device))  # not of the device that is current
        return mark


class CostTimer:
    """See `CostMeter.booked`; a class, since a generator takes longer than a small measurement."""

    __slots__ = ("_begin", "_clock", "_compiled_s", "_first", "_name", "_weight")

    def __init__(self, clock: CostMeter, name: str, weight: float = 1.0) -> None:
        self._clock, self._name, self._weight = clock, name, weight

    def __enter__(self) -> None:
        self._first = self._clock.mark() if self._weight else None
        self._compiled_s = self._clock.compiling_s()
        self._begin = time.thread_time()

    def __exit__(self, *_: object) -> None:
        compiled_s = self._clock.compiling_s() - self._compiled_s
        self._clock.book(self._name, max(time.thread_time() - self._begin - compiled_s, 0.0))
        if self._first is not None and not compiled_s:  # else the device has waited for the compiler
            self._clock.book_device(self._name, self._first, self._weight)


def keeping_s(tensors: int) -> float:
    """Estimated CPU seconds for the writer to compress one row of n tensors, calibrated once.

    In units of what it takes to compress a piece of 64 tensors, which is tried once: so many for the row and for each
    tensor.
    """
    return (_PIECES_OF_A_ROW + tensors / _TENSORS_OF_A_PIECE) * _piece_s()


@cache
def _piece_s() -> float:
    histograms = np.zeros((_ROWS_OF_A_PIECE, 256), np.int32)
    histograms[:, 96:120] = np.exp2(-np.arange(24.0)) * np.arange(1, _ROWS_OF_A_PIECE + 1)[:, None] * 1000
    shuffled = histograms.view(np.uint8).reshape(-1, 4).T.tobytes()
    return min(_compressed_s(shuffled) for _ in range(10))


def _compressed_s(data: bytes) -> float:
    begin = time.thread_time()
    zlib.compress(data, 1)
    return time.thread_time() - begin
