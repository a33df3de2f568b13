"""The moving average of the weights."""

from __future__ import annotations

import contextlib
from typing import Self

from precgui.engine.ema import WeightAverage
from precgui.engine.hook import LoopHook, TrainingRun


class Averaging(LoopHook):
    """Takes the weights of each step into their average, with which the model is evaluated."""

    def __init__(self, average: WeightAverage) -> None:
        self._average = average

    @classmethod
    def make(cls, run: TrainingRun) -> Self | None:
        return cls(run.parts.average) if run.parts.average is not None else None

    def after_update(self, *, skipped: bool) -> None:
        if not skipped:
            self._average.update()

    def evaluation(self) -> contextlib.AbstractContextManager[None]:
        return self._average.applied()
