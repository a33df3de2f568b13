"""Base of the callbacks: a library's Trainer may train more than once, each time into its own file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from precgui.config import RecordConfig
from precgui.events import Metric
from precgui.record import Recorder


class Trainings:
    """`recorder` is that of the training that goes on, None between two. The second one is kept in `run-2.h5`."""

    def __init__(
        self,
        path: str | Path,
        *,
        title: str = "",
        record: RecordConfig | None = None,
        metric: str | Metric = "accuracy",
    ) -> None:
        """`metric` is the library's name of a metric between 0 and 1, or a `precgui.Metric` of that name."""
        self._path, self._title, self._record, self._metric = Path(path), title, record, metric
        self._count = 0
        self.recorder: Recorder | None = None

    @property
    def metric_name(self) -> str:
        """The library's name of the metric."""
        return self._metric if isinstance(self._metric, str) else self._metric.name

    def begin(
        self,
        model: nn.Module,
        optimizers: Optimizer | Sequence[Optimizer],
        scaler: torch.amp.GradScaler | None,
        **options: Any,
    ) -> Recorder:
        """Record a training from now on; `options` go to the Recorder. Raises RunFileError as the Recorder does."""
        self.break_off()
        self._count += 1
        path = self._path if self._count == 1 else self._path.with_stem(f"{self._path.stem}-{self._count}")
        self.recorder = Recorder(
            path, model, optimizers, scaler, title=self._title, record=self._record, metric=self._metric, **options
        )
        self.recorder.expect_close()
        return self.recorder

    def end(self) -> None:
        if self.recorder is not None:
            self.recorder.close()
        self.recorder = None

    def fail(self, error: BaseException) -> None:
        if self.recorder is not None:
            self.recorder.fail(error)
        self.recorder = None

    def break_off(self) -> None:
        """A training that has not ended by now never will."""
        if self.recorder is not None:
            self.recorder.abandon()
        self.recorder = None
