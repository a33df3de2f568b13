"""torch.amp.autocast to a 16-bit format: weights, gradients and optimizer state stay FP32."""

from __future__ import annotations

import contextlib
from typing import ClassVar

import torch
from torch import nn

from precgui.engine.certificate import slowdown
from precgui.engine.emulation.lstm_kernel import run_without_lstm_kernel
from precgui.engine.precisions import fp32_modules
from precgui.engine.precisions.base import Precision
from precgui.sentences import L_, Sentence

SLOW = 4.0  # times FP32: beyond this a CPU kernel is of no use, and a note says so


class Autocast(Precision):
    """Products in `dtype`; what autocast leaves in FP32, and the modules kept, stay there."""

    dtype: ClassVar[torch.dtype]
    keeps = True

    def forward_context(self) -> contextlib.AbstractContextManager[object]:
        return torch.autocast(self.device.type, dtype=self.dtype)

    def _convert(self, model: nn.Module) -> nn.Module:
        for module in self.fp32_modules.values():
            fp32_modules.run_in_fp32(module, self.device.type, returns=None)
        return model


class BF16Amp(Autocast):
    dtype = torch.bfloat16

    def _convert(self, model: nn.Module) -> nn.Module:
        self.notes += slow_bf16(self.device)
        model = super()._convert(model)
        left_out = fp32_modules.members(self.fp32_modules)
        if self.device.type == "cpu" and run_without_lstm_kernel(m for m in model.modules() if m not in left_out):
            self.notes.append(
                L_("oneDNN has no BF16 LSTM kernel for this processor: torch multiplies in BF16, with a state in FP32")
            )
        return model


def slow_bf16(device: torch.device) -> list[str]:
    """A note where BF16 products are slower than FP32 ones."""
    if device.type != "cpu" or (ratio := slowdown(torch.bfloat16)) <= SLOW:
        return []
    return [
        Sentence(
            "this CPU has no fast BF16: a product takes {ratio:.0f} times its FP32 time; the numbers are BF16's, "
            "the speed is not",
            ratio=ratio,
        )
    ]
