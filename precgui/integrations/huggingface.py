"""A callback for the Trainer of Hugging Face transformers: `Trainer(..., callbacks=[PrecguiCallback("run.h5")])`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from precgui.engine.telemetry.guard import Guard, guarded
from precgui.engine.telemetry.hook import Hook
from precgui.integrations.trainings import Trainings


class LossWatch(Hook):
    """Remembers the `loss` in what a model returns while it trains."""

    def __init__(self, model: nn.Module, guard: Guard) -> None:
        super().__init__(guard)
        self._losses: list[Tensor] = []
        self._handle = model.register_forward_hook(self)

    def __call__(self, module: nn.Module, _inputs: Any, outputs: Any) -> None:
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
        if isinstance(loss, Tensor) and module.training and torch.is_grad_enabled():
            self._losses.append(loss.detach().mean())

    @guarded
    def take(self) -> Tensor | float:
        """The mean over the passes since the last call, NaN when the model returned no loss."""
        losses, self._losses = self._losses, []
        return torch.stack(losses).mean() if losses else math.nan

    def close(self) -> None:
        self._handle.remove()


class PrecguiCallback(Trainings, TrainerCallback):  # type: ignore[misc]
    """Records the training into a run file; evaluations with their loss and with `eval_METRIC` when it is computed.

    `metric` is the name of what `compute_metrics` returns.

    The loss is what the model returns as `loss`, averaged over the passes of a step. The Trainer tells its callbacks of
    no exception: an uncaught one is recorded when Python exits. Where the process goes on, as in a notebook, use

        with PrecguiCallback("run.h5") as callback:
            Trainer(..., callbacks=[callback]).train()
    """

    _losses: LossWatch | None = None
    _samples = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Raises RunFileError when the file exists or cannot be written."""
        self._forget_losses()
        wrapped = parts["optimizer"]
        recorder = self.begin(
            parts["model"],
            getattr(wrapped, "optimizer", wrapped),
            getattr(wrapped, "scaler", None),
            precision="bf16-amp" if args.bf16 else "fp16-amp" if args.fp16 else "",
            total_steps=state.max_steps,
        )
        self._losses = LossWatch(parts["model"], recorder.guard)
        self._samples = args.train_batch_size * args.gradient_accumulation_steps

    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        if (recorder := self.recorder) is not None and self._losses is not None:
            recorder.step(self._losses.take(), samples=self._samples)

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: dict[str, float] | None = None, **_: Any
    ) -> None:
        if (recorder := self.recorder) is not None and metrics and "eval_loss" in metrics:
            value = metrics.get(f"eval_{self.metric_name.removeprefix('eval_')}", math.nan)
            recorder.evaluated(metrics["eval_loss"], value, epoch=int(state.epoch or 0))

    def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self._forget_losses()
        self.end()

    def __enter__(self) -> PrecguiCallback:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._forget_losses()
        if error is not None:
            self.fail(error)
        self.break_off()

    def _forget_losses(self) -> None:
        if self._losses is not None:
            self._losses.close()
        self._losses = None
