"""Tensors held in addition to the weights: running statistics in buffers, and copies of the weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from precgui.engine.module_calls import plain_name
from precgui.engine.telemetry import cpu_kernels as k
from precgui.engine.telemetry.backends import StatsBackend, listed
from precgui.engine.telemetry.parameters import Named, Weight
from precgui.engine.telemetry.readable import readable
from precgui.engine.telemetry.statistics import StatisticsTable

Copies = Callable[[], Named]


class BufferAndEmaStats:
    """Measures buffers (`buffer`) and copies of weights (`ema`) after a step, and how the step changed them."""

    def __init__(self, meter: StatsBackend, sources: Mapping[str, Callable[[], Named]]) -> None:
        """`sources` gives the tensors of each kind by name; a kind without tensors is left out."""
        self._meter = meter
        self._sources = {kind: source for kind, source in sources.items() if source()}
        self._kept: dict[str, tuple[list[Tensor], StatisticsTable, Any]] = {}

    @property
    def kinds(self) -> Sequence[str]:
        return tuple(self._sources)

    def begin(self, kind: str, stride: int, step: int) -> None:
        """Keep the values from before the step."""
        tensors, table = listed(kind, self._sources[kind](), stride)
        if tensors:
            self._kept[kind] = tensors, table, self._meter.keep(tensors, table.strides, step)

    def forget(self) -> None:
        self._kept.clear()

    def measured(self, kind: str, step: int) -> tuple[StatisticsTable, Any] | None:
        """Rows of the values after the step, with the changes since `begin`; None where it was not called."""
        if kind not in self._kept:
            return None
        before, table, kept = self._kept.pop(kind)
        tensors, now = listed(kind, self._sources[kind](), max(table.strides, default=1))
        if now.names != table.names or [t.shape for t in tensors] != [t.shape for t in before]:
            return None
        rows = self._meter.measure(tensors, table.strides, step)
        changes = self._meter.compare(tensors, table.strides, step, kept)
        rows[:, k.CHANGED : k.SUMS] = changes[:, k.CHANGED : k.SUMS]
        table.changes = True
        return table, rows

    def values(self, kind: str) -> Named:
        return self._sources[kind]() if kind in self._sources else []


def buffers(model: nn.Module) -> Named:
    """The buffers that hold numbers with a fraction, such as running means and variances, by name."""
    return [
        (plain_name(name), buffer)
        for name, buffer in model.named_buffers()
        if buffer.is_floating_point() and readable(buffer) is not None
    ]


def copies_in(model: nn.Module, weights: Sequence[Weight]) -> Named:
    """Parameters that no optimizer updates and that look like copies of ones that it does: the same shape, and the same
    last two parts of the name (`ema.fc.weight` of `net.fc.weight`)."""
    updated = {id(weight.own) for weight in weights}
    alike = {(_end(weight.name), weight.own.shape) for weight in weights}
    return [
        (plain_name(name), parameter.detach())
        for name, parameter in model.named_parameters()
        if id(parameter) not in updated and (_end(name), parameter.shape) in alike and readable(parameter) is not None
    ]


def copies_of(source: nn.Module | Mapping[str, Tensor], weights: Sequence[Weight]) -> Named:
    """Copies that the training keeps outside the model, as `ema.` and the name of the weight that they are of."""
    if isinstance(source, nn.Module):
        named: dict[str, Tensor] = {name: p.detach() for name, p in source.named_parameters()}
    else:
        named = {name: tensor.detach() for name, tensor in source.items()}
    shapes = {weight.name: weight.own.shape for weight in weights}
    results = []
    for name, tensor in named.items():
        own = name if name in shapes else name.partition(".")[2]  # AveragedModel calls its copy `module`
        if shapes.get(own) == tensor.shape and tensor.is_floating_point():
            results.append((f"ema.{own}", tensor))
    return results


def _end(name: str) -> tuple[str, ...]:
    return tuple(name.split(".")[-2:])
