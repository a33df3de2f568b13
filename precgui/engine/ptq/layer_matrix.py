"""Layers as matrices: the rows of a weight, and inputs as the columns that it is multiplied with."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from precgui.engine.emulation.layers import layers
from precgui.engine.torch_private import ConvNd, ConvTransposeNd


def mark_turned(layer: nn.Linear) -> None:
    """Note that the model's own files keep the weight of this layer as [inputs, outputs]."""
    layer.__dict__["is_turned"] = True


def is_turned(layer: nn.Module) -> bool:
    return bool(layer.__dict__.get("is_turned"))


def matrix_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The linear and convolutional layers by name; transposed convolutions, whose rows are no outputs, are none."""
    return {name: layer for name, layer in layers(model, set()).items() if not isinstance(layer, ConvTransposeNd)}


def weight_of(layer: nn.Module) -> nn.Parameter:
    return layer.get_parameter("weight")


def rows_of(layer: nn.Module) -> Tensor:
    """The weight as FP32 [outputs, line]."""
    return weight_of(layer).detach().float().flatten(1)


def has_columns(layer: nn.Module) -> bool:
    """Whether `columns_of` gives the inputs of this layer: linear ones, and convolutions of images in one group."""
    if isinstance(layer, ConvNd):
        return isinstance(layer, nn.Conv2d) and layer.groups == 1 and not isinstance(layer.padding, str)
    return isinstance(layer, nn.Linear)


def columns_of(layer: nn.Module, inputs: Tensor) -> Tensor:
    """All inputs that a row of the weight is multiplied with, [count, line], in FP32."""
    values = inputs.detach().float()
    if isinstance(layer, nn.Conv2d) and not isinstance(layer.padding, str):
        unfolded = nn.functional.unfold(values, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
        return unfolded.transpose(1, 2).flatten(0, 1)
    return values.flatten(0, -2)


def channel_axis(layer: nn.Module) -> int:
    """The axis of an input that a layer sums over."""
    return 1 if isinstance(layer, ConvNd) else -1


def numbers_a_channel(layer: nn.Module) -> int:
    """How many neighbouring numbers of a row belong to one input channel."""
    return math.prod(weight_of(layer).shape[2:])


def along_channels(layer: nn.Module, scale: Tensor, inputs: Tensor) -> Tensor:
    """A factor for each channel in the shape that multiplies an input of the layer."""
    if not isinstance(layer, ConvNd):
        return scale
    return scale.view(-1, *(1,) * (inputs.dim() - 2)) if inputs.dim() > 2 else scale


def channel_peaks(layer: nn.Module) -> Tensor:
    """The largest magnitude of the weight in each input channel."""
    peaks: Tensor = rows_of(layer).view(len(weight_of(layer)), -1, numbers_a_channel(layer)).abs().amax((0, 2))
    return peaks


@torch.no_grad()
def set_rows(layer: nn.Module, rows: Tensor) -> None:
    """Write a matrix of rows back into the weight."""
    weight = weight_of(layer)
    weight.copy_(rows.view(weight.shape))
