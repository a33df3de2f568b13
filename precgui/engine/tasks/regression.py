"""Ill-conditioned least squares: a regression whose error depends strongly on the precision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from precgui.engine.device import in_fp64
from precgui.engine.tasks.base import DatasetTask, InMemory
from precgui.events import Metric
from precgui.sentences import L_

if TYPE_CHECKING:
    from precgui.config import RunConfig

FEATURES, TARGETS = 64, 16
CONDITION = 20.0  # of the inputs; the least squares problem has its square
_SAMPLES = (4096, 1024)  # to train and to validate
_WIDTH = {"small": 128, "medium": 512, "large": 2048}


def problem(samples: int, draw: torch.Generator) -> Tensor:
    """Inputs [samples, 64] in FP64 whose singular values fall by CONDITION, in directions that mix all features."""
    directions = torch.linalg.qr(torch.randn(FEATURES, FEATURES, generator=draw, dtype=torch.float64))[0]
    sizes = torch.logspace(0, -torch.log10(torch.tensor(CONDITION)).item(), FEATURES, dtype=torch.float64)
    inputs: Tensor = torch.randn(samples, FEATURES, generator=draw, dtype=torch.float64) * sizes @ directions.T
    return inputs


class Regression(DatasetTask):
    """Find the linear map behind exact data: the loss can fall to the square of the rounding error, and no further.

    Small steps along the weak directions are what few bits lose. Data are made in FP64. Targets have variance one.
    """

    metric = Metric("r2", L_("R²"), L_("share of the variance of the targets that is explained"), unit="")

    def __init__(self, config: RunConfig) -> None:
        draw = torch.Generator().manual_seed(config.seed)
        inputs = problem(sum(_SAMPLES), draw)
        targets = inputs @ torch.randn(FEATURES, TARGETS, generator=draw, dtype=torch.float64)
        targets = (targets - targets.mean(0)) / targets.std(0)
        inputs = inputs / inputs.square().mean().sqrt()
        cut = _SAMPLES[0]
        sets = InMemory(inputs[:cut], targets[:cut]), InMemory(inputs[cut:], targets[cut:])
        super().__init__(config, *sets, cut)
        self.facts: Mapping[str, Any] = {
            "training_samples": cut, "validation_samples": _SAMPLES[1], "features": FEATURES, "targets": TARGETS,
            "condition_number": CONDITION,
        }  # fmt: skip

    def model(self) -> nn.Module:
        """One linear layer, or a perceptron."""
        if self.config.model_name == "linear":
            return nn.Sequential(nn.Linear(FEATURES, TARGETS))
        width = _WIDTH[self.config.model.size]
        return nn.Sequential(nn.Linear(FEATURES, width), nn.Tanh(), nn.Linear(width, TARGETS))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean square error, in variances of the targets."""
        return nn.functional.mse_loss(outputs, targets)

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        variance = in_fp64(targets).square().sum()
        return torch.stack((variance - in_fp64(outputs - targets).square().sum(), variance))
