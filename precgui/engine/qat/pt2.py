"""A saved integer model as a PT2 program, for torchao, Inductor and other users of torch.export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine import torch_private
from precgui.engine.casting import cast_floats
from precgui.engine.errors import EngineError
from precgui.engine.qat.integer_layers import Integer
from precgui.engine.qat.saved_model import restore_file
from precgui.sentences import Sentence, first_line

_SAMPLES = 4  # for torch.export: more than one, which it would take for a constant


class QuantizedLayer(nn.Module):
    """An `Integer` layer in the operations of PT2E quantisation: quantise and dequantise around a product in FP32.

    Back ends find this pattern and put their own integer kernel in its place.
    """

    weight: Tensor
    scales: Tensor
    zeros: Tensor
    bias: Tensor | None

    def __init__(self, layer: Integer) -> None:
        super().__init__()
        self.product = layer.product
        self.register_buffer("weight", layer.integers())
        self.register_buffer("scales", layer.scales.expand(layer.shape[0]).contiguous())
        self.register_buffer("zeros", torch.zeros(layer.shape[0], dtype=torch.int64))
        self.register_buffer("bias", layer.bias)
        self.range = -(1 << (max(layer.bits, 2) - 1)), (1 << (max(layer.bits, 2) - 1)) - 1
        bounds = float(layer.input_scale), int(layer.input_zero), 0, layer.largest_input, torch.uint8
        self.input = None if layer.input_bits is None else bounds

    def forward(self, value: Tensor) -> Tensor:
        operations = torch_private.quantized_operations()
        if self.input is not None:
            steps = operations.quantize_per_tensor.default(value, *self.input)
            value = operations.dequantize_per_tensor.default(steps, *self.input)
        weight = operations.dequantize_per_channel.default(
            self.weight, self.scales, self.zeros, 0, *self.range, torch.int8
        )
        return self.product(value, weight, self.bias)


def write_program(source: Path, target: Path, *, own_code: bool = False) -> list[Path]:
    """Write the integer model that `qat.save_to` kept in `source` as a PT2 program; returns the path.

    Raises EngineError for a model that cannot be read or exported and for a file that exists or cannot be written.
    """
    if target.exists():
        raise EngineError(Sentence("{path} already exists; choose another name or delete it first", path=target))
    restored = restore_file(source, own_code=own_code)
    inputs = cast_floats(restored.batches[0][0], torch.float32)
    try:
        program = exported(restored.model, inputs)
    except torch_private.export_errors() as error:
        raise EngineError(
            Sentence(
                "torch.export cannot follow {model}: {why}",
                model=restored.config.model_name,
                why=first_line(error, 200),
            )
        ) from None
    try:
        torch.export.save(program, target)
    except (OSError, RuntimeError) as error:
        target.unlink(missing_ok=True)
        raise EngineError(
            Sentence("{path} cannot be written: {why}; choose another place", path=target, why=first_line(error))
        ) from None
    return [target]


def exported(model: nn.Module, inputs: Any) -> torch.export.ExportedProgram:
    """The model as a program for any number of samples, where its code allows it."""
    for name, module in list(model.named_modules()):
        if isinstance(module, Integer):
            model.set_submodule(name, QuantizedLayer(module))
    few = torch_private.tree_map(lambda value: value[:_SAMPLES].clone(), inputs)
    shapes = (torch_private.tree_map(lambda value: {0: torch.export.Dim.AUTO}, inputs),)
    with torch.no_grad():
        return torch.export.export(model, (few,), dynamic_shapes=shapes)
