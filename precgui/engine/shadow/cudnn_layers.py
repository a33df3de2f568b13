"""LSTM, GRU and RNN of cuDNN in the operations that torch has without it, for FP64 and for derivatives.

cuDNN hands bytes from its forward to its backward pass, which are those of one dtype and of one call. So the backward
pass here makes the forward pass again. Each takes what its kernel takes and returns what that returns, but for those
bytes and for the buffer of all weights, which no other operation reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from precgui.engine.errors import EngineError
from precgui.engine.torch_private import cudnn, onednn
from precgui.sentences import L_

aten = torch.ops.aten
_FORWARD = aten._cudnn_rnn.default
_LAYERS = ("rnn_relu", "rnn_tanh", "lstm", "gru")  # by cuDNN's number of the mode
_WITH_BIASES = (4, 5)  # tensors of a layer and direction, the second with a projection
_COUNT, _DROPOUT, _TRAIN = 9, 11, 12  # places of layers, dropout and train among the arguments


def drops_nothing(function: Any, arguments: tuple[Any, ...]) -> bool:
    """Whether this is such a layer, which could drop outputs between its parts, and drops none."""
    return function is _FORWARD and not _drops(arguments[_COUNT], arguments[_DROPOUT], arguments[_TRAIN])


def _drops(layers: int, dropout: float, train: bool) -> bool:
    return bool(dropout) and train and layers > 1


def _computed(
    input: Tensor, weights: list[Tensor], stride: int, hx: Tensor, cx: Tensor | None, mode: int, layers: int,
    batch_first: bool, bidirectional: bool, batch_sizes: list[int],
) -> tuple[Tensor, ...]:  # fmt: skip
    """The output and the last states."""
    states = hx if cx is None else (hx, cx)
    constants = (stride in _WITH_BIASES, layers, 0.0, False, bidirectional)
    kernel = getattr(torch, _LAYERS[mode])
    with onednn(allowed=False), cudnn(allowed=False):
        if batch_sizes:
            lengths = torch.tensor(batch_sizes, device="cpu")
            results = kernel(input, lengths, states, weights, *constants)
        else:
            results = kernel(input, states, weights, *constants, batch_first)
    return tuple(results)


def _forward(
    input: Tensor, weights: list[Tensor], stride: int, buffer: Tensor | None, hx: Tensor, cx: Tensor | None, mode: int,
    size: int, projected: int, layers: int, batch_first: bool, dropout: float, train: bool, bidirectional: bool,
    batch_sizes: list[int], dropout_state: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    results = _computed(input, weights, stride, hx, cx, mode, layers, batch_first, bidirectional, batch_sizes)
    nothing = input.new_empty(0)
    states = results[1:] if cx is not None else (results[1], nothing)
    return results[0], *states, nothing.to(torch.uint8), nothing if buffer is None else buffer


def _backward(
    input: Tensor, weights: list[Tensor], stride: int, buffer: Tensor, hx: Tensor, cx: Tensor | None, output: Tensor,
    of_output: Tensor | None, of_hy: Tensor | None, of_cy: Tensor | None, mode: int, size: int, projected: int,
    layers: int, batch_first: bool, dropout: float, train: bool, bidirectional: bool, batch_sizes: list[int],
    dropout_state: Tensor | None, reserve: Tensor, wanted: list[bool],
) -> tuple[Any, ...]:  # fmt: skip
    if _drops(layers, dropout, train):
        raise EngineError(
            L_("the kernel of a recurrent layer drew by itself which outputs it drops: FP64 cannot drop the same")
        )
    goes_on = torch.is_grad_enabled()
    with torch.enable_grad():
        given = [input, hx, *([] if cx is None else [cx]), *weights]
        # Views, so that a tensor which is given twice has two gradients.
        ours = [each.view_as(each) if each.requires_grad else each.detach().requires_grad_() for each in given]
        first = 2 if cx is None else 3
        own_cx = None if cx is None else ours[2]
        results = _computed(
            ours[0], ours[first:], stride, ours[1], own_cx, mode, layers, batch_first, bidirectional, batch_sizes
        )
        pairs = [(r, g) for r, g in zip(results, (of_output, of_hy, of_cy), strict=False) if g is not None]
        found = torch.autograd.grad(
            [r for r, _ in pairs], ours, [g for _, g in pairs], create_graph=goes_on, materialize_grads=True
        )  # fmt: skip
    of_cx = None if cx is None else found[2]
    return found[0], found[1], of_cx, list(found[first:]) if wanted[3] else []


OF_CUDNN: dict[Any, Callable[..., Any]] = {_FORWARD: _forward, aten._cudnn_rnn_backward.default: _backward}
