"""int8-qat to int1-qat: FP32 weights that learn to live on a few integers, converted and measured at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from precgui.config import RunConfig
from precgui.engine import keep
from precgui.engine.errors import EngineError
from precgui.engine.precisions.base import Precision
from precgui.engine.qat.integer import kernels
from precgui.engine.qat.layers import Quantizer, quantise, quantizable
from precgui.engine.qat.measure import measure, sentences
from precgui.engine.rounding import Clock
from precgui.engine.tasks import Task

_INPUT_BITS = {"int8": 8, "int4": 4, "fp32": None}
_ELSEWHERE = (nn.RNNBase, nn.MultiheadAttention, nn.modules.conv._ConvTransposeNd)


class QuantizationAware(Precision):
    """Linear and convolutional layers see rounded weights and inputs; gradients pass the rounding."""

    bits: ClassVar[int]
    keeps = True

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        super().__init__(config, device)
        self.qat = config.qat
        self.clock = Clock(config.seed)
        self.quantizers: dict[str, Quantizer] = {}

    def _convert(self, model: nn.Module) -> nn.Module:
        chosen = quantizable(model, keep.members(self.kept))
        ends = [name for name in (next(iter(chosen), ""), next(reversed(chosen), "")) if name]
        if self.bits < 8 and self.qat.ends == "fp32":
            chosen = {name: layer for name, layer in chosen.items() if name not in ends}
        if not chosen:
            raise EngineError(f"precision {self.config.precision}: the model has no linear or convolutional layer left")

        def quantizer(name: str, weight: Tensor) -> Quantizer:
            at_end = name in ends and self.qat.ends == "int8"
            bits = 8 if at_end else self.bits
            inputs = 8 if at_end or self.bits == 8 else _INPUT_BITS[self.qat.activations]
            learned = self.qat.learned_scales and bits > 2
            return Quantizer(weight, bits, inputs, self.clock, per_channel=self.qat.per_channel, learned=learned)

        self.quantizers = quantise(chosen, quantizer)
        self.labels = {name: made.label for name, made in self.quantizers.items()}
        self.notes.append(
            f"{len(chosen)} layers train in FP32 on values rounded to integers ({self._counts()}); speed says nothing "
            "about integer hardware, the converted model is measured at the end"
        )
        left = [name for name, module in model.named_modules() if isinstance(module, _ELSEWHERE)]
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

    def finish(
        self, model: nn.Module, task: Task, stopped: Callable[[], bool]
    ) -> Iterator[tuple[dict[str, Any], list[str]]]:
        if not self.qat.measure:
            return
        for quantizer in self.quantizers.values():
            quantizer.active = True
        integer, facts = measure(model, self.quantizers, task, self.config.data.batch_size, stopped)
        told = sentences(facts, task.metric.title.lower())
        if not kernels():
            told.append("this processor has no integer kernels in torch: the integers were multiplied in FP32")
        if self.qat.save_to:
            told.append(self._save(integer))
        yield {"quantised": facts}, told

    def _save(self, integer: nn.Module) -> str:
        path = Path(self.qat.save_to).expanduser()
        try:
            torch.save(integer.state_dict(), path)
        except (OSError, RuntimeError) as error:
            return f"qat.save_to: {path} could not be written ({str(error).splitlines()[0]})"
        return f"the converted model is in {path}; torch.load(..., weights_only=True) reads it"


class Int8(QuantizationAware):
    bits = 8


class Int4(QuantizationAware):
    bits = 4


class Int2(QuantizationAware):
    bits = 2


class Int1(QuantizationAware):
    bits = 1
