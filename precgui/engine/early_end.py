"""When a run ends before its last step, because nothing can be learned any more."""

from __future__ import annotations

import math

from precgui.config import TrainConfig
from precgui.events import StepDone

_LOSS = "the loss is not finite in step {step} (train.stop_at_nonfinite)"
_GRADIENTS = "the gradients are not finite in step {step} (train.stop_at_nonfinite)"


class EarlyEnd:
    """Watches the steps as the config asks; `reason` is empty until the run should end."""

    def __init__(self, config: TrainConfig) -> None:
        self._at_nonfinite, self._most_skipped = config.stop_at_nonfinite, config.stop_after_skipped
        self._skipped = 0
        self.reason = ""

    def after(self, done: StepDone) -> None:
        """A step is done. A skipped one has not harmed the weights, so its NaN does not count."""
        self._skipped = self._skipped + 1 if done.skipped else 0
        bad = not done.skipped and not (math.isfinite(done.loss) and math.isfinite(done.grad_norm))
        if self._at_nonfinite and bad:
            sentence = _GRADIENTS if math.isfinite(done.loss) else _LOSS
            self.reason = sentence.format(step=done.step)
        elif self._most_skipped is not None and self._skipped >= self._most_skipped:
            self.reason = f"{self._skipped} steps in a row were skipped (train.stop_after_skipped)"
