"""The parts of a run: what its loop, its hooks and its strategy work on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from precgui.engine.ema import WeightAverage
from precgui.engine.module_calls import plain_name
from precgui.engine.precisions.base import Precision
from precgui.engine.precisions.conversion import Conversion
from precgui.engine.tasks.base import Task


@dataclass(frozen=True)
class RunParts:
    """All that the loop needs. `weights` are what the optimizer updates, in the order of the model's parameters."""

    device: torch.device
    task: Task
    precision: Precision
    model: nn.Module
    weights: list[nn.Parameter]
    optimizer: Optimizer
    average: WeightAverage | None
    facts: dict[str, Any]  # what only the engine knows of this run, as built-in types
    conversion: Conversion | None = None  # of runs with a precision schedule
    state_names: Collection[str] = ()  # of the model's state_dict() as the task made it, before its conversion

    def trained(self) -> list[tuple[str, nn.Parameter]]:
        """The model's own parameters with their names, beside `weights`."""
        return [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]

    def copies(self) -> list[tuple[str, Tensor]]:
        """The average of the weights, where one is kept, as `ema.` and the name of the weight."""
        kept = self.average.values if self.average is not None else []
        return [(f"ema.{plain_name(name)}", value) for (name, _), value in zip(self.trained(), kept, strict=False)]
