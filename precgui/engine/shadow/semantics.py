"""How an operation of the tape is repeated in a wider float type, and which decisions it takes.

A decision is what a kink makes of a value: which units of a ReLU are on, which element a maximum takes. The replay with
the decisions of the low run is smooth around it, so that first-order shares hold; the free replay decides for itself.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from precgui.engine.quantize.as_operation import ROUNDED
from precgui.engine.shadow.derivatives import DIFFERENTIABLE
from precgui.engine.shadow.nested import leaves_of, mapped

aten = torch.ops.aten
NARROW = frozenset(
    {torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz,
     torch.float8_e5m2fnuz}
)  # fmt: skip
RANDOM = torch.Tag.nondeterministic_seeded
_Decide = Callable[[Sequence[Any], Sequence[Any]], Any]
_Apply = Callable[[Sequence[Any], Any], list[Any]]

_NARROW_COMPLEX = frozenset({torch.complex32, torch.complex64})
_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}
# A replay's values may lie in memory otherwise than those of the step, so that no view of them has the shape.
ANY_LAYOUT: dict[Any, Any] = {aten.view.default: aten.reshape.default}
# Softmax of half inputs with a float result, a CUDA form: FP64 has no wider type to return.
_HALF_TO_FLOAT: dict[Any, int] = {aten._softmax.default: 2, aten._log_softmax.default: 2}
# The result is the decision: their derivative is zero.
INTEGERS = frozenset(
    {aten.floor.default, aten.ceil.default, aten.round.default, aten.trunc.default, aten.round.decimals,
     aten.floor_.default, aten.ceil_.default, aten.round_.default, aten.trunc_.default}
)  # fmt: skip
_STEPS = INTEGERS | {aten.sign.default, aten.sgn.default, aten.sign_.default, aten.sgn_.default}


def is_float(value: Any) -> bool:
    """Whether a value is a tensor of real or complex floats."""
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def real_view(tensor: Tensor) -> Tensor:
    """Complex numbers [...] as their real and imaginary parts [..., 2]; a real tensor as it is."""
    return torch.view_as_real(tensor.resolve_conj().resolve_neg()) if tensor.is_complex() else tensor


def widened(value: Any, dtype: torch.dtype) -> Any:
    """Floats in `dtype`, complex numbers with parts of it, everything else as it is."""
    if not is_float(value):
        return value
    target = _COMPLEX[dtype] if value.is_complex() else dtype
    return value.to(target) if value.dtype != target else value


def rounds_only(function: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> bool:
    """Whether an operation casts floats to floats or complex numbers to complex ones: exactly, it changes nothing."""
    if function is not aten._to_copy.default or not is_float(arguments[0]):
        return False
    return keywords.get("dtype") in (_NARROW_COMPLEX if arguments[0].is_complex() else NARROW)


def run_wide(
    function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any], wide: torch.dtype
) -> Any:
    """Call an operation whose tensors are wide already: dtypes among its arguments become wide, too."""
    own = _WIDE.get(function)
    if own is not None:
        return own(*arguments, **keywords)
    arguments, keywords = mapped(lambda v: _wide_type(v, wide), (arguments, keywords))
    place = _HALF_TO_FLOAT.get(function)
    if place is not None:
        arguments = (*arguments[:place], False)
    result = function(*arguments, **keywords)
    if not any(widened(leaf, wide) is not leaf for leaf in leaves_of(result)):
        return result
    result = _from_no_floats(function, arguments, keywords, wide, result)
    return mapped(lambda leaf: widened(leaf, wide), result)


def _wide_type(value: Any, wide: torch.dtype) -> Any:
    if not isinstance(value, torch.dtype):
        return value
    return wide if value in NARROW else _COMPLEX[wide] if value in _NARROW_COMPLEX else value


def _from_no_floats(
    function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], wide: torch.dtype, narrow: Any
) -> Any:
    """Floats that come of no float tensor: of numbers (`zeros`, `linspace`) or of integers (`count / total`)."""
    tensors = [leaf for leaf in leaves_of((arguments, keywords)) if isinstance(leaf, Tensor)]
    if any(is_float(tensor) for tensor in tensors):
        return narrow
    with contextlib.suppress(RuntimeError):  # the narrow result is right, too, but for its rounding
        if tensors:
            arguments, keywords = mapped(
                lambda leaf: leaf.to(wide) if isinstance(leaf, Tensor) else leaf, (arguments, keywords)
            )
            return function(*arguments, **keywords)
        if any(argument.name == "dtype" for argument in function._schema.arguments):
            return function(*arguments, **{**keywords, "dtype": _wide_type(narrow.dtype, wide)})
    return narrow


def run_differentiable(
    function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any], wide: torch.dtype
) -> Any:
    """As `run_wide`, under autograd; arguments that torch cannot differentiate by are detached."""
    smooth = DIFFERENTIABLE.get(function) if torch.is_grad_enabled() else None
    if smooth is not None:
        return smooth(*arguments, **keywords)
    for _ in range(4):
        try:
            return run_wide(function, arguments, keywords, wide)
        except RuntimeError as error:
            match = re.search(r"not differentiable with respect to argument '(\w+)'", str(error))
            if match is None:
                raise
            place = [a.name for a in function._schema.arguments].index(match[1])  # type: ignore[attr-defined]
            arguments = tuple(a.detach() if i == place else a for i, a in enumerate(arguments))
    return run_wide(function, mapped(lambda a: a.detach() if isinstance(a, Tensor) else a, arguments), keywords, wide)


@functools.cache
def returning(function: Any) -> Any:
    """The form of an operation with `out=` that returns its result; None for an operation without `out=`."""
    schema = getattr(function, "_schema", None)
    if schema is None or not any(argument.is_out for argument in schema.arguments):
        return None
    taken = [(a.name, str(a.type)) for a in schema.arguments if not a.is_out]
    packet = function.overloadpacket
    forms = (getattr(packet, name) for name in packet.overloads())
    return next((form for form in forms if [(a.name, str(a.type)) for a in form._schema.arguments] == taken), None)


def _on(arguments: Sequence[Any], outputs: Sequence[Any]) -> Any:
    return outputs[0] > 0


def _gate(arguments: Sequence[Any], on: Tensor) -> list[Any]:
    return [arguments[0] * on]


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
    return [result]


def _decide_hardtanh_backward(arguments: Sequence[Any], outputs: Sequence[Any]) -> Any:
    return (arguments[1] > arguments[2]) & (arguments[1] < arguments[3])


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


# For each kinked operation: what it decided, from its low arguments and outputs, and its value with that decision.
DECISIONS: dict[Any, tuple[_Decide, _Apply]] = {
    aten.relu.default: (_on, _gate),
    aten.relu_.default: (_on, _gate),
    aten.threshold_backward.default: (lambda a, o: a[1] > a[2], _gate),
    aten.abs.default: (lambda a, o: torch.sign(a[0]), lambda a, d: [a[0] * d]),
    aten.clamp.default: (_decide_clamp, _apply_clamp),
    aten.clamp_.default: (_decide_clamp, _apply_clamp),
    aten.clamp_min.default: (_decide_clamp, _apply_clamp),
    aten.clamp_min_.default: (_decide_clamp, _apply_clamp),
    aten.hardtanh.default: (_decide_clamp, _apply_clamp),
    aten.hardtanh_.default: (_decide_clamp, _apply_clamp),
    aten.hardtanh_backward.default: (_decide_hardtanh_backward, _gate),
    aten.hardsigmoid_backward.default: (lambda a, o: (a[1] > -3) & (a[1] < 3), lambda a, d: [a[0] * d / 6]),
    aten.leaky_relu.default: (_on, lambda a, d: _leaky(_slope(a), a[0], d)),
    aten.leaky_relu_.default: (_on, lambda a, d: _leaky(_slope(a), a[0], d)),
    aten.leaky_relu_backward.default: (lambda a, o: a[1] > 0, lambda a, d: _leaky(float(a[2]), a[0], d)),
    aten.max_pool2d_with_indices.default: (lambda a, o: o[1], _apply_max_pool),
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


def _scaled_mm(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None, *remainder: Any, **keywords: Any
) -> Tensor:
    """The product that FP8 hardware scales: torch's `_scaled_mm` has no FP64 form."""
    product = (a * scale_a) @ (b * scale_b)
    return product if bias is None else product + bias


def native_dropout(arguments: Sequence[Any], mask: Tensor) -> list[Any]:
    """Dropout with the mask that was drawn. Arguments: input, probability, train."""
    value, probability = arguments[0], arguments[1]
    if len(arguments) > 2 and arguments[2] is False:
        return [value, mask]
    return [value * mask.to(value.dtype) / (1 - probability), mask]


def _unrounded(source: Tensor, call: int) -> Tensor:
    """The exact counterpart of a rounding to an emulated format: the number as it was."""
    return source.clone()


def _unscale(gradients: list[Tensor], found: Tensor, inverse: Tensor) -> None:
    """The unscaling of a GradScaler, in place; whether something is not finite stays as the low run found it."""
    for gradient in gradients:
        gradient.mul_(inverse)


# What torch cannot run in FP64, or what is something else in exact arithmetic.
_WIDE: dict[Any, Callable[..., Any]] = {
    aten._scaled_mm.default: _scaled_mm, ROUNDED: _unrounded,
    aten._amp_foreach_non_finite_check_and_unscale_.default: _unscale,
}  # fmt: skip
