"""torch.amp.autocast to a 16-bit format: weights, gradients and optimizer state stay FP32."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import nn

from precgui.engine.census import ATTENTION
from precgui.engine.certificate import slowdown
from precgui.engine.emulation.fp16_on_cpu import Fp16ProductMode
from precgui.engine.emulation.layers import MatmulArithmetic, emulate_products, layers
from precgui.engine.emulation.lstm_kernel import run_without_lstm_kernel
from precgui.engine.emulation.operands import TorchCast
from precgui.engine.emulation.recurrent import emulate_recurrent, recurrent_layers
from precgui.engine.precisions import fp32_modules
from precgui.engine.precisions.base import Precision

SLOW = 4.0  # times FP32: beyond this a CPU kernel is not worth having and the user is told


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
                "oneDNN has no BF16 LSTM kernel for this processor: torch multiplies in BF16, with a state in FP32"
            )
        return model


class FP16Amp(Autocast):
    dtype = torch.float16
    scaling = "dynamic"

    @contextlib.contextmanager
    def forward_context(self) -> Iterator[None]:
        with super().forward_context(), half_products(self.device):
            yield

    def _convert(self, model: nn.Module) -> nn.Module:
        if self.device.type == "cpu":
            self.labels, note = emulate_fp16(model, self.fp32_modules)
            self.notes.append(note)
        return super()._convert(model)


def half_products(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """The context in which products outside of layers are FP16 at a bearable speed."""
    return Fp16ProductMode() if device.type == "cpu" else contextlib.nullcontext()


def slow_bf16(device: torch.device) -> list[str]:
    """A note where BF16 products are slower than FP32 ones."""
    if device.type != "cpu" or (ratio := slowdown(torch.bfloat16)) <= SLOW:
        return []
    return [
        f"this CPU has no fast BF16: a product takes {ratio:.0f} times its FP32 time; the numbers are BF16's, "
        "the speed is not"
    ]


def emulate_fp16(model: nn.Module, kept: dict[str, nn.Module]) -> tuple[dict[str, str], str]:
    """FP16 layers for a CPU, whose weight gradients of FP16 convolutions run a reference kernel (about 150x FP32).

    Returns the labels of the layers and the note that tells of them.
    """
    to_fp16 = TorchCast(torch.float16)
    products = MatmulArithmetic("fp16", to_fp16, to_fp16, to_fp16, result=to_fp16, bias=to_fp16)
    left_out = fp32_modules.members(kept)
    labels = emulate_products(layers(model, left_out), lambda _: products)
    labels |= emulate_recurrent(recurrent_layers(model, left_out), lambda _: products)
    return labels | {ATTENTION: "fp16"}, (
        f"FP16 is emulated in {len(labels)} layers: CPUs have no fast FP16 training kernels, so operands and "
        "results are rounded to FP16 and multiplied in FP32; speed says nothing about FP16 hardware"
    )
