"""How many weights a run's format turns to zero in its products."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine.emulation.native_fp8 import NativeLinear
from precgui.engine.precisions import Precision


@torch.no_grad()
def operand(layer: Any, precision: Precision) -> Tensor | None:
    """The weight as the product of the layer sees it, up to a factor; None where asking would have side effects.

    Stochastic rounding draws for this batch as the product did. Scales that follow the largest values of steps before
    would change by being asked.
    """
    weight: Tensor = layer.weight.detach()
    if isinstance(layer, NativeLinear):
        return None if layer.scales.weight.is_delayed else _native_fp8(layer, weight)
    products = getattr(layer, "products", None)
    if products is not None:
        scale = getattr(products.weight, "scale", None)
        axis = getattr(getattr(layer, "geometry", None), "weight_axis", 1)
        return None if scale is not None and scale.is_delayed else products.weight(weight.float(), axis)
    quantizer = getattr(layer, "quantizer", None)
    if quantizer is not None:
        return quantizer.weights(weight)  # type: ignore[no-any-return]
    dtype = getattr(precision, "dtype", None)  # of autocast
    return weight if dtype is None or _is_kept(layer, precision) else weight.to(dtype)


def _native_fp8(layer: NativeLinear, weight: Tensor) -> Tensor:
    return (weight * layer.scales.weight(weight, 1)).to(torch.float8_e4m3fn).float()


def _is_kept(layer: nn.Module, precision: Precision) -> bool:
    return any(layer is inner for module in precision.fp32_modules.values() for inner in module.modules())
