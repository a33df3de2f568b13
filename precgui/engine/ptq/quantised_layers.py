"""Layers of a model with other weights and rounded inputs for as long as something is measured, and put back after."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from precgui.engine.emulation.functional import attention_heads
from precgui.engine.ptq.layer_matrix import along_channels, channel_axis, set_rows, weight_of
from precgui.engine.ptq.rounding import CodedRows, RowRounding, round_rows
from precgui.formats.weight_formats import WeightFormat


@dataclass(frozen=True)
class QuantisedLayer:
    """`coded` are the weights as stored; inputs are divided by `channel_scale`, then rounded.

    absorbed: parameters of layers before that have taken over a scale of the inputs, with their new numbers.
    is_scaled: a scale of the inputs is in the weights.
    """

    coded: CodedRows
    channel_scale: Tensor | None = None
    inputs: RowRounding | None = None
    absorbed: tuple[tuple[nn.Parameter, Tensor], ...] = ()
    is_scaled: bool = False


def absorbed_numbers(quantised: Mapping[str, QuantisedLayer]) -> dict[int, Tensor]:
    """The new numbers of parameters that have taken over scales, by the identity of the parameter."""
    return {id(parameter): values for low in quantised.values() for parameter, values in low.absorbed}


@contextlib.contextmanager
def applied(chosen: Mapping[str, nn.Module], quantised: Mapping[str, QuantisedLayer]) -> Iterator[None]:
    """The layers with these weights and inputs inside, and those before them; afterwards, they are as they were."""
    with contextlib.ExitStack() as stack:
        for name, low in quantised.items():
            layer = chosen[name]
            stack.callback(_restore, weight_of(layer), weight_of(layer).detach().clone())
            set_rows(layer, low.coded.values)
            for parameter, values in low.absorbed:
                stack.callback(_restore, parameter, parameter.detach().clone())
                _restore(parameter, values)
            if low.inputs is not None or low.channel_scale is not None:
                stack.callback(layer.register_forward_pre_hook(_of_inputs(layer, low)).remove)
        yield


@torch.no_grad()
def _restore(parameter: nn.Parameter, values: Tensor) -> None:
    parameter.copy_(values)


def _of_inputs(layer: nn.Module, low: QuantisedLayer) -> Callable[[nn.Module, tuple[Any, ...]], tuple[Any, ...]]:
    def before(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        values = args[0]
        if low.channel_scale is not None:
            values = values / along_channels(layer, low.channel_scale, values)
        if low.inputs is not None:
            values = low.inputs(values, channel_axis(layer))
        return (values, *args[1:])

    return before


class KvRounding(TorchFunctionMode):
    """While entered, keys and values of attention are rounded as a cache would hold them, a row for a token and head.

    `parts` holds "k", "v" or both. `calls` counts the attentions that were met: 0 means that none was found.
    """

    def __init__(self, parts: Sequence[str], fmt: WeightFormat | None) -> None:
        super().__init__()
        self.parts, self.fmt, self.calls = frozenset(parts), fmt, 0

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is functional.multi_head_attention_forward:
            with self:
                return attention_heads(*args, **kwargs)
        if func is functional.scaled_dot_product_attention:
            self.calls += 1
            given = list(args)
            for place, (part, name) in enumerate((("k", "key"), ("v", "value")), 1):
                if part in self.parts and self.fmt is not None:
                    if place < len(given):
                        given[place] = self._rounded(given[place])
                    else:
                        kwargs[name] = self._rounded(kwargs[name])
            args = given
        return func(*args, **kwargs)

    def _rounded(self, values: Tensor) -> Tensor:
        assert self.fmt is not None
        rows = values.reshape(-1, values.shape[-1])
        return round_rows(rows, self.fmt).view(values.shape).to(values.dtype)
