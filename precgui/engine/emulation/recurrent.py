"""LSTM, GRU and RNN step by step, with products of rounded operands where torch has one fused operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from precgui.engine.emulation.labels import labelled_as
from precgui.engine.emulation.layers import MatmulArithmetic, linear
from precgui.engine.errors import EngineError
from precgui.engine.torch_private import DisableTorchFunction
from precgui.sentences import L_

_State = tuple[Tensor, ...]  # (hidden,) or (hidden, cell), each [batch, width]


class _Steps:
    """The products of one recurrent weight with the states of one pass over a sequence, as rounded operands.

    The weight is rounded once for all steps, and its gradient is one product over all of them, as in fused layers.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, products: MatmulArithmetic) -> None:
        self.products, self.bias = products, None if bias is None else products.bias(bias.detach().float(), 0)
        rounded = products.weight(weight.detach().float(), 1)
        self.forward = rounded.t().contiguous()  # half the time of the product, which reads it at every step
        self.backward = rounded if products.weight.axis_free else products.weight(weight.detach().float(), 0)
        self.gone_back: list[tuple[Tensor, ...]] = []  # state, gradient, rounded gradient of each step, backwards
        self._anchor = _Gradients.apply(weight, bias, self)

    def __call__(self, state: Tensor) -> Tensor:
        """[batch, width] to [batch, gates]."""
        with torch.autocast(state.device.type, enabled=False), DisableTorchFunction():
            return _Step.apply(state, self._anchor, self)  # type: ignore[no-any-return]


class _Step(torch.autograd.Function):
    """Leaves the gradient of the weight to `_Gradients`, whose turn comes after the last step has gone back."""

    @staticmethod
    def forward(ctx: Any, state: Tensor, anchor: Tensor, steps: _Steps) -> Tensor:
        p = steps.products
        state_q = p.activation(state.float(), 1)
        ctx.save_for_backward(state_q if p.axis_free else state)
        ctx.steps, ctx.dtype = steps, state.dtype
        with labelled_as(p.label):
            if p.accumulator is None and steps.bias is not None:
                return p.result(torch.addmm(steps.bias, state_q, steps.forward), -1).to(state.dtype)
            product = p.matmul(state_q, steps.forward)
        return (product if steps.bias is None else product + steps.bias).to(state.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        p, grad = ctx.steps.products, grads[0].float()
        grad_q = p.gradient(grad, 1)
        if ctx.needs_input_grad[1]:
            ctx.steps.gone_back.append((*ctx.saved_tensors, grad, grad_q))
        with labelled_as(p.label):
            grad_state = p.matmul(grad_q, ctx.steps.backward).to(ctx.dtype) if ctx.needs_input_grad[0] else None
        return grad_state, grad.new_zeros(()), None


class _Gradients(torch.autograd.Function):
    """Gives a number on which all steps depend, so that it goes back after them."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor | None, steps: _Steps) -> Tensor:
        ctx.steps, ctx.dtype = steps, weight.dtype
        return weight.new_zeros((), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        p = ctx.steps.products
        states, grad, grad_q = (torch.cat(part) for part in zip(*reversed(ctx.steps.gone_back), strict=True))
        ctx.steps.gone_back.clear()
        grad_w = grad_b = None
        if ctx.needs_input_grad[0]:
            grad_t, rows = (grad_q, states) if p.axis_free else (p.gradient(grad, 0), p.activation(states.float(), 0))
            with labelled_as(p.label):
                grad_w = p.matmul(grad_t.t(), rows).to(ctx.dtype)
        if ctx.needs_input_grad[1]:
            grad_b = p.bias_gradient(grad, grad_q, 0).to(ctx.dtype)
        return grad_w, grad_b, None


class _Recurrent(nn.RNNBase):
    """A recurrent layer whose products take rounded operands; made from a layer by `emulate_recurrent`."""

    eager_only = True
    products: MatmulArithmetic

    def forward(self, input: Any, hx: Any = None) -> Any:
        if isinstance(input, PackedSequence):
            raise EngineError(
                L_("packed sequences are not emulated in recurrent layers; set precision_options.products = layers")
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
        back = _Steps(w_back, b_back, self.products)
        visited = []
        for gates in linear(x, w_in, b_in, self.products).unbind(0):
            state = cell(gates, back(state[0]), state)
            visited.append(state[0])
        return torch.stack(visited), state


class EmulatedLSTM(_Recurrent, nn.LSTM):
    pass


class EmulatedGRU(_Recurrent, nn.GRU):
    pass


class EmulatedRNN(_Recurrent, nn.RNN):
    pass


class _LstmCell(torch.autograd.Function):
    """The gates of an LSTM in few passes; under autograd each of eleven operations would keep what it saw."""

    @staticmethod
    def forward(ctx: Any, new: Tensor, back: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        gates = new + back
        opened = gates.sigmoid()
        enter, keep, value, leave = opened.chunk(4, -1)
        value.copy_(gates.chunk(4, -1)[2].tanh())
        reached = torch.addcmul(keep * cell, enter, value)
        displayed = reached.tanh()
        ctx.save_for_backward(opened, cell, displayed)
        return leave * displayed, reached

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        opened, cell, displayed = ctx.saved_tensors
        enter, keep, value, leave = opened.chunk(4, -1)
        grad_cell = torch.addcmul(grads[1], grads[0] * leave, 1 - displayed * displayed)
        grad = torch.addcmul(opened, opened, opened, value=-1)  # the slope of a sigmoid
        grad_enter, grad_keep, grad_value, grad_leave = grad.chunk(4, -1)
        torch.sub(1, value * value, out=grad_value)
        grad_enter.mul_(grad_cell * value)
        grad_keep.mul_(grad_cell * cell)
        grad_value.mul_(grad_cell * enter)
        grad_leave.mul_(grads[0] * displayed)
        return grad, grad, grad_cell * keep if ctx.needs_input_grad[2] else None


def _lstm(new: Tensor, back: Tensor, state: _State) -> _State:
    reached: _State = _LstmCell.apply(new, back, state[1])
    return reached


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


def emulate_recurrent(chosen: dict[str, nn.Module], products: Callable[[str], MatmulArithmetic]) -> dict[str, str]:
    """Turn each layer into its emulated form, in place; `products` gives its arithmetic by name. Returns the labels."""
    labels = {}
    for name, module in chosen.items():
        layer: Any = module
        layer.__class__ = _TURNED[type(module)]
        layer.products = products(name)
        labels[name] = layer.products.label
    return labels
