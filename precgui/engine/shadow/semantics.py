"""How an operation of the tape is repeated in a wider float type."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from precgui.engine.dtype_names import FLOAT8_DTYPES, SHORT_DTYPES
from precgui.engine.emulation import tensor_core
from precgui.engine.quantize.as_operation import ROUNDED
from precgui.engine.shadow.attention import WITHOUT_FP64
from precgui.engine.shadow.derivatives import DIFFERENTIABLE
from precgui.engine.shadow.nested import leaves_of, mapped
from precgui.engine.shadow.recurrent import RECURRENT

aten = torch.ops.aten
NARROW = frozenset({torch.float32, *SHORT_DTYPES, *FLOAT8_DTYPES})
RANDOM = torch.Tag.nondeterministic_seeded
_NARROW_COMPLEX = frozenset({torch.complex32, torch.complex64})
_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}
# A replay's values may lie in memory otherwise than those of the step, so that no view of them has the shape.
ANY_LAYOUT: dict[Any, Any] = {aten.view.default: aten.reshape.default}
# The memory of these is not written yet, so its numbers mean nothing.
UNWRITTEN = frozenset(
    {aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default, aten.new_empty.default,
     aten.new_empty_strided.default}
)  # fmt: skip
# Softmax of half inputs with a float result, a CUDA form: FP64 has no wider type to return.
_HALF_TO_FLOAT: dict[Any, int] = {aten._softmax.default: 2, aten._log_softmax.default: 2}


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


def _scaled_mm(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None, *remainder: Any, **keywords: Any
) -> Tensor:
    """The product that FP8 hardware scales: torch's `_scaled_mm` has no FP64 form."""
    product = (a * scale_a) @ (b * scale_b)
    return product if bias is None else product + bias


def _scaled_mm_of_tensor_core(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, *_: Any) -> Tensor:
    """The same product with exact sums."""
    return _scaled_mm(a, b, scale_a, scale_b)


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
    aten._scaled_mm.default: _scaled_mm, tensor_core.SCALED_MM: _scaled_mm_of_tensor_core,
    ROUNDED: _unrounded,
    aten._amp_foreach_non_finite_check_and_unscale_.default: _unscale, **WITHOUT_FP64, **RECURRENT,
}  # fmt: skip
