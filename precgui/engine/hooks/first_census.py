"""The census of the first step: which formats really ran, and the model in the order in which it ran."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Self

import torch

from precgui.engine import census
from precgui.engine.description import FirstPassOrder, described
from precgui.engine.hook import LoopHook, TrainingRun
from precgui.engine.journal import Journal
from precgui.engine.run_parts import RunParts
from precgui.engine.tasks.base import Batch
from precgui.events import StepDone


class FirstStepCensus(LoopHook):
    """Which formats really ran in the first step, and the model in the order in which it ran.

    The first step is not compiled, so that each operation is counted.
    """

    def __init__(self, journal: Journal, parts: RunParts, fp32: str, *, compiled: bool) -> None:
        self._journal, self._parts, self._compiled = journal, parts, compiled
        self._census = census.Census(parts.model, parts.precision.labels, fp32)
        self._order = FirstPassOrder()
        self._entered = contextlib.ExitStack()

    @classmethod
    def make(cls, run: TrainingRun) -> Self | None:
        fp32 = run.parts.facts["certificate"]["fp32_products"]
        return cls(run.journal, run.parts, fp32, compiled=run.config.train.compile)

    @property
    def backward_order(self) -> dict[str, int]:
        """The place of each parameter in the backward pass of the first step, as far as it has come."""
        places = self._order.backward
        return {name: places[id(own)] for name, own in self._parts.trained() if id(own) in places}

    def begin_step(self, step: int, scale: float, batches: Sequence[Batch]) -> None:
        if step == 1:
            if self._compiled:
                self._entered.enter_context(torch.compiler.set_stance("force_eager"))
            self._entered.callback(self._order.close)
            self._order.begin(self._parts.model)
            self._entered.enter_context(self._census)

    def reads_now(self, step: int) -> bool:
        return step == 1

    def end_step(self, done: StepDone) -> None:
        if done.step == 1:
            self._entered.close()
            facts = self._census.facts()
            self._journal.facts({"census": facts})
            updated = {id(own) for _, own in self._parts.trained()}
            model, copies = self._parts.model, self._parts.copies()
            self._journal.emit(described(model, updated, copies, self._order, self._journal.now()))
            self._journal.note(1, census.sentence(facts))

    def close(self) -> None:
        self._entered.close()
