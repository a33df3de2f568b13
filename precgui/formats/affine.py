"""Affine quantisation to integers: value = scale x (code - zero point), per tensor, per channel or per group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from precgui.formats.arrays import Floats, quantize_array
from precgui.formats.model import IntFormat
from precgui.formats.rounding import CastPolicy, RoundingMode


@dataclass(frozen=True)
class Affine:
    """A quantised tensor; `codes` and `values` have its shape, `scale` and `zero_point` one entry for each group."""

    codes: NDArray[np.int_]
    values: Floats
    scale: Floats
    zero_point: NDArray[np.int_]
    clipped: NDArray[np.bool_]
    zeroed: NDArray[np.bool_]


def code_range(fmt: IntFormat, *, narrow: bool = False) -> tuple[int, int]:
    """The least and the largest code; `narrow` gives up the least one of a signed format, so that -max exists."""
    low, high = fmt.min_ordinal, fmt.max_ordinal
    return (low + 1 if narrow and fmt.signed and high > 0 else low), high


def choose_scale(
    low: ArrayLike, high: ArrayLike, fmt: IntFormat, *, symmetric: bool, narrow: bool = False
) -> tuple[Floats, NDArray[np.int_]]:
    """Scale and zero point that map [low, high], widened to hold 0, onto the codes (Jacob et al. 2018, 2.1)."""
    first, last = code_range(fmt, narrow=narrow)
    least, largest = np.minimum(np.asarray(low, float), 0.0), np.maximum(np.asarray(high, float), 0.0)
    if symmetric:
        peak = np.maximum(-least, largest)
        centre = 0 if fmt.signed else (last + 1) // 2
        scale = peak / max(last - centre, 1)
        return np.where(scale > 0, scale, 1.0), np.full(np.shape(scale), centre)
    scale = (largest - least) / (last - first)
    scale = np.where(scale > 0, scale, 1.0)
    zero_point = np.clip(np.rint(first - least / scale), first, last)
    return scale, zero_point.astype(np.int_)


def quantize_affine(
    values: ArrayLike, fmt: IntFormat, *, symmetric: bool = True, narrow: bool = False,
    axis: int | None = None, group: int | None = None, scale: ArrayLike | None = None,
    zero_point: ArrayLike | None = None, rounding: RoundingMode = "nearest_even", seed: int = 0, first: int = 0,
) -> Affine:  # fmt: skip
    """Quantise and dequantise an array of finite values.

    One scale for the tensor, or for each index of `axis`, or for each `group` neighbours along the last axis. A given
    `scale` and `zero_point` replace the ones computed from minimum and maximum. NaN becomes 0. `first` is the place of
    the first value in a larger tensor, for the draws of stochastic rounding. Raises ValueError for a group that does
    not divide the last axis.
    """
    array = np.asarray(values, dtype=np.float64)
    lines = _lines(array, axis, group)
    finite = np.where(np.isfinite(lines), lines, 0.0)
    outcome, centre = choose_scale(
        finite.min(axis=1, initial=0.0), finite.max(axis=1, initial=0.0), fmt, symmetric=symmetric, narrow=narrow
    )
    chosen = outcome if scale is None else np.broadcast_to(np.asarray(scale, float), outcome.shape)
    offset = centre if zero_point is None else np.broadcast_to(np.asarray(zero_point, np.int_), centre.shape)
    least, largest = code_range(fmt, narrow=narrow)
    requested = np.nan_to_num(lines / chosen[:, None], nan=0.0) + 0.0
    whole = quantize_array(requested, _WIDE, CastPolicy(rounding), seed, first) + offset[:, None]
    codes = np.clip(whole, least, largest)
    result = (codes - offset[:, None]) * chosen[:, None]

    def back(part: NDArray) -> NDArray:  # type: ignore[type-arg]
        return _unlines(part, array, axis, group)

    zeroed = (result == 0) & (lines != 0)
    return Affine(
        back(codes).astype(np.int_), back(result), chosen, np.asarray(offset), back(codes != whole), back(zeroed)
    )


_WIDE = IntFormat("int64", "", 52)


def _lines(array: Floats, axis: int | None, group: int | None) -> Floats:
    if group is not None:
        if group < 1 or array.shape[-1] % group:
            raise ValueError(f"a group of {group} does not divide the last axis of {array.shape[-1]} values")
        return array.reshape(-1, group)
    if axis is not None:
        return np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
    return array.reshape(1, -1)


def _unlines(lines: NDArray, array: Floats, axis: int | None, group: int | None) -> NDArray:  # type: ignore[type-arg]
    if group is None and axis is not None:
        moved = np.moveaxis(array, axis, 0).shape
        return np.moveaxis(lines.reshape(moved), 0, axis)
    return lines.reshape(array.shape)


def quantize_sign(values: ArrayLike, scale: float) -> Floats:
    """Binary weights: sign(x) x scale, mean |x| in Rastegari et al. 2016, XNOR-Net; zero counts as positive."""
    return np.where(np.asarray(values, dtype=np.float64) < 0, -scale, scale)


def quantize_ternary(values: ArrayLike, scale: float) -> Floats:
    """Ternary weights: round(x / scale) clipped to -1, 0, 1; the scale is mean |x| in Ma et al. 2024, BitNet b1.58."""
    array = np.asarray(values, dtype=np.float64)
    if scale == 0:
        return np.zeros_like(array)
    ternary: Floats = np.clip(np.rint(array / scale), -1, 1) * scale
    return ternary
