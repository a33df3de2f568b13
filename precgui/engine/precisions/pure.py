"""Weights, gradients and optimizer state in 16 bits, with or without FP32 master weights."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from precgui.engine.precisions import fp32_modules
from precgui.engine.precisions.amp import slow_bf16
from precgui.engine.precisions.base import Precision
from precgui.engine.precisions.master_weights import MasterWeights


class TrueHalf(Precision):
    """The whole model in a 16-bit format, but for the modules that are kept in FP32."""

    storage: ClassVar[torch.dtype]
    keeps = True
    masters: MasterWeights | None = None

    def _convert(self, model: nn.Module) -> nn.Module:
        model.to(self.storage)
        for module in self.fp32_modules.values():
            fp32_modules.run_in_fp32(module, self.device.type, returns=self.storage)
        return model

    def weights(self, model: nn.Module) -> list[nn.Parameter]:
        if not self.options.master_weights:
            return super().weights(model)
        self.masters = MasterWeights(super().weights(model))
        return self.masters.parameters

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        if self.masters is not None:
            self.masters.take_gradients()
        super().unscale(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        skipped = super().step(optimizer)
        if self.masters is not None:
            self.masters.give_weights()
        return skipped


class BF16Pure(TrueHalf):
    storage = torch.bfloat16

    def _convert(self, model: nn.Module) -> nn.Module:
        self.notes += slow_bf16(self.device)
        return super()._convert(model)
