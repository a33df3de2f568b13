"""BF16 weights whose updates are rounded stochastically."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from precgui.engine.emulation.operands import BatchSeed
from precgui.engine.precisions.pure import BF16Pure, MasterWeights
from precgui.engine.quantize.elements import copy_rounded

if TYPE_CHECKING:
    from precgui.config import RunConfig


class BF16Stochastic(BF16Pure):
    """BF16 weights; the update is made in FP32 and rounded stochastically, up or down by the distance to each side.

    Nothing of FP32 is kept but the optimizer's state: the FP32 weight exists during a step only.
    """

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        super().__init__(config, device)
        self._clock = BatchSeed(config.seed)

    def state(self) -> dict[str, Any]:
        return super().state() | {"rounded_steps": self._clock.tick}

    def load_state(self, state: Mapping[str, Any]) -> None:
        super().load_state(state)
        self._clock.tick = int(state["rounded_steps"])

    def weights(self, model: nn.Module) -> list[nn.Parameter]:
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.masters = MasterWeights(trained, kept=False, write_back=self._write_back)
        return self.masters.parameters

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        self._clock.tick += 1
        return super().step(optimizer)

    def _write_back(self, masters: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
        seeds = [self._clock.draw(f"weight {place}") for place in range(len(weights))]
        copy_rounded(masters, weights, "bf16", seeds)
