"""The memory that a training step begins with, and on a CPU the peak of its tensors.

Weights, optimizer state and batch are added to what the step takes. It is measured in the first step after an update
that was taken, since the first update makes the optimizer's state. The allocator of another device keeps its own peak.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from precgui.engine.hook import LoopHook, TrainingRun
from precgui.engine.journal import Journal
from precgui.engine.memory import MemoryEvents, sizes_bytes
from precgui.engine.run_parts import RunParts
from precgui.engine.tasks.base import Batch
from precgui.sentences import L_

MEASURED_BY = L_("allocated by tensors (profiler)")
SIZES = L_("sizes of the tensors")


class MemoryPeak(LoopHook):
    """Measures one step and returns the peak; a step is measured until the moment that its weights are updated."""

    def __init__(self, journal: Journal, held: Mapping[str, Callable[[], Any]], *, with_peak: bool = True) -> None:
        """`held` gives, by name, the tensors that outlive a step; one that two names share counts for the first.

        Without `with_peak` their sizes alone are told.
        """
        self._journal, self._held, self._with_peak = journal, held, with_peak
        self._events = MemoryEvents()
        self._state = "waiting"  # for an update that was taken; then "ready" for a step, "measuring" it, "done"
        self._step = 0
        self._before: dict[str, int] = {}

    @classmethod
    def make(cls, run: TrainingRun) -> Self | None:
        return cls(run.journal, _held(run.parts), with_peak=run.parts.device.type == "cpu")

    def begin_step(self, step: int, scale: float, batches: Sequence[Batch]) -> None:
        if self._state == "ready":
            held = {name: tensors() for name, tensors in self._held.items()}
            self._before, self._step = sizes_bytes(held | {"batch": batches}), step
            if self._with_peak:
                self._state = "measuring"
                self._events.start()
                return
            self._state = "done"
            sizes = {f"{name}_bytes": size for name, size in self._before.items()}
            self._journal.facts({"memory": {"measured_by": SIZES, "step": step} | sizes})

    def after_update(self, *, skipped: bool) -> None:
        if self._state == "measuring":
            self._state = "done"
            self._tell(self._events.stop())
        elif self._state == "waiting" and not skipped:
            self._state = "ready"

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._state = "done"  # it was measured in one of the first steps

    def close(self) -> None:
        self._events.stop()

    def _tell(self, within: int | None) -> None:
        if within is not None:
            parts = {f"{name}_bytes": size for name, size in self._before.items()} | {"step_bytes": within}
            reported = {"peak_bytes": sum(parts.values()), "measured_by": MEASURED_BY, "step": self._step}
            self._journal.facts({"memory": reported | parts})


def _held(parts: RunParts) -> dict[str, Callable[[], Any]]:
    """The objects that outlive a step, by name."""
    model, optimizer, average = parts.model, parts.optimizer, parts.average
    return {
        "weights": lambda: [*model.parameters(), *model.buffers()],
        "optimizer": lambda: [parts.weights, optimizer.state.values()],
        "average": lambda: average.values if average is not None else [],
    }
