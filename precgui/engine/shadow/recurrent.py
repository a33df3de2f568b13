"""LSTM, GRU and RNN of cuDNN and oneDNN in the operations that torch has without them, for FP64 and for derivatives.

These kernels hand bytes from their forward to their backward pass, which are those of one dtype and of one call. So the
backward pass here makes the forward pass again. Each takes what its kernel takes and returns what that returns, but for
those bytes and for cuDNN's buffer of all weights, which no other operation reads.
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
_CUDNN, _CUDNN_BACKWARD = aten._cudnn_rnn.default, aten._cudnn_rnn_backward.default
_ONEDNN, _ONEDNN_BACKWARD = aten.mkldnn_rnn_layer.default, aten.mkldnn_rnn_layer_backward.default
_LAYERS = ("rnn_relu", "rnn_tanh", "lstm", "gru")  # by cuDNN's number of the mode
_WITH_BIASES = (4, 5)  # tensors of a layer and direction, the second with a projection
_COUNT, _DROPOUT, _TRAIN = 9, 11, 12  # places of layers, dropout and train among the arguments


def drops_nothing(function: Any, arguments: tuple[Any, ...]) -> bool:
    """Whether this is such a layer, which could drop outputs between its parts, and drops none."""
    return function is _CUDNN and not _drops(arguments[_COUNT], arguments[_DROPOUT], arguments[_TRAIN])


def _drops(layers: int, dropout: float, train: bool) -> bool:
    return bool(dropout) and train and layers > 1


def _layers(
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


def _derivatives(
    function: Callable[..., tuple[Tensor, ...]], given: list[Tensor], of_results: tuple[Tensor | None, ...]
) -> tuple[Tensor, ...]:
    """The gradients of what is given from those of the results, which go on where derivatives are asked for."""
    goes_on = torch.is_grad_enabled()
    with torch.enable_grad():
        # Views, so that a tensor which is given twice has two gradients.
        ours = [each.view_as(each) if each.requires_grad else each.detach().requires_grad_() for each in given]
        pairs = [(r, g) for r, g in zip(function(*ours), of_results, strict=False) if g is not None]
        found = torch.autograd.grad(
            [r for r, _ in pairs], ours, [g for _, g in pairs], create_graph=goes_on, materialize_grads=True
        )
    return tuple(found)


def _cudnn(
    input: Tensor, weights: list[Tensor], stride: int, buffer: Tensor | None, hx: Tensor, cx: Tensor | None, mode: int,
    size: int, projected: int, layers: int, batch_first: bool, dropout: float, train: bool, bidirectional: bool,
    batch_sizes: list[int], dropout_state: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    results = _layers(input, weights, stride, hx, cx, mode, layers, batch_first, bidirectional, batch_sizes)
    nothing = input.new_empty(0)
    states = results[1:] if cx is not None else (results[1], nothing)
    return results[0], *states, nothing.to(torch.uint8), nothing if buffer is None else buffer


def _cudnn_backward(
    input: Tensor, weights: list[Tensor], stride: int, buffer: Tensor, hx: Tensor, cx: Tensor | None, output: Tensor,
    of_output: Tensor | None, of_hy: Tensor | None, of_cy: Tensor | None, mode: int, size: int, projected: int,
    layers: int, batch_first: bool, dropout: float, train: bool, bidirectional: bool, batch_sizes: list[int],
    dropout_state: Tensor | None, reserve: Tensor, wanted: list[bool],
) -> tuple[Any, ...]:  # fmt: skip
    if _drops(layers, dropout, train):
        raise EngineError(
            L_("the kernel of a recurrent layer drew by itself which outputs it drops: FP64 cannot drop the same")
        )
    first = 2 if cx is None else 3
    constants = mode, layers, batch_first, bidirectional, batch_sizes

    def forward(input: Tensor, hx: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        own_cx = others[0] if first == 3 else None
        return _layers(input, list(others[first - 2 :]), stride, hx, own_cx, *constants)

    given = [input, hx, *([] if cx is None else [cx]), *weights]
    found = _derivatives(forward, given, (of_output, of_hy, of_cy))
    return found[0], found[1], None if cx is None else found[2], list(found[first:]) if wanted[3] else []


def _onednn(
    input: Tensor, w_input: Tensor, w_state: Tensor, b_input: Tensor, b_state: Tensor, hx: Tensor, cx: Tensor,
    reverse: bool, batch_sizes: list[int], mode: int, size: int, layers: int, has_biases: bool, *_: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """One layer in one direction, of samples along the second axis."""
    weights = [w_input, w_state, *([b_input, b_state] if has_biases else [])]
    states = [each.unsqueeze(0) for each in (hx, cx)]
    given = input.flip(0) if reverse else input
    output, hy, cy = _layers(given, weights, len(weights), states[0], states[1], mode, 1, False, False, batch_sizes)
    output = output.flip(0) if reverse else output
    return output, hy.squeeze(0), cy.squeeze(0), input.new_empty(0).to(torch.uint8)


def _onednn_backward(
    input: Tensor, w_input: Tensor, w_state: Tensor, b_input: Tensor, b_state: Tensor, hx: Tensor, cx: Tensor,
    output: Tensor, hy: Tensor, cy: Tensor, of_output: Tensor | None, of_hy: Tensor | None, of_cy: Tensor | None,
    reverse: bool, mode: int, size: int, layers: int, has_biases: bool, train: bool, bidirectional: bool,
    batch_sizes: list[int], *_: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    def forward(input: Tensor, hx: Tensor, cx: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        w_input, w_state, b_input, b_state = weights if has_biases else weights * 2
        parts = w_input, w_state, b_input, b_state
        return _onednn(input, *parts, hx, cx, reverse, batch_sizes, mode, size, layers, has_biases)[:3]

    weights = [w_input, w_state, *([b_input, b_state] if has_biases else [])]
    of_input, of_hx, of_cx, *of_weights = _derivatives(forward, [input, hx, cx, *weights], (of_output, of_hy, of_cy))
    if not has_biases:
        of_weights += [w_input.new_zeros(len(w_input))] * 2
    return of_input, *of_weights, of_hx, of_cx


RECURRENT: dict[Any, Callable[..., Any]] = {
    _CUDNN: _cudnn, _CUDNN_BACKWARD: _cudnn_backward, _ONEDNN: _onednn, _ONEDNN_BACKWARD: _onednn_backward,
}  # fmt: skip
