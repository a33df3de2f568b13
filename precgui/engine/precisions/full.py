"""FP64 and FP32: one format for storage and products."""

from __future__ import annotations

import torch
from torch import nn

from precgui.engine.certificate import require_true_fp32
from precgui.engine.errors import EngineError
from precgui.engine.precisions.base import Precision
from precgui.sentences import L_


class FP64(Precision):
    """Everything in FP64, the loss included."""

    storage = loss_dtype = torch.float64

    def prepare(self) -> None:
        super().prepare()
        if self.device.type == "mps":
            raise EngineError(L_("Apple GPUs have no FP64; choose device = cpu"))

    def _convert(self, model: nn.Module) -> nn.Module:
        return model.double()


class FP32(Precision):
    """True FP32: a product that is not FP32 to the last bits is refused."""

    def _convert(self, model: nn.Module) -> nn.Module:
        require_true_fp32(self.device)
        return model
