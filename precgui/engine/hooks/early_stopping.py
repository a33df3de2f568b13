"""Stops a run before its last step, because nothing can be learned any more."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

from precgui.engine.hook import LoopHook, TrainingRun
from precgui.events import StepDone
from precgui.sentences import L_, counted, filled

_LOSS = L_("the loss is not finite in step {step} (train.stop_at_nonfinite)")
_GRADIENTS = L_("the gradients are not finite in step {step} (train.stop_at_nonfinite)")


class EarlyStopping(LoopHook):
    """Watches the steps as the config asks, and stops the run with a reason."""

    def __init__(self, run: TrainingRun) -> None:
        self._run = run
        self._at_nonfinite, self._most_skipped = run.config.train.stop_at_nonfinite, run.config.train.stop_after_skipped
        self._skipped = 0

    @classmethod
    def make(cls, run: TrainingRun) -> Self | None:
        train = run.config.train
        return cls(run) if train.stop_at_nonfinite or train.stop_after_skipped is not None else None

    def state(self) -> dict[str, Any]:
        return {"skipped": self._skipped}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._skipped = int(state["skipped"])

    def reads_now(self, step: int) -> bool:
        return True

    def end_step(self, done: StepDone) -> None:
        """A skipped step has not harmed the weights, so its NaN does not count."""
        self._skipped = self._skipped + 1 if done.skipped else 0
        bad = not done.skipped and not (math.isfinite(done.loss) and math.isfinite(done.grad_norm))
        if self._at_nonfinite and bad:
            sentence = _GRADIENTS if math.isfinite(done.loss) else _LOSS
            self._run.stop(filled(sentence, step=done.step))
        elif self._most_skipped is not None and self._skipped >= self._most_skipped:
            self._run.stop(
                counted(
                    "{count} step in a row was skipped (train.stop_after_skipped)",
                    "{count} steps in a row were skipped (train.stop_after_skipped)",
                    self._skipped,
                )
            )
