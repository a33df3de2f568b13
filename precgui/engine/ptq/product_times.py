"""Products of quantised layers timed on this machine: smaller is not faster where nothing multiplies the codes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from precgui.engine.bench.timing import compare
from precgui.engine.ptq.layer_matrix import rows_of, weight_of
from precgui.engine.ptq.quantised_layers import QuantisedLayer
from precgui.engine.ptq.rounding import width_of_group
from precgui.formats.model import IntFormat
from precgui.formats.weight_formats import WeightFormat

INPUTS = (1, 64)  # a token that is generated; some that are read at once
_ROUNDS = 5


@dataclass(frozen=True)
class ProductTime:
    """Seconds of the products of all layers from codes over those of FP32 weights, for so many inputs."""

    inputs: int
    ratio: float


def product_times(
    layers: Mapping[str, nn.Module], quantised: Mapping[str, QuantisedLayer], formats: Mapping[str, WeightFormat],
    stopped: Callable[[], bool],
) -> list[ProductTime]:  # fmt: skip
    """Time linear layers, each shape and format once, in turns with FP32. The weights of layers weigh their ratios.

    Codes take a byte each and become numbers before each product, as where a library has no kernel for the device.
    """
    alike: dict[tuple[torch.Size, str], list[str]] = {}
    for name in quantised:
        if isinstance(layers[name], nn.Linear):
            alike.setdefault((weight_of(layers[name]).shape, formats[name].name), []).append(name)
    found = []
    for inputs in INPUTS if alike else ():
        total, ratios = 0, 0.0
        for names in alike.values():
            weights = sum(weight_of(layers[name]).numel() for name in names)
            ratios += weights * _ratio(layers[names[0]], quantised[names[0]], formats[names[0]], inputs, stopped)
            total += weights
        found.append(ProductTime(inputs, ratios / total))
    return found


@torch.no_grad()
def _ratio(layer: nn.Module, low: QuantisedLayer, fmt: WeightFormat, count: int, stopped: Callable[[], bool]) -> float:
    plain = rows_of(layer)
    inputs = torch.ones(count, plain.shape[1], device=plain.device)
    product = _from_codes(low, fmt)
    return compare([lambda: functional.linear(inputs, plain), lambda: product(inputs)], plain.device, stopped,
                   _ROUNDS)[1]  # fmt: skip


def _from_codes(low: QuantisedLayer, fmt: WeightFormat) -> Callable[[Tensor], Tensor]:
    """The product of inputs with a weight that is kept as codes of a byte and scales."""
    codes, scales = low.coded.codes, low.coded.scales
    line, group = codes.shape[1], width_of_group(fmt, codes.shape[1])
    numbers: Callable[[Tensor], Tensor]
    if isinstance(fmt.element, IntFormat) and fmt.element.bits <= 8:
        kept, numbers = codes.to(torch.int8), Tensor.float
    elif fmt.element.name == "e4m3fn":
        kept, numbers = codes.to(torch.float8_e4m3fn), Tensor.float
    else:
        kept, numbers = _looked_up(codes)

    def product(inputs: Tensor) -> Tensor:
        values = numbers(kept)
        if scales.numel() == len(codes):
            return functional.linear(inputs, values) * scales.view(-1)
        return functional.linear(inputs, values * scales.repeat_interleave(group, 1)[:, :line])

    return product


def _looked_up(codes: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Codes of other elements as places in a table of their values."""
    table, places = codes.unique(return_inverse=True)
    return places.to(torch.uint8 if len(table) <= 256 else torch.int32), lambda kept: table[kept.int()]
