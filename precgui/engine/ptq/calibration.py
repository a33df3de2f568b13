"""Statistics of the inputs of layers on calibration data, from which methods find scales and corrections."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from precgui.engine.ptq.layer_matrix import columns_of, has_columns, numbers_a_channel, rows_of, weight_of

MOST_HESSIAN_BYTES = 2 << 30  # held at once; more layers take more passes over the calibration data
_MOST_SAMPLE = 512  # inputs that are kept of a layer


@dataclass
class InputStatistics:
    """Of one layer: the mean of x xT [line, line] in FP64 where asked for, magnitudes by channel, and some inputs."""

    hessian: Tensor | None = None
    count: int = 0
    mean: Tensor | None = None
    largest: Tensor | None = None
    kept: list[Tensor] = field(default_factory=list)

    def add(self, layer: nn.Module, inputs: Tensor, *, with_hessian: bool) -> None:
        columns = columns_of(layer, inputs)
        by_channel = columns.view(len(columns), -1, numbers_a_channel(layer)).abs()
        peaks, sums = by_channel.amax((0, 2)), by_channel.mean(2).sum(0)
        self.largest = peaks if self.largest is None else torch.maximum(self.largest, peaks)
        self.mean = sums if self.mean is None else self.mean + sums
        self.count += len(columns)
        if with_hessian:
            product = (columns.T @ columns).double()
            self.hessian = product if self.hessian is None else self.hessian + product
        self.kept.append(columns[:: max(len(columns) // 64, 1)][:64].clone())

    @property
    def sample(self) -> Tensor:
        """Inputs of the layer, [count, line]."""
        return torch.cat(self.kept)[:_MOST_SAMPLE]

    @property
    def mean_magnitude(self) -> Tensor:
        assert self.mean is not None
        return self.mean / max(self.count, 1)

    @property
    def mean_hessian(self) -> Tensor:
        assert self.hessian is not None
        return self.hessian / max(self.count, 1)


class _WeightsUsed(TorchFunctionMode):
    """Notes which of some weights an operation has taken, whether their layer was called or not."""

    def __init__(self, weights: Mapping[int, str]) -> None:
        super().__init__()
        self.weights, self.used = weights, set[str]()

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        given = (*args, *(kwargs or {}).values())
        self.used.update(self.weights[id(each)] for each in given if id(each) in self.weights)
        return func(*args, **(kwargs or {}))


def inputs_seen(layers: Mapping[str, nn.Module], passes: Sequence[Callable[[], object]]) -> dict[str, int | None]:
    """How many inputs reach each layer: rows of a linear one, samples of a convolution.

    None for a layer that is not called and whose weight is used all the same.
    """
    counts = dict.fromkeys(layers, 0)

    def counting(name: str, layer: nn.Module) -> Any:
        def before(_: nn.Module, args: tuple[Any, ...]) -> None:
            shape = args[0].shape
            counts[name] += math.prod(shape[:-1]) if isinstance(layer, nn.Linear) else int(shape[0])

        return before

    mode = _WeightsUsed({id(weight_of(layer)): name for name, layer in layers.items()})
    with torch.no_grad(), contextlib.ExitStack() as stack:
        for name, layer in layers.items():
            stack.callback(layer.register_forward_pre_hook(counting(name, layer)).remove)
        with mode:
            for one in passes:
                one()
    return {name: None if not count and name in mode.used else count for name, count in counts.items()}


def statistics_of(
    layers: Mapping[str, nn.Module], passes: Sequence[Callable[[], object]], *, with_hessian: bool
) -> Iterator[tuple[str, InputStatistics]]:
    """Statistics by layer, a few layers at a time where the memory for all would be too much.

    Each of `passes` runs the model on one calibration batch. Layers that were never reached are left out.
    """
    usable = {name: layer for name, layer in layers.items() if has_columns(layer)}
    for group in _together(usable) if with_hessian else [usable]:
        found = {name: InputStatistics() for name in group}
        with torch.no_grad(), contextlib.ExitStack() as stack:
            for name, layer in group.items():
                hook = _adding(found[name], layer, with_hessian)
                stack.callback(layer.register_forward_pre_hook(hook).remove)
            for one in passes:
                one()
        for name in group:
            statistics = found.pop(name)
            if statistics.count:
                yield name, statistics


def _adding(statistics: InputStatistics, layer: nn.Module, with_hessian: bool) -> Any:
    def before(_: nn.Module, args: tuple[Any, ...]) -> None:
        statistics.add(layer, args[0], with_hessian=with_hessian)

    return before


def _together(layers: Mapping[str, nn.Module]) -> list[dict[str, nn.Module]]:
    groups: list[dict[str, nn.Module]] = []
    room = 0
    for name, layer in layers.items():
        need = 8 * rows_of(layer).shape[1] ** 2
        if not groups or need > room:
            groups.append({})
            room = MOST_HESSIAN_BYTES
        groups[-1][name] = layer
        room -= need
    return groups
