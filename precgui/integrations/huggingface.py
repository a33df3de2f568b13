"""A callback for the Trainer of Hugging Face transformers: `Trainer(..., callbacks=[PrecguiCallback("run.h5")])`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from precgui.config import RecordConfig
from precgui.integrations.losses import LossWatch
from precgui.record import Recorder


class PrecguiCallback(TrainerCallback):  # type: ignore[misc]
    """Records the training into a run file; evaluations with their loss, and `eval_accuracy` when it is computed.

    The loss is what the model returns as `loss`, averaged over the passes of a step. A training that raises leaves the
    file as that of a process that died.
    """

    def __init__(self, path: str | Path, *, title: str = "", record: RecordConfig | None = None) -> None:
        self._path, self._title, self._record = Path(path), title, record
        self._recorder: Recorder | None = None
        self._losses: LossWatch | None = None
        self._samples = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Raises RunFileError when the file exists or cannot be written."""
        wrapped = parts["optimizer"]
        self._recorder = Recorder(
            self._path,
            parts["model"],
            getattr(wrapped, "optimizer", wrapped),
            getattr(wrapped, "scaler", None),
            title=self._title,
            precision="bf16-amp" if args.bf16 else "fp16-amp" if args.fp16 else "",
            total_steps=state.max_steps,
            record=self._record,
        )
        self._losses = LossWatch(parts["model"])
        self._samples = args.train_batch_size * args.gradient_accumulation_steps

    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        if self._recorder is not None and self._losses is not None:
            self._recorder.step(self._losses.take(), samples=self._samples)

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: dict[str, float] | None = None, **_: Any
    ) -> None:
        if self._recorder is not None and metrics and "eval_loss" in metrics:
            accuracy = metrics.get("eval_accuracy", float("nan"))
            self._recorder.evaluated(metrics["eval_loss"], accuracy, epoch=int(state.epoch or 0))

    def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        if self._recorder is not None and self._losses is not None:
            self._losses.close()
            self._recorder.close()
            self._recorder = None
