"""A callback for Lightning: `Trainer(..., callbacks=[PrecguiCallback("run.h5")])`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback

from precgui.config import RecordConfig
from precgui.record import Recorder

_PRECISIONS = {"bf16-mixed": "bf16-amp", "16-mixed": "fp16-amp", "bf16-true": "bf16-pure", "16-true": "fp16-pure"}


class PrecguiCallback(Callback):  # type: ignore[misc]
    """Records `fit` into a run file; validations with what is logged as `val_loss` and `val_acc` or `val_accuracy`."""

    def __init__(self, path: str | Path, *, title: str = "", record: RecordConfig | None = None) -> None:
        self._path, self._title, self._record = Path(path), title, record
        self._recorder: Recorder | None = None
        self._steps = self._batches = 0
        self._total = 0.0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Raises RunFileError when the file exists or cannot be written."""
        self._recorder = Recorder(
            self._path,
            pl_module,
            trainer.optimizers,
            getattr(trainer.precision_plugin, "scaler", None),
            title=self._title or type(pl_module).__name__,
            precision=_PRECISIONS.get(str(trainer.precision), ""),
            total_steps=int(trainer.estimated_stepping_batches),
            record=self._record,
        )
        self._steps = trainer.global_step

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._recorder is None or outputs is None:
            return
        loss = outputs["loss"] if isinstance(outputs, dict) else outputs
        self._total += float(loss.detach())
        self._batches += 1
        if trainer.global_step != self._steps:  # under accumulation not every batch ends a step
            self._recorder.step(self._total / self._batches)
            self._steps, self._batches, self._total = trainer.global_step, 0, 0.0

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        logged = trainer.callback_metrics
        if self._recorder is not None and not trainer.sanity_checking and "val_loss" in logged:
            accuracy = logged.get("val_acc", logged.get("val_accuracy", float("nan")))
            self._recorder.evaluated(float(logged["val_loss"]), float(accuracy), epoch=trainer.current_epoch + 1)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if self._recorder is not None:
            self._recorder.__exit__(type(exception), exception, exception.__traceback__)
            self._recorder = None

    def _close(self) -> None:
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None
