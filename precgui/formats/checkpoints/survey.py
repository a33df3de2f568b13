"""The findings of a scan on a tensor: statistics, figures of each format, and the counts of its 16-bit codes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precgui.formats.arrays import Floats, quantize_array
from precgui.formats.checkpoints.tensor import code_values
from precgui.formats.model import IntFormat
from precgui.formats.rounding import CastPolicy
from precgui.formats.weight_formats import WeightFormat

FIGURES = ("bytes", "sqnr_db", "worst", "cosine", "zeroed", "clipped")  # of a tensor in a format
EXPONENTS = 256
WIDE = 4.0  # times the largest magnitude of the usual column: an outlier


@dataclass(frozen=True)
class TensorSurvey:
    """Of one tensor: `figures` [formats, FIGURES], NaN where rows do not fit; `exponents` of FP32, [256].

    codes, counts: the 16-bit codes that occur and how often, in the format `code` (bf16 or fp16). `is_exact`: they are
    the numbers themselves; otherwise those cut to BF16. columns: the widest columns with their largest magnitudes;
    usual_column: the median of that of all columns. wide_share: of the squared error in INT8 with a scale for each row,
    the share that is gone without the `wide_columns`, on some rows; NaN where there are none. Numbers that are not
    finite are counted and taken for zeros.
    """

    name: str
    size: int
    figures: Floats
    exponents: NDArray[np.uint32]
    codes: NDArray[np.uint16]
    counts: NDArray[np.uint32]
    code: str
    is_exact: bool
    amax: float
    amin_nonzero: float
    mean: float
    rms: float
    kurtosis: float
    zeros: int
    nan: int
    pos_inf: int
    neg_inf: int
    columns: tuple[tuple[int, float], ...] = ()
    usual_column: float = math.nan
    wide_share: float = math.nan

    @property
    def wide_columns(self) -> list[int]:
        """The outliers among the widest columns."""
        return [place for place, peak in self.columns if peak > WIDE * self.usual_column]

    @property
    def nonfinite(self) -> int:
        return self.nan + self.pos_inf + self.neg_inf

    def values(self) -> tuple[Floats, Floats]:
        """The different finite numbers, ascending by code, and how often each occurs."""
        values = code_values(self.code)[self.codes].astype(np.float64)
        known = np.isfinite(values)
        return values[known], self.counts[known].astype(np.float64)


def exponents_of(code: str, codes: NDArray[np.uint16], counts: NDArray[np.integer[Any]]) -> NDArray[np.uint32]:
    """How many numbers have which exponent field of FP32, [EXPONENTS]; Inf and NaN in the last."""
    fields = (code_values(code)[codes].view(np.uint32) >> np.uint32(23)) & np.uint32(0xFF)
    return np.bincount(fields, counts, EXPONENTS).astype(np.uint32)


@dataclass(frozen=True)
class ScaleEffect:
    """The effect of a format with one scale for the tensor, from the counts alone."""

    scale: float
    sqnr_db: float
    zeroed: float
    clipped: float
    worst: float


def answer(survey: TensorSurvey, fmt: WeightFormat, factor: float = 1.0) -> ScaleEffect:
    """The figures of a format with one scale, `factor` times the one of its rule. Exact where the counts are.

    Raises ValueError for a format whose scales belong to rows or groups: the counts do not tell who shares one.
    """
    if fmt.group != 0:
        raise ValueError(f"{fmt.name} has scales for rows or groups; the counts answer for one scale of the tensor")
    values, counts = survey.values()
    usual = 1.0 if fmt.rule == "none" else float(np.float32(survey.amax) / np.float32(fmt.divisor))
    scale = (usual or 1.0) * factor
    scaled = values / scale
    rounded = quantize_array(scaled, _WIDE, CastPolicy()) if isinstance(fmt.element, IntFormat) else None
    if rounded is not None:
        low, high = fmt.element.min_ordinal, fmt.element.max_ordinal
        codes = np.clip(rounded, low, high)
        cut = rounded != codes
    else:
        codes = quantize_array(scaled, fmt.element, CastPolicy(overflow="saturate"))
        top = float(fmt.element.max_finite)
        cut = np.abs(scaled) > top + _half_gap(fmt)
    error = codes * scale - values
    noise, signal = float((counts * error**2).sum()), float((counts * values**2).sum())
    lost = float(counts[(codes == 0) & (values != 0)].sum())
    return ScaleEffect(
        scale, ratio_db(signal, noise), lost, float(counts[cut].sum()), float(np.abs(error).max(initial=0.0))
    )


_WIDE = IntFormat("int64", "", 52)


def _half_gap(fmt: WeightFormat) -> float:
    """From the largest value of an element, how far rounding still comes back to it."""
    top = float(fmt.element.max_finite)
    digits = getattr(fmt.element, "mantissa_bits", None)
    return 0.0 if digits is None else 2.0 ** (math.floor(math.log2(top)) - digits) / 2


def ratio_db(signal: float, noise: float) -> float:
    """Signal over noise in dB; inf where nothing was lost, NaN where squares overflow."""
    if noise <= 0:
        return math.inf
    if math.isinf(noise) or math.isinf(signal):
        return math.nan
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf


def totals(surveys: Sequence[TensorSurvey], formats: Sequence[WeightFormat]) -> dict[str, tuple[float, float]]:
    """For each format the bytes of all tensors that it fits, and their SQNR over all numbers in dB."""
    result = {}
    for place, fmt in enumerate(formats):
        rows = [(each, each.figures[place]) for each in surveys if not math.isnan(each.figures[place, 0])]
        signal = math.fsum(each.size * each.rms**2 for each, _ in rows)
        noise = math.fsum(
            each.size * each.rms**2 * 10 ** (-row[1] / 10) for each, row in rows if row[1] < math.inf and each.rms
        )
        result[fmt.name] = math.fsum(row[0] for _, row in rows), ratio_db(signal, noise)
    return result
