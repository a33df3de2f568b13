"""The converted model: weights stored in as few bits as they have, products on integer kernels where they exist."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from precgui.engine.compiled_loops import compiled
from precgui.engine.qat.layers import Quantizer
from precgui.engine.qat.onednn import integer_kernels
from precgui.engine.torch_private import ConvNd


@compiled
def _round(values: Any, out: Any, step: Any, zero: Any, largest: Any) -> None:
    for i in range(values.size):
        out[i] = np.uint8(min(max(np.rint(values[i] / step) + zero, np.float32(0)), largest))


def to_integers(value: Tensor, step: float, zero: int, largest: int) -> Tensor:
    """The integers 0 to `largest` that FP32 values on the CPU become, as uint8 in the same layout."""
    value = value if _is_dense(value) else value.contiguous()
    created = torch.empty_like(value, dtype=torch.uint8)
    numbers = np.float32(step), np.float32(zero), np.float32(largest)
    _round(_in_memory(value), _in_memory(created), *numbers)
    return created


def _is_dense(value: Tensor) -> bool:
    return value.is_contiguous() or (value.dim() == 4 and value.is_contiguous(memory_format=torch.channels_last))


def _in_memory(value: Tensor) -> Any:
    """The numbers in the order in which they lie in memory, without a copy."""
    return (value if value.is_contiguous() else value.permute(0, 2, 3, 1)).detach().view(-1).numpy()


_ONEDNN: Any = torch.ops.onednn


def pack(integers: Tensor, bits: int) -> Tensor:
    """Integers in two's complement, `bits` each, the first in the lowest bits of a byte; a sign is 0 for minus."""
    values = (integers.flatten() > 0) if bits == 1 else integers.flatten().to(torch.int16)
    fields = values.to(torch.int16) & (2**bits - 1)
    per_byte = 8 // bits
    fields = nn.functional.pad(fields, (0, -len(fields) % per_byte)).view(-1, per_byte)
    shifted = fields << (torch.arange(per_byte, dtype=torch.int16) * bits)
    packed: Tensor = shifted.sum(1).to(torch.uint8)
    return packed


def unpack(packed: Tensor, bits: int, shape: tuple[int, ...]) -> Tensor:
    """Unpacks the argument of `pack`, as int8."""
    per_byte = 8 // bits
    fields = (packed.to(torch.int16)[:, None] >> (torch.arange(per_byte, dtype=torch.int16) * bits)) & (2**bits - 1)
    values = fields.flatten()[: math.prod(shape)].view(shape)
    signed = 2 * values - 1 if bits == 1 else torch.where(values >= 2 ** (bits - 1), values - 2**bits, values)
    return signed.to(torch.int8)


