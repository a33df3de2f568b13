"""The error that an operation makes itself: its result minus the result of wider arithmetic on the same inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from precgui.engine.quantize.as_operation import ROUNDED, mantissa_bits
from precgui.engine.shadow.nested import leaves_of, mapped
from precgui.engine.shadow.semantics import is_float, real_view, rounds_only, run_wide, widened
from precgui.engine.shadow.tape import TapeOp
from precgui.sentences import Sentence, first_line

aten = torch.ops.aten
# These move numbers about, or choose among them: they round nothing.
_MOVES = frozenset(
    {aten.clone.default, aten.cat.default, aten.stack.default, aten.embedding.default, aten._unsafe_view.default,
     aten.index_select.default, aten.gather.default, aten.constant_pad_nd.default, aten.neg.default, aten.relu.default,
     aten.relu_.default, aten.threshold_backward.default, aten.max_pool2d_with_indices.default, aten.zeros_like.default,
     aten.ones_like.default, aten.repeat.default}
)  # fmt: skip
_SAMPLED = 1 << 16
_SMALL = 2.0**-120  # an error below it is nothing, or a few digits, in FP32
_CACHED = 1 << 17  # numbers; a few times so many in FP64 stay in the cache of a processor


def local_errors(operation: TapeOp, args: Any, kwargs: Any, outputs: Sequence[Any]) -> None:
    """Fill in the local errors of an operation from its low arguments and outputs.

    Results of 16 bits and fewer are compared with FP32, whose own error is 2^13 times smaller; results of FP32, and all
    that are not finite, with FP64.
    """
    if operation.function in _MOVES or _widens(operation, outputs):
        return
    floats = [o for o in outputs if is_float(o)]
    wide = torch.float32 if all(o.dtype.itemsize <= 2 for o in floats) else torch.float64
    if operation.nonfinite:
        wide = torch.float64
    try:
        exact = _again(operation, args, kwargs, wide)
    except RuntimeError as fault:
        operation.opaque = Sentence("no FP64 form: {error}", error=first_line(fault, 120))
        return
    if operation.nonfinite == "producer":
        operation.exact_is_finite = all(bool(e.isfinite().all()) for e in exact if is_float(e))
    lost = created = would = 0.0
    errors: list[Tensor | None] = []
    for output, reference in zip(outputs, exact, strict=False):
        if not is_float(output) or not is_float(reference) or output.shape != reference.shape:
            errors.append(None)
            continue
        parts = real_view(output.detach()), real_view(reference.detach())
        error, squares = _compare(*parts, finite=not operation.nonfinite)
        errors.append(error)
        lost, created, would = lost + squares[0], created + squares[1], would + squares[2]
    operation.local_errors = tuple(errors)
    if created > 0 and math.isfinite(created):
        operation.local_error, operation.rounding_error = math.sqrt(lost / created), math.sqrt(would / created)
        bits = narrow_bits(operation)
        if bits is not None:
            operation.rounding_error = _rounding_in_range(args[0], bits)


def narrow_bits(operation: TapeOp) -> int | None:
    """The bits of the significand that a cast to 8 bits, or an emulated rounding to any float format, keeps; None for
    all else."""
    if operation.function is ROUNDED:
        return mantissa_bits(operation.arguments[1])
    dtype = operation.keywords.get("dtype") if operation.function is aten._to_copy.default else None
    if dtype is None or not dtype.is_floating_point or dtype.itemsize > 1:
        return None
    return -round(math.log2(torch.finfo(dtype).eps))


def _rounding_in_range(source: Tensor, bits: int) -> float:
    """The relative L2 error of rounding numbers to a significand with so many explicit bits and exponents without
    end: the cost of a format for numbers that fit into its range."""
    mantissa, exponent = torch.frexp(source.detach().double())
    gap = torch.ldexp((mantissa * 2.0 ** (bits + 1)).round() * 2.0 ** -(bits + 1) - mantissa, exponent)
    size = _square(source.detach().double())
    return math.sqrt(_square(gap) / size) if size else 0.0


def _widens(operation: TapeOp, outputs: Sequence[Any]) -> bool:
    """Whether this is a cast of floats to a type that holds all of them."""
    if operation.function is not aten._to_copy.default or not operation.input_dtypes:
        return False
    source, target = operation.input_dtypes[0], outputs[0].dtype
    return source.is_floating_point and target in (torch.float32, torch.float64) and target.itemsize >= source.itemsize


def _again(operation: TapeOp, args: Any, kwargs: Any, wide: torch.dtype) -> list[Any]:
    """The outputs in the wide type, those that are written in place last, as on the tape."""
    if rounds_only(operation.function, args, kwargs):
        return [widened(args[0], wide)]
    copies = bool(operation.writes)
    arguments, keywords = mapped(
        lambda v: (widened(v, wide).clone() if copies else widened(v, wide)) if isinstance(v, Tensor) else v,
        (args, kwargs),
    )
    result = leaves_of(run_wide(operation.function, arguments, keywords, wide))
    tensors = [v for v in leaves_of((arguments, keywords)) if isinstance(v, Tensor)]
    written = [tensors[i] for i in operation.writes]
    return [*result, *(w for w in written if not any(w is r for r in result))]


def _compare(low: Tensor, exact: Tensor, *, finite: bool) -> tuple[Tensor | None, tuple[float, float, float]]:
    """The error of a result as FP32, None for none, and three sums of squares: error, result, one rounding."""
    if low.dtype == exact.dtype:
        return None, (0.0, _square(exact), 0.0)
    if finite and low.numel() > _SAMPLED:
        return _compare_sampled(low, exact)
    error = low.to(exact.dtype).sub_(exact)
    rounding = exact.to(low.dtype).to(exact.dtype).sub_(exact)
    if not finite:  # the -Inf of a mask is no error; an overflow is counted separately
        keep = error.isfinite() & exact.isfinite()
        zero = torch.zeros((), dtype=exact.dtype, device=exact.device)
        error, exact, rounding = error.where(keep, zero), exact.where(keep, zero), rounding.where(keep, zero)
    largest = float(error.abs().amax()) if error.numel() else 0.0
    if largest == 0.0:
        return None, (0.0, _square(exact), _square(rounding))
    kept = error.float() if largest > _SMALL else error
    return kept, (_square(error), _square(exact), _square(rounding))


def _compare_sampled(low: Tensor, exact: Tensor) -> tuple[Tensor | None, tuple[float, float, float]]:
    """As `_compare` for a large result: one rounding is taken from every so many elements."""
    stride = low.numel() // _SAMPLED
    some = exact.reshape(-1)[::stride]
    rounding = _square(some.to(low.dtype).to(exact.dtype).sub_(some)) * low.numel() / some.numel()
    error = torch.empty_like(low, dtype=torch.float32)
    strides = low.stride()
    order = sorted(range(low.dim()), key=lambda axis: -strides[axis])
    in_memory = [tensor.permute(order) for tensor in (low, exact, error)]
    if low.device.type == "cpu" and all(tensor.is_contiguous() for tensor in in_memory):
        lost, created = _subtract_in_cache(*(tensor.view(-1) for tensor in in_memory))
    else:
        wide = low.to(exact.dtype).sub_(exact)
        lost, created = _square(wide), _square(exact)
        error.copy_(wide)
    return (error if lost else None), (lost, created, rounding)


def _subtract_in_cache(low: Tensor, exact: Tensor, error: Tensor) -> tuple[float, float]:
    """Put the difference of flat tensors into `error`; its sum of squares and that of the exact numbers.

    Memory is read once, and no other of this size is taken.
    """
    buffer = exact.new_empty(_CACHED)
    lost = created = 0.0
    parts = zip(low.split(_CACHED), exact.split(_CACHED), error.split(_CACHED), strict=True)
    for low_part, exact_part, error_part in parts:
        gap = buffer[: low_part.numel()].copy_(low_part).sub_(exact_part)
        error_part.copy_(gap)
        lost += float(torch.dot(gap, gap))
        created += float(torch.dot(exact_part, exact_part))
    return lost, created


def _square(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor)) ** 2 if tensor.numel() else 0.0
