"""int8-qat to int1-qat: FP32 weights that learn to live on a few integers, converted and measured at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from precgui.config import RunConfig
from precgui.engine import keep
from precgui.engine.errors import EngineError
from precgui.engine.qat.conversion import Converted, convert_layers
from precgui.engine.qat.finish import Quantised
from precgui.engine.qat.layers import Quantizer, quantise, quantizable
from precgui.engine.rounding import Clock
from precgui.engine.tasks import Batch, Task

_INPUT_BITS = {"int8": 8, "int4": 4, "fp32": None}
NOT_QUANTISED = (nn.RNNBase, nn.MultiheadAttention, nn.modules.conv._ConvTransposeNd)


class QuantizationAware(Quantised):
    """Linear and convolutional layers see rounded weights and inputs; gradients pass the rounding."""

    weight_bits: ClassVar[int]

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        super().__init__(config, device)
        self.clock = Clock(config.seed)
        self.quantizers: dict[str, Quantizer] = {}

    def _convert(self, model: nn.Module) -> nn.Module:
        chosen = quantizable(model, keep.members(self.kept))
        ends = [name for name in (next(iter(chosen), ""), next(reversed(chosen), "")) if name]
        if self.weight_bits < 8 and self.qat.ends == "fp32":
            chosen = {name: layer for name, layer in chosen.items() if name not in ends}
        if not chosen:
            raise EngineError(f"precision {self.config.precision}: the model has no linear or convolutional layer left")

        def quantizer(name: str, weight: Tensor) -> Quantizer:
            at_end = name in ends and self.qat.ends == "int8"
            bits = 8 if at_end else self.weight_bits
            inputs = 8 if at_end or self.weight_bits == 8 else _INPUT_BITS[self.qat.activations]
            learned = self.qat.learned_scales and bits > 2
            return Quantizer(weight, bits, inputs, self.clock, per_channel=self.qat.per_channel, learned=learned)

        self.quantizers = quantise(chosen, quantizer)
        self.labels = {name: made.label for name, made in self.quantizers.items()}
        self.notes.append(
            f"{len(chosen)} layers train in FP32 on values rounded to integers ({self._counts()}); speed says nothing "
            "about integer hardware, the converted model is measured at the end"
        )
        left = [name for name, module in model.named_modules() if isinstance(module, NOT_QUANTISED)]
        if left:
            self.notes.append(f"{', '.join(left)} cannot be quantised and stay in FP32")
        return model

    def _counts(self) -> str:
        labels = list(self.labels.values())
        return "; ".join(f"{labels.count(label)} with {label}" for label in dict.fromkeys(labels))

    def batch(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        self.clock.tick += 1
        return super().batch(inputs, targets)

    def begin_epoch(self, model: nn.Module, epoch: int) -> None:
        last_observed, last_counted = self.qat.observers_off_after_epoch, self.qat.freeze_bn_after_epoch
        for quantizer in self.quantizers.values():
            quantizer.active = epoch >= self.qat.start_epoch
            quantizer.observing = last_observed is None or epoch <= last_observed
        if last_counted is not None and epoch > last_counted:
            for module in model.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()

    def quantise_fully(self) -> None:
        for quantizer in self.quantizers.values():
            quantizer.active = True

    def converted(self, model: nn.Module, task: Task, batches: Sequence[Batch]) -> Converted:
        return convert_layers(model, self.quantizers, task, batches)

    def bits(self) -> Mapping[str, tuple[int, int | None]]:
        return {name: (quantizer.bits, quantizer.input_bits) for name, quantizer in self.quantizers.items()}


class Int8(QuantizationAware):
    weight_bits = 8


class Int4(QuantizationAware):
    weight_bits = 4


class Int2(QuantizationAware):
    weight_bits = 2


class Int1(QuantizationAware):
    weight_bits = 1