class Integer(nn.Module):
    """A linear or convolutional layer on integers: [.., inputs] or [batch, channels, ...] in FP32, result in FP32.

    With `native` the product runs on oneDNN's integer kernels, else (kernels missing, or not exact for weights of so
    many bits) on the same integers held in FP32.
    """

    packed: Tensor
    scales: Tensor
    input_scale: Tensor
    input_zero: Tensor
    bias: Tensor | None

    def __init__(self, layer: Any, bits: int, input_bits: int | None, *, scales: int, bias: bool) -> None:
        """Zeros in place of `layer`, to be filled: `scales` is the number of steps, 1 or one for each channel."""
        super().__init__()
        self.bits, self.input_bits, self.shape = bits, input_bits, tuple(layer.weight.shape)
        self.largest_input = (1 << (input_bits or 0)) - 1
        self.register_buffer("packed", torch.zeros(-(-math.prod(self.shape) * bits // 8), dtype=torch.uint8))
        self.register_buffer("scales", torch.zeros(scales))
        self.register_buffer("bias", torch.zeros(self.shape[0]) if bias else None)
        self.register_buffer("input_scale", torch.ones(()))
        self.register_buffer("input_zero", torch.zeros((), dtype=torch.int32))
        self.geometry = _geometry(layer)
        two_dimensional = self.geometry is None or (len(self.shape) == 4 and not isinstance(self.geometry[1], str))
        self.native = two_dimensional and self.input_bits == 8 and integer_kernels(bits) == "exact"
        self._ready: tuple[Any, ...] | None = None

    @classmethod
    def of(cls, layer: Any, quantizer: Quantizer) -> Integer:
        """Makes the integer layer of a trained layer."""
        integers, scales = quantizer.integers(layer.weight)
        created = cls(layer, quantizer.bits, quantizer.input_bits, scales=scales.numel(), bias=layer.bias is not None)
        created.packed = pack(integers.cpu(), created.bits)
        created.scales = scales.flatten().float().cpu()
        created.bias = None if layer.bias is None else layer.bias.detach().float().cpu()
        step, zero = quantizer.input_range()
        created.input_scale, created.input_zero = step.detach().float().cpu(), zero.detach().to(torch.int32).cpu()
        return created

    def integers(self) -> Tensor:
        """The weights, as int8."""
        return unpack(self.packed, self.bits, self.shape)

    def extra_repr(self) -> str:
        return f"{self.shape}, int{self.bits} weights"

    def rescale(self, factor: Tensor, shift: Tensor) -> None:
        """Let the result be `factor` times what it was, and `shift` more, by channel; the integers stay."""
        self.scales = self.scales.expand(self.shape[0]) * factor
        self.bias = shift if self.bias is None else self.bias * factor + shift
        self._ready = None

    def forward(self, value: Tensor) -> Tensor:
        if self._ready is None:
            self._ready = self._prepare()
        if self.input_bits is None:
            return self.product(value, self._ready[0], self.bias)
        step, zero = self._ready[:2]
        steps = to_integers(value, step, zero, self.largest_input)
        if not self.native:
            weight, scales = self._ready[2:]
            result: Tensor = self.product(steps.float().sub_(zero), weight, None) * scales * step
            return result if self.bias is None else result + self.bias.view(-1, *(1,) * (len(self.shape) - 2))
        return self._on_integers(steps, *self._ready)

    def _prepare(self) -> tuple[Any, ...]:
        """Prepares once for all calls: the weights unpacked, in the layout of the kernels."""
        integers = self.integers()
        per_channel = self.scales.expand(self.shape[0]).contiguous()
        along = per_channel.view(-1, *(1,) * (len(self.shape) - 1))
        if self.input_bits is None:
            return (integers.float() * along,)
        step, zero = float(self.input_scale), int(self.input_zero)
        if not self.native:
            return step, zero, integers.float(), per_channel.view(-1, *(1,) * (len(self.shape) - 2))
        if self.geometry is None:
            weight = _ONEDNN.qlinear_prepack(integers, None)
        else:
            stride, padding, dilation, groups = self.geometry
            weight = _ONEDNN.qconv_prepack(integers, per_channel, step, zero, stride, padding, dilation, groups, None)
        return step, zero, weight, per_channel, torch.zeros(self.shape[0], dtype=torch.int32)

    def _on_integers(self, steps: Tensor, *ready: Any) -> Tensor:
        out: tuple[Any, ...] = (1.0, 0, torch.float32, "none", [], "")
        if self.geometry is None:
            rows = _ONEDNN.qlinear_pointwise(steps.flatten(0, -2), *ready, self.bias, *out)
            return rows.view(*steps.shape[:-1], -1)  # type: ignore[no-any-return]
        steps = steps.contiguous(memory_format=torch.channels_last)
        return _ONEDNN.qconv_pointwise(steps, *ready, self.bias, *self.geometry, *out)  # type: ignore[no-any-return]

    def product(self, value: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.geometry is None:
            return nn.functional.linear(value, weight, bias)
        convolution = (nn.functional.conv1d, nn.functional.conv2d, nn.functional.conv3d)[len(self.shape) - 3]
        return convolution(value, weight, bias, *self.geometry)


def _geometry(layer: nn.Module) -> tuple[Any, ...] | None:
    """Stride, padding, dilation and groups of a convolution; None for a linear layer."""
    if not isinstance(layer, ConvNd):
        return None
    padding = layer.padding if isinstance(layer.padding, str) else list(layer.padding)
    return list(layer.stride), padding, list(layer.dilation), layer.groups


def convert(model: nn.Module, quantizers: Mapping[str, Quantizer]) -> nn.Module:
    """Replace the layers named in `quantizers` by their integer form, in place; the model is for evaluation then."""
    for name, quantizer in quantizers.items():
        model.set_submodule(name, Integer.of(model.get_submodule(name), quantizer))
    return model.eval()
