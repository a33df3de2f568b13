"""The peak of a training step's tensors on the CPU, from torch's own memory events.

The allocator of the CPU keeps no count, so one step is run under the profiler, which is told of every block that is
taken and given back. What the step begins with is added: weights, optimizer state, batch. It is measured in the first
step after an update that was taken, since the first update makes the optimizer's state.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from precgui.engine.callback import Callback
from precgui.engine.journal import Journal
from precgui.engine.tasks import Batch
from precgui.engine.torch_private import is_traceable_wrapper_subclass, memory_profiler

MEASURED_BY = "allocated by tensors (profiler)"


class MemoryEvents:
    """Counts the bytes that tensors take and give back between `start` and `stop`."""

    def __init__(self) -> None:
        self._running = self._collecting = False

    def start(self) -> None:
        """Begin; nothing happens where another profiler is at work.

        What was there before and is given back meanwhile does not count. Torch tells of it all the same, with a size of
        its own, where it lies at the place of a block that an earlier profiler saw taken and not given back.
        """
        if memory_profiler.is_available():
            self._collecting = gc.isenabled()
            gc.disable()  # so that nothing from before is given back meanwhile
            before = torch.empty(1)
            memory_profiler.start()
            self._running = True
            with stderr_closed():
                del before

    def stop(self) -> int | None:
        """The most bytes taken at one time beyond what was there at the start; None when nothing was counted."""
        if not self._running:
            return None
        self._running = False
        present = peak = 0
        changes = memory_profiler.stop()
        if self._collecting:
            gc.enable()
        for change in changes:
            present = max(present + change, 0)  # see `start`
            peak = max(peak, present)
        return peak


@contextlib.contextmanager
def stderr_closed() -> Iterator[None]:
    """Discards the terminal output of native code inside.

    The allocator warns there of the first block, and of each thousandth, that was taken before the profiler began; one
    such block given back inside spends the warning.
    """
    try:
        kept = os.dup(2)
    except OSError:  # a program without a terminal
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


class MemoryPeak(Callback):
    """Measures one step and returns the peak; a step is measured until the moment that its weights are updated."""

    def __init__(self, journal: Journal, held: Mapping[str, Callable[[], Any]]) -> None:
        """`held` gives, by name, the tensors that outlive a step; one that two names share counts for the first."""
        self._journal, self._held = journal, held
        self._events = MemoryEvents()
        self._state = "waiting"  # for an update that was taken; then "ready" for a step, "measuring" it, "done"
        self._step = 0
        self._before: dict[str, int] = {}

    def begin_step(self, step: int, scale: float, batches: Sequence[Batch]) -> None:
        if self._state == "ready":
            held = {name: tensors() for name, tensors in self._held.items()}
            self._before, self._step = sizes_bytes(held | {"batch": batches}), step
            self._state = "measuring"
            self._events.start()

    def after_update(self, *, skipped: bool) -> None:
        if self._state == "measuring":
            self._state = "done"
            self._tell(self._events.stop())
        elif self._state == "waiting" and not skipped:
            self._state = "ready"

    def close(self) -> None:
        self._events.stop()

    def _tell(self, within: int | None) -> None:
        if within is not None:
            parts = {f"{name}_bytes": size for name, size in self._before.items()} | {"step_bytes": within}
            reported = {"peak_bytes": sum(parts.values()), "measured_by": MEASURED_BY, "step": self._step}
            self._journal.facts({"memory": reported | parts})


def sizes_bytes(parts: Mapping[str, Any]) -> dict[str, int]:
    """The bytes of the tensors in each part, each block of memory counted once, for the first part that has it."""
    visited: set[int] = set()
    sizes = {}
    for name, part in parts.items():
        blocks = {storage.data_ptr(): storage.nbytes() for storage in _storages(part)}
        sizes[name] = sum(size for place, size in blocks.items() if place not in visited)
        visited |= blocks.keys()
    return sizes


def _storages(value: Any) -> Iterator[Any]:
    if is_traceable_wrapper_subclass(value):  # such as a shard: its own storage is a placeholder
        yield from _storages([getattr(value, name) for name in value.__tensor_flatten__()[0]])
    elif isinstance(value, Tensor):
        yield value.untyped_storage()
    elif isinstance(value, Mapping | Iterable) and not isinstance(value, str):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _storages(part)
