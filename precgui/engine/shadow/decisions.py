"""Which decisions the operations of a step take, and their values in a wider type with the same decisions.

A decision is what a kink makes of a value: which units of a ReLU are on, which element a maximum takes. The replay with
the decisions of the low run is smooth around it, so that first-order shares hold; the free replay decides for itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from precgui.engine.shadow.nested import leaves_of
from precgui.engine.shadow.semantics import aten, is_float, widened

_Decide = Callable[[Sequence[Any], Sequence[Any]], Any]  # None: no decision; a list is for integers alone
_Apply = Callable[[Sequence[Any], Any], list[Any]]

# The result is the decision: their derivative is zero.
INTEGERS = frozenset(
    {aten.floor.default, aten.ceil.default, aten.round.default, aten.trunc.default, aten.round.decimals,
     aten.floor_.default, aten.ceil_.default, aten.round_.default, aten.trunc_.default}
)  # fmt: skip
_STEPS = INTEGERS | {aten.sign.default, aten.sgn.default, aten.sign_.default, aten.sgn_.default}


def _on(arguments: Sequence[Any], outputs: Sequence[Any]) -> Any:
    return outputs[0] > 0


def _gate(arguments: Sequence[Any], on: Tensor) -> list[Any]:
    return [torch.where(on, arguments[0], 0.0)]  # not a product: a gradient of Inf is 0 behind a unit that is off


def _in_bounds(decided: Tensor, value: Tensor) -> Tensor:
    """A value that keeps the bound which a kink guarantees, such as that of a logarithm, with the derivative of the
    decision."""
    return decided + (value - decided).detach()


def _between(low: Any, high: Any, value: Tensor) -> tuple[Tensor, Tensor]:
    below = value <= low if low is not None else torch.zeros_like(value, dtype=torch.bool)
    above = value >= high if high is not None else torch.zeros_like(value, dtype=torch.bool)
    return below, above


def _limits(arguments: Sequence[Any]) -> tuple[Any, Any]:
    return (arguments[1] if len(arguments) > 1 else None), (arguments[2] if len(arguments) > 2 else None)


def _decide_clamp(arguments: Sequence[Any], outputs: Sequence[Any]) -> Any:
    return _between(*_limits(arguments), arguments[0])


def _apply_clamp(arguments: Sequence[Any], decision: Any) -> list[Any]:
    result = arguments[0]
    for limit, mask in zip(_limits(arguments), decision, strict=True):
        if limit is not None:
            result = torch.where(mask, torch.as_tensor(limit, dtype=result.dtype, device=result.device), result)
    return [_in_bounds(result, arguments[0].clamp(*_limits(arguments)))]


def _decide_hardtanh_backward(arguments: Sequence[Any], outputs: Sequence[Any]) -> Any:
    return (arguments[1] > arguments[2]) & (arguments[1] < arguments[3])


def _apply_abs(arguments: Sequence[Any], sign: Tensor) -> list[Any]:
    return [_in_bounds(arguments[0] * sign, arguments[0].abs())]


def _leaky(slope: float, value: Tensor, on: Tensor) -> list[Any]:
    return [torch.where(on, value, value * slope)]


def _slope(arguments: Sequence[Any]) -> float:
    return float(arguments[1]) if len(arguments) > 1 else 0.01


def _apply_max_pool(arguments: Sequence[Any], indices: Tensor) -> list[Any]:
    flat = arguments[0].flatten(-2).gather(-1, indices.flatten(-2))
    return [flat.view(indices.shape), indices]


def _apply_gather(arguments: Sequence[Any], decision: Any) -> list[Any]:
    indices, dim, keep = decision
    source = arguments[0]
    taken = source.gather(dim, indices if keep else indices.unsqueeze(dim))
    return [taken if keep else taken.squeeze(dim), indices]


def _decide_extreme(arguments: Sequence[Any], outputs: Sequence[Any]) -> Any:
    return outputs[1], arguments[1], bool(len(arguments) > 2 and arguments[2])


def _decide_sort(arguments: Sequence[Any], outputs: Sequence[Any]) -> Any:
    return outputs[1], (arguments[1] if len(arguments) > 1 else -1), True


def _decide_topk(arguments: Sequence[Any], outputs: Sequence[Any]) -> Any:
    return outputs[1], (arguments[2] if len(arguments) > 2 else -1), True


def _decide_larger(arguments: Sequence[Any], outputs: Sequence[Any]) -> Any:
    return arguments[0] >= arguments[1]


def _decide_smaller(arguments: Sequence[Any], outputs: Sequence[Any]) -> Any:
    return arguments[0] <= arguments[1]


def _choose(arguments: Sequence[Any], decision: Any) -> list[Any]:
    return [torch.where(decision, arguments[0], arguments[1])]


def _is_above(value: Tensor, limit: float) -> Tensor:
    """As the kernels decide, which do not round the limit to 16 bits: a comparison of tensors does."""
    return (value.float() if limit and value.dtype.itemsize < 4 else value) > limit


def _beside(function: Any, place: int, bound: Callable[[Sequence[Any]], float | None]) -> tuple[_Decide, _Apply]:
    """Of a kernel with a kink where the argument `place` is `bound` (None: it has none): on the side it was on."""

    def is_above(arguments: Sequence[Any], outputs: Sequence[Any]) -> Any:
        limit = bound(arguments)
        return None if limit is None else _is_above(arguments[place], limit)

    def stay(arguments: Sequence[Any], above: Tensor) -> list[Any]:
        value = arguments[place]
        limit = torch.full((), bound(arguments) or 0.0, dtype=value.dtype, device=value.device)
        inside = torch.where(above, value.maximum(limit.nextafter(limit + 1)), value.minimum(limit))
        return leaves_of(function(*arguments[:place], inside, *arguments[place + 1 :]))

    return is_above, stay


def _at_low_values(
    function: Any, places: Sequence[int], jumps: Callable[[Sequence[Any]], bool] = lambda _: True
) -> tuple[_Decide, _Apply]:
    """Of a kernel that reads the arguments at `places` for decisions only: it reads the low numbers there."""

    def keep_low(arguments: Sequence[Any], outputs: Sequence[Any]) -> Any:
        return tuple(arguments[place].detach().clone() for place in places) if jumps(arguments) else None

    def apply_low(arguments: Sequence[Any], kept: Sequence[Tensor]) -> list[Any]:
        low = {place: value.to(arguments[place].dtype) for place, value in zip(places, kept, strict=True)}
        return leaves_of(function(*(low.get(place, argument) for place, argument in enumerate(arguments))))

    return keep_low, apply_low


def _elu_kink(arguments: Sequence[Any]) -> float | None:
    """Where its derivative jumps: nowhere with the usual coefficients."""
    return None if float(arguments[1]) * float(arguments[3]) == 1 else 0.0


def _is_kept(arguments: Sequence[Any], outputs: Sequence[Any]) -> Any:
    return _is_above(arguments[1].abs(), float(arguments[2]))


def _apply_hardswish_backward(arguments: Sequence[Any], decision: Any) -> list[Any]:
    gradient, value = arguments
    below, above = decision
    return [torch.where(above, gradient, gradient * (value / 3 + 0.5)).masked_fill(below, 0.0)]


def _apply_max_pool_3d(arguments: Sequence[Any], indices: Tensor) -> list[Any]:
    flat = arguments[0].flatten(-3).gather(-1, indices.flatten(-3))
    return [flat.view(indices.shape), indices]


# For each kinked operation: what it decided, from its low arguments and outputs, and its value with that decision.
DECISIONS: dict[Any, tuple[_Decide, _Apply]] = {
    aten.relu.default: (_on, _gate),
    aten.relu_.default: (_on, _gate),
    aten.threshold_backward.default: (lambda a, o: _is_above(a[1], float(a[2])), _gate),
    aten.abs.default: (lambda a, o: torch.sign(a[0]), _apply_abs),
    aten.clamp.default: (_decide_clamp, _apply_clamp),
    aten.clamp_.default: (_decide_clamp, _apply_clamp),
    aten.clamp_min.default: (_decide_clamp, _apply_clamp),
    aten.clamp_min_.default: (_decide_clamp, _apply_clamp),
    aten.hardtanh.default: (_decide_clamp, _apply_clamp),
    aten.hardtanh_.default: (_decide_clamp, _apply_clamp),
    aten.hardtanh_backward.default: (_decide_hardtanh_backward, _gate),
    aten.hardsigmoid_backward.default: (
        lambda a, o: (a[1] > -3) & (a[1] < 3),
        lambda a, d: [torch.where(d, a[0] / 6, 0.0)],
    ),
    aten.leaky_relu.default: (_on, lambda a, d: _leaky(_slope(a), a[0], d)),
    aten.leaky_relu_.default: (_on, lambda a, d: _leaky(_slope(a), a[0], d)),
    aten.leaky_relu_backward.default: (lambda a, o: a[1] > 0, lambda a, d: _leaky(float(a[2]), a[0], d)),
    aten.max_pool2d_with_indices.default: (lambda a, o: o[1], _apply_max_pool),
    aten.adaptive_max_pool2d.default: (lambda a, o: o[1], _apply_max_pool),
    aten.max_pool3d_with_indices.default: (lambda a, o: o[1], _apply_max_pool_3d),
    aten.adaptive_max_pool3d.default: (lambda a, o: o[1], _apply_max_pool_3d),
    aten.elu_backward.default: _beside(aten.elu_backward.default, 5, _elu_kink),
    aten._prelu_kernel_backward.default: _beside(aten._prelu_kernel_backward.default, 1, lambda a: 0.0),
    aten.threshold.default: _beside(aten.threshold.default, 0, lambda a: float(a[1])),
    aten.hardswish_backward.default: (lambda a, o: _between(-3.0, 3.0, a[1]), _apply_hardswish_backward),
    aten.hardshrink_backward.default: (_is_kept, _gate),
    aten.softshrink_backward.default: (_is_kept, _gate),
    aten.hardshrink.default: (lambda a, o: o[0] != 0, _gate),
    aten.multi_margin_loss_backward.default: _at_low_values(
        aten.multi_margin_loss_backward.default, (1,), lambda a: a[3] == 1
    ),
    aten.multilabel_margin_loss_backward.default: _at_low_values(aten.multilabel_margin_loss_backward.default, (1,)),
    aten._cdist_backward.default: _at_low_values(
        aten._cdist_backward.default, (1, 2, 4), lambda a: a[3] in (1, math.inf)
    ),
    aten._pdist_backward.default: _at_low_values(aten._pdist_backward.default, (1, 3), lambda a: a[2] in (1, math.inf)),
    aten.max.dim: (_decide_extreme, _apply_gather),
    aten.min.dim: (_decide_extreme, _apply_gather),
    aten.sort.default: (_decide_sort, _apply_gather),
    aten.sort.stable: (lambda a, o: (o[1], -1, True), _apply_gather),
    aten.topk.default: (_decide_topk, _apply_gather),
    aten.maximum.default: (_decide_larger, _choose),
    aten.minimum.default: (_decide_smaller, _choose),
}


def decide(function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], outputs: Sequence[Any]) -> Any:
    """The decision that a low operation took, or None where it has no kink or is called in a form not known here.

    Called before an operation writes over its arguments, except that `outputs` are there already.
    """
    if not is_float(arguments[0] if arguments else None) or arguments[0].is_complex():
        return None
    if function in _STEPS:
        return outputs[0].detach().clone()
    known = DECISIONS.get(function)
    if known is None or (keywords and function is not aten.sort.stable):
        return None
    return known[0](arguments, outputs)


def apply_decision(function: Any, arguments: tuple[Any, ...], decision: Any) -> list[Any]:
    """The outputs of a kinked operation on wide arguments with the decision of the low run."""
    if function in _STEPS:
        return [widened(decision, arguments[0].dtype)]
    return DECISIONS[function][1](arguments, decision)
