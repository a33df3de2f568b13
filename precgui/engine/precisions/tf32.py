"""TF32 products of FP32 storage, native or emulated."""

from __future__ import annotations

import contextlib

from torch import nn

from precgui.engine.certificate import TRUE_FP32_BELOW, gemm_error
from precgui.engine.emulation.functional import FUNCTIONAL_NOTE, FunctionalRoundingMode, rounds_everywhere
from precgui.engine.emulation.layers import MatmulArithmetic, emulate_products, layers
from precgui.engine.emulation.operands import FormatCast
from precgui.engine.emulation.recurrent import emulate_recurrent, recurrent_layers
from precgui.engine.precisions.base import Precision
from precgui.sentences import counted


class TF32(Precision):
    """TF32 products where the device has them, emulated where it has not; told apart by the error of a product."""

    tf32 = True
    _elsewhere: FunctionalRoundingMode | None = None

    def forward_context(self) -> contextlib.AbstractContextManager[object]:
        return self._elsewhere or contextlib.nullcontext()

    def _convert(self, model: nn.Module) -> nn.Module:
        if gemm_error(self.device) < TRUE_FP32_BELOW:
            to_tf32 = FormatCast("tf32")
            products = MatmulArithmetic("tf32", to_tf32, to_tf32, to_tf32)
            self.labels = emulate_products(layers(model, set()), lambda _: products)
            if rounds_everywhere(self.config):
                self.labels |= emulate_recurrent(recurrent_layers(model, set()), lambda _: products)
                self._elsewhere = FunctionalRoundingMode(products, compiled=self.config.train.compile)
                self.notes.append(FUNCTIONAL_NOTE)
            self.notes.append(
                counted(
                    "TF32 is emulated in {count} layer: this device multiplies FP32 operands exactly, so they are "
                    "rounded to 10 mantissa bits first; speed says nothing about TF32 hardware",
                    "TF32 is emulated in {count} layers: this device multiplies FP32 operands exactly, so they are "
                    "rounded to 10 mantissa bits first; speed says nothing about TF32 hardware",
                    len(self.labels),
                )
            )
        return model
