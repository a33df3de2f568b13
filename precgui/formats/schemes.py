"""Ways to quantise a tensor, under one call: integers, ternary and binary weights, NF4, MX and NVFP4."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from precgui.formats.affine import quantize_affine, quantize_sign, quantize_ternary
from precgui.formats.arrays import Floats, quantize_array
from precgui.formats.blocks import SCALE_RULES, Blocks, ScaleRule, code_book_blocks, quantize_blocks_array, sqnr_db
from precgui.formats.model import CodeBook, FloatFormat, IntFormat
from precgui.formats.registry import blocks, get
from precgui.formats.rounding import Convention, Rounding

INTEGERS = ("int8", "int4", "int2", "uint8", "uint4")
SCHEMES: tuple[str, ...] = (*INTEGERS, "int1", "ternary", "nf4", *blocks(), "e4m3fn", "e5m2", "e2m1", "fp16", "bf16")
GROUPINGS = ("tensor", "row", "group of 32", "group of 128")
NF4_BLOCK = 64


@dataclass(frozen=True)
class Options:
    """How to quantise. `scale` and `zero_point` replace the ones that would be computed (integers, one per tensor)."""

    rounding: Rounding = "nearest_even"
    symmetric: bool = True
    grouping: str = "tensor"
    rule: ScaleRule = "floor"
    scale: float | None = None
    zero_point: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class Outcome:
    """A quantised tensor; masks have its shape. scale and zero_point are given where there is one for the tensor."""

    values: Floats
    clipped: NDArray[np.bool_]
    zeroed: NDArray[np.bool_]
    sqnr_db: float
    largest_error: float
    bits_per_value: float
    scale: float | None = None
    zero_point: int | None = None


def apply_scheme(values: ArrayLike, scheme: str, options: Options) -> Outcome:
    """Quantise and dequantise. Raises ValueError for an unknown scheme or a group that does not fit."""
    array = np.atleast_1d(np.asarray(values, dtype=np.float64))
    if scheme not in SCHEMES:
        raise ValueError(f"{scheme!r} is no way to quantise; there are {', '.join(SCHEMES)}")
    if scheme in INTEGERS:
        return _integer(array, scheme, options)
    if scheme in ("ternary", "int1"):
        result, scale = (quantize_ternary if scheme == "ternary" else quantize_sign)(array)
        bits = np.log2(3) if scheme == "ternary" else 1.0
        return _outcome(array, result, np.abs(array) > 1.5 * scale, float(bits), scale)
    if scheme in blocks():
        chosen = blocks()[scheme]
        found = quantize_blocks_array(array, scheme, options.rule, options.rounding, options.seed)
        return _of_blocks(array, found, chosen.bits_per_value(get(chosen.element).bits))
    fmt = get(scheme)
    if isinstance(fmt, CodeBook):
        return _of_blocks(array, code_book_blocks(array, fmt, NF4_BLOCK), fmt.bits + 32 / NF4_BLOCK)
    result = quantize_array(array, fmt, Convention(options.rounding, "saturate"), options.seed)
    assert isinstance(fmt, FloatFormat)
    return _outcome(array, result, np.abs(array) > float(fmt.overflow_midpoint), float(fmt.bits))


def _integer(array: Floats, scheme: str, options: Options) -> Outcome:
    fmt = get(scheme)
    assert isinstance(fmt, IntFormat)
    group = int(options.grouping.rpartition(" ")[2]) if options.grouping.startswith("group") else None
    axis = 0 if options.grouping == "row" else None
    whole = options.grouping == "tensor"
    found = quantize_affine(
        array, fmt, symmetric=options.symmetric, axis=axis, group=group, rounding=options.rounding, seed=options.seed,
        scale=options.scale if whole else None, zero_point=options.zero_point if whole else None,
    )  # fmt: skip
    per_value = found.scale.size * 32 / max(array.size, 1)
    scale, zero_point = (float(found.scale[0]), int(found.zero_point[0])) if whole else (None, None)
    return _outcome(array, found.values, found.clipped, fmt.bits + per_value, scale, zero_point)


def _of_blocks(array: Floats, found: Blocks, bits: float) -> Outcome:
    return _outcome(array, found.values, found.clipped, bits)


def _outcome(
    array: Floats, result: Floats, clipped: NDArray[np.bool_], bits: float, scale: float | None = None,
    zero_point: int | None = None,
) -> Outcome:  # fmt: skip
    finite = np.isfinite(array) & np.isfinite(result)
    error = float(np.max(np.abs(array - result), initial=0.0, where=finite))
    zeroed = (result == 0) & (array != 0)
    return Outcome(result, clipped, zeroed, sqnr_db(array, result), error, bits, scale, zero_point)


def rule_comparison(values: ArrayLike, scheme: str, options: Options) -> dict[str, float]:
    """Signal to noise in decibels for each scale rule of an MX scheme; empty for other schemes."""
    if scheme not in blocks() or blocks()[scheme].two_level:
        return {}
    return {rule: apply_scheme(values, scheme, replace(options, rule=rule)).sqnr_db for rule in SCALE_RULES}
