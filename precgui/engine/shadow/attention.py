"""Fused attention as products and a softmax, of whose kernels torch has none in FP64, or none with a derivative.

Each takes what its kernel takes and returns what that returns. Its backward pass computes the weights again from the
scores and from the logarithms of their sums that the forward pass has saved, as the kernels do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from precgui.engine.errors import EngineError
from precgui.engine.shadow.tape import Tape, TapeOp
from precgui.sentences import L_

aten = torch.ops.aten
OF_CPU = aten._scaled_dot_product_flash_attention_for_cpu.default
_OF_CPU_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
_EFFICIENT = aten._scaled_dot_product_efficient_attention.default
_CUDNN = aten._scaled_dot_product_cudnn_attention.default
_FORWARD = (
    aten._scaled_dot_product_flash_attention.default, _EFFICIENT, _CUDNN,
    aten._scaled_dot_product_fused_attention_overrideable.default,
)  # fmt: skip
_BACKWARD = (
    aten._scaled_dot_product_flash_attention_backward.default,
    aten._scaled_dot_product_efficient_attention_backward.default,
    aten._scaled_dot_product_cudnn_attention_backward.default,
    aten._scaled_dot_product_fused_attention_overrideable_backward.default,
)  # fmt: skip
FUSED = frozenset({OF_CPU, *_FORWARD})  # forward
_ALL = FUSED | {_OF_CPU_BACKWARD, *_BACKWARD}
_MASKS = ("attn_bias", "attn_mask")
_ALIGNED = 32  # queries; the memory-efficient kernel pads the logarithms of sums to a multiple of it
_SCORES = 1 << 22  # that are held at one time, where no derivative is asked for
_HELD = 4  # matrices of scores in the derivatives of one attention


def _named(function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
    """All arguments of a call by their names."""
    schema = function._schema.arguments
    given = {a.name: value for a, value in zip(schema, arguments, strict=False)} | keywords
    return {a.name: given.get(a.name, a.default_value) for a in schema}


class _Call:
    """The arguments of a call by their names."""

    def __init__(self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self._values = _named(function, arguments, keywords)
        self.query, self.key, self.value = (self._values[name] for name in ("query", "key", "value"))
        self.mask: Tensor | None = next((self._values[name] for name in _MASKS if name in self._values), None)
        scale = self._values["scale"]
        self.scale = 1 / math.sqrt(self.query.shape[-1]) if scale is None else float(scale)
        self.heads = self.query.shape[1] // self.key.shape[1]  # of queries for each one of keys

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def pieces(self) -> Iterator[slice]:
        """Queries whose scores are computed at one time: all of them where derivatives are asked for."""
        count, each = self.query.shape[2], self.query.shape[0] * self.query.shape[1] * self.key.shape[2]
        size = count if torch.is_grad_enabled() else max(1, _SCORES // max(each, 1))
        return (slice(begin, min(begin + size, count)) for begin in range(0, count, max(size, 1)))

    def repeated(self, tensor: Tensor) -> Tensor:
        """Keys or values, once for each head of queries."""
        return tensor if self.heads == 1 else tensor.repeat_interleave(self.heads, 1)

    def summed(self, tensor: Tensor) -> Tensor:
        """The gradient of keys or values from those of `repeated`."""
        return tensor if self.heads == 1 else tensor.unflatten(1, (-1, self.heads)).sum(2)

    def scores(self, piece: slice) -> Tensor:
        scores: Tensor = self.query[:, :, piece] @ self.repeated(self.key).mT * self.scale
        queries, keys = self.query.shape[2], self.key.shape[2]
        if self.mask is not None:
            mask = self.mask.expand(*self.mask.shape[:-2], queries, keys)[..., piece, :]
            scores = scores.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else scores + mask
        if self["is_causal"]:
            place = torch.arange(queries, device=scores.device)[piece]
            later = torch.arange(keys, device=scores.device) > place[:, None]
            scores = scores.masked_fill(later, -math.inf)
        return scores


def _sums(scores: Tensor) -> Tensor:
    """The logarithms of the sums of exponentials; Inf for queries that see no key, whose weights are zero."""
    sees_none = (scores == -math.inf).all(-1)
    return scores.masked_fill(sees_none.unsqueeze(-1), 0.0).logsumexp(-1).masked_fill(sees_none, math.inf)


def _weights(scores: Tensor, sums: Tensor) -> Tensor:
    return (scores - sums.unsqueeze(-1)).exp()


def _attention(function: Any, *arguments: Any, **keywords: Any) -> tuple[Any, ...]:
    call = _Call(function, arguments, keywords)
    values = call.repeated(call.value)
    results, logarithms = [], []
    for piece in call.pieces():
        scores = call.scores(piece)
        sums = _sums(scores)
        results.append(_weights(scores, sums) @ values)
        logarithms.append(sums)
    output, sums = torch.cat(results, 2), torch.cat(logarithms, 2)
    if function is OF_CPU:
        return output, sums
    if function is _CUDNN:
        sums = sums.unsqueeze(-1)
    if function in (_CUDNN, _EFFICIENT) and not call["compute_log_sumexp"]:
        sums = sums[:, :, :0]
    elif function is _EFFICIENT:
        sums = torch.nn.functional.pad(sums, (0, -sums.shape[2] % _ALIGNED), value=math.inf)
    nothing = call.query.new_zeros((), dtype=torch.long)  # in the place of the state of random numbers
    if function is _EFFICIENT:
        return output, sums, nothing, nothing
    queries, keys = call.query.shape[2], call.key.shape[2]
    return output, sums, None, None, queries, keys, nothing, nothing, call.query.new_empty(0)


def _attention_backward(function: Any, *arguments: Any, **keywords: Any) -> tuple[Tensor | None, ...]:
    call = _Call(function, arguments, keywords)
    if call["dropout_p"]:
        raise EngineError(
            L_("the kernel of a fused attention drew by itself which weights it drops: FP64 cannot drop the same")
        )
    gradient = call["grad_out_"] if function is _BACKWARD[1] else call["grad_out"]
    sums = call["logsumexp"]
    sums = sums.squeeze(-1) if sums.dim() > 3 else sums[:, :, : call.query.shape[2]]
    keys, values = call.repeated(call.key), call.repeated(call.value)
    of_queries, of_scores = [], []
    of_keys, of_values = torch.zeros_like(keys), torch.zeros_like(values)
    keeps = call.mask is not None and len(function._schema.returns) > 3
    for piece in call.pieces():
        weights, outer = _weights(call.scores(piece), sums[:, :, piece]), gradient[:, :, piece]
        along = (outer * call["out"][:, :, piece]).sum(-1, keepdim=True)
        inner = weights * (outer @ values.mT - along)
        of_queries.append(inner @ keys * call.scale)
        of_keys = of_keys + inner.mT @ call.query[:, :, piece] * call.scale
        of_values = of_values + weights.mT @ outer
        of_scores += [inner] if keeps else []
    results = torch.cat(of_queries, 2), call.summed(of_keys), call.summed(of_values)
    if len(function._schema.returns) == 3:
        return results
    if not keeps or not call["grad_input_mask"][3]:
        return *results, None
    assert call.mask is not None
    return *results, torch.cat(of_scores, 2).sum_to_size(call.mask.shape)


def draws_nothing(function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
    """Whether this is a fused attention, which could drop weights, and drops none."""
    return function in FUSED and not _named(function, arguments, keywords)["dropout_p"]


def score_bytes(tape: Tape) -> int:
    """The memory that the scores of all fused attention of a step take in the graph of its FP64 form."""
    return sum(_bytes_of(tape, operation) for operation in tape.operations if operation.function in _ALL)


def _bytes_of(tape: Tape, operation: TapeOp) -> int:
    first = 0 if operation.function in FUSED else 1  # behind the gradient
    query, key = (tape.value(id) for id in operation.inputs[first : first + 2])
    if query is None or key is None:
        return 0
    return 8 * _HELD * query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2]


# What torch has no FP64 kernel of.
WITHOUT_FP64: dict[Any, Callable[..., Any]] = {
    **{function: partial(_attention, function) for function in _FORWARD},
    **{function: partial(_attention_backward, function) for function in _BACKWARD},
}
# What it has one of, but no derivative.
WITHOUT_DERIVATIVE: dict[Any, Callable[..., Any]] = {
    OF_CPU: partial(_attention, OF_CPU),
    _OF_CPU_BACKWARD: partial(_attention_backward, _OF_CPU_BACKWARD),
}
