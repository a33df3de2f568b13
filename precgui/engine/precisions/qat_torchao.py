"""int8-qat by torchao: the exported graph of the model, prepared and converted by its PT2E quantisation for x86."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import torch
from torch import nn

from precgui.config import RunConfig
from precgui.engine.casting import cast_floats
from precgui.engine.emulation.layers import ATTENTION
from precgui.engine.errors import EngineError
from precgui.engine.precisions.qat import NOT_QUANTISED
from precgui.engine.precisions.quantised import Quantised
from precgui.engine.qat.conversion import Converted, folded_copy
from precgui.engine.qat.measure import sizes
from precgui.engine.qat.pt2e import graph as graphs
from precgui.engine.qat.pt2e.layer_errors import layer_errors
from precgui.engine.qat.pt2e.lowering import Lowered
from precgui.engine.qat.pt2e.rebuild import prepared, sample
from precgui.engine.qat.pt2e.state import state
from precgui.engine.tasks.base import Batch, Task


class Exported(Quantised):
    """Products of linear and convolutional layers, and what lies between them, as torchao's quantizer for x86 rounds.

    The range of every tensor is a moving average; weights are rounded with their batch norm's factor.
    """

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        super().__init__(config, device)
        for wrong, cure in (
            (config.train.checkpointing, "train.checkpointing = false"),
            (config.train.compile, "train.compile = false"),
            (self.qat.learned_scales, "qat.learned_scales = false"),
            (self.qat.learned_ranges, "qat.learned_ranges = false"),
        ):
            if wrong:
                raise EngineError(f"qat.backend = torchao trains an exported graph; set {cure} or qat.backend = own")
        self.sample: Any = None

    def observe_task(self, task: Task) -> None:
        self.sample = sample(task, self.device)

    def _convert(self, model: nn.Module) -> nn.Module:
        left = [name for name, module in model.named_modules() if isinstance(module, NOT_QUANTISED)]
        self.graph = prepared(model, self.sample, self.config, self.fp32_modules)
        self.switches = graphs.Switches(self.graph)
        layers = [name for name, _ in graphs.products(self.graph)]
        self.labels = {"": "int8, modules left out in fp32" if self.fp32_modules or left else "int8", ATTENTION: ""}
        self.notes.append(
            f"{len(layers)} layers train in FP32 on values rounded to integers by torchao {version('torchao')} "
            "(PT2E, quantizer for x86); speed says nothing about integer hardware, the converted model is measured at "
            "the end; the exported graph is one module, so activations of single layers are not recorded"
        )
        if left:
            self.notes.append(f"{', '.join(left)} cannot be quantised and stay in FP32")
        return self.graph

    def begin_epoch(self, model: nn.Module, epoch: int) -> None:
        self.switches.begin_epoch(
            epoch,
            start=self.qat.start_epoch,
            last_observed=self.qat.observers_off_after_epoch,
            last_counted=self.qat.freeze_bn_after_epoch,
        )

    def quantise_fully(self) -> None:
        self.switches.active = True
        self.switches.set(False)

    def bits(self) -> Mapping[str, tuple[int, int | None]]:
        return dict.fromkeys(self._names, (8, 8))

    def converted(self, model: nn.Module, task: Task, batches: Sequence[Batch]) -> Converted:
        inputs = cast_floats(batches[0][0], torch.float32)
        plain = folded_copy(model, task, inputs)
        self.graph.to("cpu")
        with torch.no_grad():
            layers = layer_errors(self.graph, inputs)
        self._names = list(layers)
        integers = graphs.convert(self.graph)
        lowered = Lowered(integers, inputs, sizes(self.config.data.batch_size, batches))
        return Converted(plain, lowered, state(integers), layers, lowered.native)
