"""The loss of a step that consists of several forward passes, where a library does not hand it over."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine.telemetry.guard import Guard, guarded
from precgui.engine.telemetry.hook import Hook


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
