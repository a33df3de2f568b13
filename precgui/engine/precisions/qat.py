"""int8-qat to int1-qat: FP32 weights that learn to live on a few integers, converted and measured at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from precgui.engine.errors import EngineError
from precgui.engine.precisions import fp32_modules
from precgui.engine.precisions.quantised import Quantised
from precgui.engine.qat.conversion import Converted, convert_layers
from precgui.engine.qat.layers import LayerQuantization, Quantizer, begin_batch, follow_epoch, quantise_model

if TYPE_CHECKING:
    from precgui.config import RunConfig
    from precgui.engine.tasks.base import Batch, Task

NOT_QUANTISED = (nn.RNNBase, nn.MultiheadAttention, nn.modules.conv._ConvTransposeNd)


class QuantizationAware(Quantised):
    """Linear and convolutional layers see rounded weights and inputs; gradients pass the rounding."""

    weight_bits: ClassVar[int]

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        super().__init__(config, device)
        self.quantizers: dict[str, Quantizer] = {}

    def _convert(self, model: nn.Module) -> nn.Module:
        qat = self.qat
        wanted = LayerQuantization(
            self.weight_bits, qat.ends, qat.activations, qat.per_channel, qat.learned_scales, qat.learned_ranges
        )
        self.quantizers = quantise_model(model, fp32_modules.members(self.fp32_modules), wanted)
        if not self.quantizers:
            raise EngineError(f"precision {self.config.precision}: the model has no linear or convolutional layer left")
        self.labels = {name: made.label for name, made in self.quantizers.items()}
        self.notes.append(
            f"{len(self.quantizers)} layers train in FP32 on values rounded to integers ({self._counts()}); speed says "
            "nothing about integer hardware, the converted model is measured at the end"
        )
        self.notes += self._doubts()
        left = [name for name, module in model.named_modules() if isinstance(module, NOT_QUANTISED)]
        if left:
            self.notes.append(f"{', '.join(left)} cannot be quantised and stay in FP32")
        return model

    def _doubts(self) -> list[str]:
        """Settings that do not do what they seem to."""
        qat, told = self.qat, []
        if qat.backend != self.config.quantised_by:
            told.append(f"qat.backend = {qat.backend} knows 8 bits only: quantised layer by layer, as by own")
        if qat.start_epoch > self.config.train.epochs:
            told.append(f"qat.start_epoch = {qat.start_epoch} comes after the last epoch: trained in plain FP32")
        if qat.learned_ranges and not self.config.optimizer.weight_decay:
            told.append(
                "qat.learned_ranges: without optimizer.weight_decay nothing but the loss pulls the ranges in; "
                "PACT penalises them as it does weights"
            )
        return told

    def _counts(self) -> str:
        labels = list(self.labels.values())
        return "; ".join(f"{labels.count(label)} with {label}" for label in dict.fromkeys(labels))

    def convert_input(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        begin_batch(self.quantizers)
        return super().convert_input(inputs, targets)

    def begin_epoch(self, model: nn.Module, epoch: int) -> None:
        follow_epoch(
            model,
            self.quantizers,
            epoch,
            start=self.qat.start_epoch,
            last_observed=self.qat.observers_off_after_epoch,
            last_counted=self.qat.freeze_bn_after_epoch,
        )

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
