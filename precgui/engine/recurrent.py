"""LSTM, GRU and RNN step by step, with products of rounded operands where torch has one fused operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from precgui.engine.emulate import Products, linear
from precgui.engine.errors import EngineError
from precgui.engine.rounding import Round

_State = tuple[Tensor, ...]  # (hidden,) or (hidden, cell), each [batch, width]


@dataclass
class _Once:
    """Rounds a weight once for all time steps of one pass, for each axis that is asked for."""

    round: Round
    _known: dict[int, Tensor] = field(default_factory=dict)

    @property
    def axis_free(self) -> bool:
        return self.round.axis_free

    def __call__(self, tensor: Tensor, axis: int) -> Tensor:
        if axis not in self._known:
            self._known[axis] = self.round(tensor, axis)
        return self._known[axis]


class _Recurrent(nn.RNNBase):
    """A recurrent layer whose products take rounded operands; made from a layer by `emulate_recurrent`."""

    eager_only = True
    products: Products

    def forward(self, input: Any, hx: Any = None) -> Any:
        if isinstance(input, PackedSequence):
            raise EngineError(
                "packed sequences are not emulated in recurrent layers; set precision_options.products = layers"
            )
        first = self.batch_first and input.dim() == 3
        x = input.transpose(0, 1) if first else input if input.dim() == 3 else input.unsqueeze(1)
        begin = self._begin(hx, x)
        ends: list[_State] = []
        for layer in range(self.num_layers):
            x, reached = self._layer(layer, x, begin)
            ends += reached
            if self.dropout and layer < self.num_layers - 1:
                x = nn.functional.dropout(x, self.dropout, self.training)
        states = [torch.stack(part) for part in zip(*ends, strict=True)]
        if input.dim() < 3:
            x, states = x.squeeze(1), [state.squeeze(1) for state in states]
        return x.transpose(0, 1) if first else x, tuple(states) if len(states) > 1 else states[0]

    def _begin(self, hx: Any, x: Tensor) -> list[_State]:
        """The state of each layer and direction before the first step: as given, or zeros."""
        count = 2 if self.mode == "LSTM" else 1
        runs = self.num_layers * (2 if self.bidirectional else 1)
        if hx is None:
            return [tuple(x.new_zeros(x.shape[1], self.hidden_size) for _ in range(count))] * runs
        given = list(hx) if isinstance(hx, tuple) else [hx]
        given = [part if part.dim() == 3 else part.unsqueeze(1) for part in given]
        return [tuple(part[run] for part in given) for run in range(runs)]

    def _layer(self, layer: int, x: Tensor, begin: list[_State]) -> tuple[Tensor, list[_State]]:
        """[time, batch, features] through one layer, in one direction or both."""
        outputs, ends = [], []
        suffixes = [f"l{layer}"] + [f"l{layer}_reverse"] * self.bidirectional
        for place, suffix in enumerate(suffixes):
            state = begin[layer * len(suffixes) + place]
            output, end = self._sequence(x.flip(0) if place else x, suffix, state)
            outputs.append(output.flip(0) if place else output)
            ends.append(end)
        return torch.cat(outputs, -1), ends

    def _sequence(self, x: Tensor, suffix: str, state: _State) -> tuple[Tensor, _State]:
        own = [getattr(self, f"{name}_{suffix}", None) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        w_in, w_back, b_in, b_back = own
        assert w_in is not None
        assert w_back is not None
        cell = _CELLS[self.mode]
        stepwise = replace(self.products, weight=_Once(self.products.weight))
        seen = []
        for gates in linear(x, w_in, b_in, self.products).unbind(0):
            state = cell(gates, linear(state[0], w_back, b_back, stepwise), state)
            seen.append(state[0])
        return torch.stack(seen), state


class EmulatedLSTM(_Recurrent, nn.LSTM):
    pass


class EmulatedGRU(_Recurrent, nn.GRU):
    pass


class EmulatedRNN(_Recurrent, nn.RNN):
    pass


def _lstm(new: Tensor, back: Tensor, state: _State) -> _State:
    enter, keep, value, leave = (new + back).chunk(4, -1)
    cell = keep.sigmoid() * state[1] + enter.sigmoid() * value.tanh()
    return leave.sigmoid() * cell.tanh(), cell


def _gru(new: Tensor, back: Tensor, state: _State) -> _State:
    (reset_new, update_new, value_new), (reset_back, update_back, value_back) = new.chunk(3, -1), back.chunk(3, -1)
    reset, update = (reset_new + reset_back).sigmoid(), (update_new + update_back).sigmoid()
    value = (value_new + reset * value_back).tanh()
    return (value + update * (state[0] - value),)


_CELLS: dict[str, Callable[[Tensor, Tensor, _State], _State]] = {
    "LSTM": _lstm,
    "GRU": _gru,
    "RNN_TANH": lambda new, back, _: ((new + back).tanh(),),
    "RNN_RELU": lambda new, back, _: ((new + back).relu(),),
}
_TURNED: dict[type[nn.Module], type[nn.Module]] = {nn.LSTM: EmulatedLSTM, nn.GRU: EmulatedGRU, nn.RNN: EmulatedRNN}


def recurrent_layers(model: nn.Module, left_out: set[nn.Module]) -> dict[str, nn.Module]:
    """The layers that `emulate_recurrent` can turn, by name, without those left out."""
    return {
        name: module
        for name, module in model.named_modules()
        if type(module) in _TURNED and module not in left_out and not getattr(module, "proj_size", 0)
    }


def emulate_recurrent(chosen: dict[str, nn.Module], products: Callable[[str], Products]) -> dict[str, str]:
    """Turn each layer into its emulated form, in place; `products` gives its arithmetic by name. Returns the labels."""
    labels = {}
    for name, module in chosen.items():
        layer: Any = module
        layer.__class__ = _TURNED[type(module)]
        layer.products = products(name)
        labels[name] = layer.products.label
    return labels
