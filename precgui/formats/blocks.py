"""Block formats on NumPy arrays: MX (one power-of-two scale for 32 values) and NVFP4 (two levels of scale).

Sources: OCP Microscaling Formats 1.0 (2023), section 6.3, for MX; NVIDIA's description of NVFP4 (2025).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from precgui.formats.arrays import Floats, quantize_array
from precgui.formats.model import BlockFormat, CodeBook, FloatFormat, Format, floor_log2
from precgui.formats.registry import UnknownFormatError, blocks, get
from precgui.formats.rounding import CastPolicy, RoundingMode
from precgui.sentences import Sentence

ScaleRule = Literal["floor", "ceil", "even", "rceil"]
SCALE_RULES: tuple[ScaleRule, ...] = get_args(ScaleRule)
LOWEST_SCALE, HIGHEST_SCALE = -127, 127


@dataclass(frozen=True)
class BlockTensor:
    """A tensor in a block format.

    values: what it stands for, in the shape of the input. elements: the values in the element format, one row for
    each block, the last row padded with zeros. scales: one factor for each block, the tensor scale included.
    clipped, flushed: where an element was cut off at the largest value, and where it became zero, as `values`.
    """

    values: Floats
    elements: Floats
    scales: Floats
    tensor_scale: float
    clipped: NDArray[np.bool_]
    flushed: NDArray[np.bool_]

    def codes(self) -> tuple[Floats, Floats]:
        """The elements and the scale of each, both in the shape of `values`."""
        scales = np.broadcast_to(self.scales[:, None], self.elements.shape)
        return _unrows(self.elements, self.values.shape), _unrows(scales, self.values.shape)


def block_format(name: str) -> BlockFormat:
    """The block format of that name. Raises UnknownFormatError."""
    if name not in blocks():
        raise UnknownFormatError(
            Sentence("{name!r} is no block format; there are {names}", name=name, names=", ".join(blocks()))
        )
    return blocks()[name]


def quantize_blocks_array(
    values: ArrayLike, name: str, rule: ScaleRule = "floor", rounding: RoundingMode = "nearest_even", seed: int = 0,
    first: int = 0, largest: float | None = None,
) -> BlockTensor:  # fmt: skip
    """Round an array to a block format, blocks running along the last axis.

    `rule` sets the power-of-two scale of MX formats; NVFP4 has its own. A block that holds NaN or infinity is NaN
    throughout, since its scale is. Of a part of a larger tensor, `first` is the place of the first value, with the
    padding of blocks, and `largest` the largest finite magnitude of the whole. Raises UnknownFormatError and ValueError
    for an unknown format or rule.
    """
    if rule not in SCALE_RULES:
        raise ValueError(f"{rule!r} is no scale rule; there are {', '.join(SCALE_RULES)}")
    chosen = block_format(name)
    element = get(chosen.element)
    array = np.asarray(values, dtype=np.float64)
    rows = _rows(array, chosen.block)
    peak = np.max(np.abs(rows), axis=1)
    if chosen.two_level:
        scales, tensor_scale = _nvfp4_scales(rows, peak, element, largest)
    else:
        scales, tensor_scale = np.ldexp(1.0, mx_exponents(peak, element, rule)), 1.0
        scales[~np.isfinite(peak)] = np.nan
    return _apply(array, rows, scales, tensor_scale, element, rounding, (seed, first), chosen.two_level)


def _rows(array: Floats, block: int) -> Floats:
    """The array cut into blocks along its last axis, the last one of each line padded with zeros."""
    lines = array.reshape(-1, array.shape[-1] if array.ndim else 1)
    padding = -lines.shape[1] % block
    return np.pad(lines, ((0, 0), (0, padding))).reshape(-1, block)


def mx_exponents(peak: Floats, element: Format, rule: ScaleRule) -> NDArray[np.int_]:
    """The exponent of the scale of each block, from the largest magnitude in it; clamped to what E8M0 holds."""
    safe = np.where(np.isfinite(peak), peak, 0.0)
    top = floor_log2(element.max_finite)
    mantissa, exponent = np.frexp(safe)
    match rule:
        case "floor":
            chosen = exponent - 1 - top
        case "ceil":
            chosen = exponent - (mantissa == 0.5) - top
        case "even":
            chosen = np.frexp(np.rint(mantissa * 2.0 ** (_mantissa_bits(element) + 1)))[1]
            chosen = chosen + exponent - _mantissa_bits(element) - 2 - top
        case _:
            limit_mantissa, limit_exponent = np.frexp(float(element.max_finite))
            chosen = exponent - limit_exponent + (mantissa > limit_mantissa)
    return np.where(safe == 0, LOWEST_SCALE, np.clip(chosen, LOWEST_SCALE, HIGHEST_SCALE)).astype(np.int_)


def _mantissa_bits(element: Format) -> int:
    return element.mantissa_bits if isinstance(element, FloatFormat) else element.bits - 2


def _nvfp4_scales(rows: Floats, peak: Floats, element: Format, known: float | None) -> tuple[Floats, float]:
    """Block scales (E4M3 times the FP32 tensor scale), divided in single precision."""
    limit, scale_format = np.float32(float(element.max_finite)), get("ue4m3")
    result = np.max(np.abs(rows), initial=0.0, where=np.isfinite(rows)) if known is None else known
    largest = np.float32(result)
    tensor_scale = largest / (np.float32(float(scale_format.max_finite)) * limit)
    if tensor_scale == 0:
        return np.where(np.isfinite(peak), 0.0, np.nan), 0.0
    requested = np.where(np.isfinite(peak), peak, 0.0).astype(np.float32) / limit / tensor_scale
    local = quantize_array(requested, scale_format, CastPolicy(overflow="saturate"))
    scales = (local.astype(np.float32) * tensor_scale).astype(np.float64)
    return np.where(np.isfinite(peak), scales, np.nan), float(tensor_scale)


def _apply(
    array: Floats, rows: Floats, scales: Floats, tensor_scale: float, element: Format, rounding: RoundingMode,
    draws: tuple[int, int] = (0, 0), two_level: bool = False,
) -> BlockTensor:  # fmt: skip
    column = scales[:, None]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        scaled = np.where(column == 0, 0.0, _divided(rows, column, single=two_level))
        known = np.where(np.isnan(column), 0.0, scaled)
    elements = quantize_array(known, element, CastPolicy(rounding, overflow="saturate"), *draws)
    products = (elements * column).astype(np.float32).astype(np.float64) if two_level else elements * column
    values = _unrows(products, array.shape)
    limits = float(element.value(element.min_ordinal)), float(element.max_finite)
    outside = (known < limits[0]) | (known > limits[1])
    return BlockTensor(
        values,
        np.where(np.isnan(column), np.nan, elements),
        scales,
        tensor_scale,
        _unrows(outside & (elements != known), array.shape),
        _unrows(elements == 0, array.shape) & (array != 0),
    )


def _divided(rows: Floats, column: Floats, *, single: bool) -> Floats:
    """Elements over their scale; by division in single precision where the scale is no power of two."""
    if not single:
        return rows / column
    quotient: Floats = (rows.astype(np.float32) / column.astype(np.float32)).astype(np.float64)
    return quotient


def _unrows(rows: NDArray, shape: tuple[int, ...]) -> NDArray:  # type: ignore[type-arg]
    width = shape[-1] if shape else 1
    lines = int(np.prod(shape[:-1])) if shape else 1
    return rows.reshape(lines, rows.size // max(lines, 1))[:, :width].reshape(shape)


def code_book_blocks(values: ArrayLike, book: CodeBook, block: int = 64) -> BlockTensor:
    """A code book with an absolute-maximum scale for each block, as QLoRA uses NF4."""
    array = np.asarray(values, dtype=np.float64)
    rows = _rows(array, block)
    peak = np.max(np.abs(rows), axis=1)
    scales = np.where(np.isfinite(peak), peak / float(book.max_finite), np.nan)
    return _apply(array, rows, scales, 1.0, book, "nearest_even")
