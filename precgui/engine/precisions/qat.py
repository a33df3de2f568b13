"""int8-qat to int1-qat: FP32 weights trained with rounding to a few integers, converted and measured at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from precgui.engine.errors import EngineError
from precgui.engine.precisions import fp32_modules
from precgui.engine.precisions.base import Precision
from precgui.engine.qat.conversion import Converted, convert_layers
from precgui.engine.qat.layers import LayerQuantization, Quantizer, begin_batch, follow_epoch, quantise_model
from precgui.engine.qat.measure import evaluate, measure, sentences, sizes, some_batches
from precgui.engine.qat.onednn import arithmetic_note
from precgui.engine.torch_private import ConvTransposeNd
from precgui.sentences import L_, Sentence, counted, first_line, together

if TYPE_CHECKING:
    from precgui.config import RunConfig
    from precgui.engine.tasks.base import Task

NOT_QUANTISED = (nn.RNNBase, nn.MultiheadAttention, ConvTransposeNd)


class QuantizationAware(Precision):
    """Linear and convolutional layers compute with rounded weights and inputs; gradients pass the rounding."""

    weight_bits: ClassVar[int]
    keeps = True

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        super().__init__(config, device)
        self.qat = config.qat
        self.quantizers: dict[str, Quantizer] = {}
        if self.qat.save_to:
            from precgui.engine.qat import saved_model

            saved_model.check_place(self.qat.save_to)

    @property
    def reads_buffers(self) -> bool:
        return True  # the ranges of the observers

    def state(self) -> dict[str, Any]:
        return super().state() | {"observed": {name: each.has_observed for name, each in self.quantizers.items()}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        super().load_state(state)
        for name, quantizer in self.quantizers.items():
            quantizer.has_observed = bool(state["observed"][name])

    def _convert(self, model: nn.Module) -> nn.Module:
        qat = self.qat
        quantization = LayerQuantization(
            self.weight_bits, qat.ends, qat.activations, qat.per_channel, qat.learned_scales, qat.learned_ranges
        )
        self.quantizers = quantise_model(model, fp32_modules.members(self.fp32_modules), quantization)
        if not self.quantizers:
            raise EngineError(
                Sentence(
                    "precision {precision}: the model has no linear or convolutional layer left",
                    precision=self.config.precision,
                )
            )
        self.labels = {name: created.label for name, created in self.quantizers.items()}
        self.notes.append(
            counted(
                "{count} layer trains in FP32 on values rounded to integers ({widths}); speed says nothing about "
                "integer hardware, the converted model is measured at the end",
                "{count} layers train in FP32 on values rounded to integers ({widths}); speed says nothing about "
                "integer hardware, the converted model is measured at the end",
                len(self.quantizers),
                widths=self._counts(),
            )
        )
        self.notes += self._doubts()
        left = [name for name, module in model.named_modules() if isinstance(module, NOT_QUANTISED)]
        if left:
            self.notes.append(Sentence("{modules} cannot be quantised and stay in FP32", modules=", ".join(left)))
        return model

    def _doubts(self) -> list[str]:
        """A sentence for each setting that has no effect, or another one than its name suggests."""
        qat = self.qat
        reported: list[str] = []
        if qat.start_epoch > self.config.train.epochs:
            reported.append(
                Sentence(
                    "qat.start_epoch = {start_epoch} comes after the last epoch: trained in plain FP32",
                    start_epoch=qat.start_epoch,
                )
            )
        if qat.learned_ranges and not self.config.optimizer.weight_decay:
            reported.append(
                L_(
                    "qat.learned_ranges: without optimizer.weight_decay nothing but the loss pulls the ranges in; "
                    "PACT penalises them as it does weights"
                )
            )
        return reported

    def _counts(self) -> Sentence:
        labels = list(self.labels.values())
        return together(
            *(
                Sentence("{count} with {label}", count=labels.count(label), label=label)
                for label in dict.fromkeys(labels)
            ),
            between="; ",
        )

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

    def finish(
        self, model: nn.Module, task: Task, stopped: Callable[[], bool]
    ) -> Iterator[tuple[dict[str, Any], list[str]]]:
        if not self.qat.measure:
            return
        batches = some_batches(task)
        model.eval()
        for quantizer in self.quantizers.values():
            quantizer.active = True
        fake = evaluate(model, task, batches, self.device)
        if stopped():
            return
        converted = convert_layers(model, self.quantizers, task, batches)
        facts = measure(converted, fake, task, batches, sizes(self.config.data.batch_size, batches), stopped)
        facts["arithmetic"] = arithmetic_note(self._bits(), converted.native)
        reported = sentences(facts, task.metric) if "integer" in facts["evaluation"] else []
        reported.append(facts["arithmetic"])
        if self.qat.save_to:
            reported.append(self._save(converted, facts))
        yield {"quantised": facts}, reported

    def _save(self, converted: Converted, facts: dict[str, Any]) -> str:
        from precgui.engine.qat import saved_model

        path = Path(self.qat.save_to).expanduser().absolute()
        evaluation = facts["evaluation"].get("integer", {})
        try:
            saved_model.save(path, self.config, converted.state, self._bits(), evaluation)
        except (OSError, RuntimeError) as error:
            return Sentence("qat.save_to: {path} could not be written ({why})", path=path, why=first_line(error))
        facts["file"] = str(path)
        return Sentence("the converted model is in {path}; `precgui evaluate` reads it", path=path)

    def _bits(self) -> dict[str, tuple[int, int | None]]:
        """The bits of weights and of inputs of each layer."""
        return {name: (quantizer.bits, quantizer.input_bits) for name, quantizer in self.quantizers.items()}


class Int8(QuantizationAware):
    weight_bits = 8


class Int4(QuantizationAware):
    weight_bits = 4


class Int2(QuantizationAware):
    weight_bits = 2


class Int1(QuantizationAware):
    weight_bits = 1
