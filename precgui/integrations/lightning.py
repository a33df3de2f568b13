"""A callback for Lightning: `Trainer(..., callbacks=[PrecguiLightningCallback("run.h5")])`."""

from __future__ import annotations

import math
from typing import Any

from lightning.pytorch import Callback

from precgui.integrations.trainings import Trainings

_PRECISIONS = {"bf16-mixed": "bf16-amp", "16-mixed": "fp16-amp", "bf16-true": "bf16-pure", "16-true": "fp16-pure"}


class PrecguiLightningCallback(Trainings, Callback):  # type: ignore[misc]
    """Records `fit` into a run file; validations with what is logged as `val_loss` and as `val_METRIC` or METRIC."""

    _steps = _batches = 0
    _total = 0.0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Raises RunFileError when the file exists or cannot be written."""
        self.begin(
            pl_module,
            trainer.optimizers,
            getattr(trainer.precision_plugin, "scaler", None),
            precision=_PRECISIONS.get(str(trainer.precision), ""),
            total_steps=int(trainer.estimated_stepping_batches),
        )
        self._steps, self._batches, self._total = trainer.global_step, 0, 0.0

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if (recorder := self.recorder) is None or outputs is None:
            return
        loss = outputs["loss"] if isinstance(outputs, dict) else outputs
        self._total += float(loss.detach())
        self._batches += 1
        if trainer.global_step != self._steps:  # under accumulation not every batch ends a step
            recorder.step(self._total / self._batches)
            self._steps, self._batches, self._total = trainer.global_step, 0, 0.0

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        recorder, logged = self.recorder, trainer.callback_metrics
        if recorder is not None and not trainer.sanity_checking and "val_loss" in logged:
            value = next((logged[name] for name in self._names() if name in logged), math.nan)
            recorder.evaluated(float(logged["val_loss"]), float(value), epoch=trainer.current_epoch + 1)

    def _names(self) -> list[str]:
        """Under which names the metric may be logged."""
        requested = self.metric_name
        return [f"val_{requested}", requested, *(["val_acc"] if requested == "accuracy" else [])]

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.fail(exception)
