"""Numbers drawn so that they have a recorded histogram of FP32 exponents: a stand-in for a tensor that was not kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from precgui.formats.arrays import Floats

BIAS = 127
BINS = 256


@dataclass(frozen=True)
class ValueHistogram:
    """Summary of a tensor: counts of the 256 FP32 exponent fields (Inf and NaN in the last), and its extremes.

    `counts[0]` holds zeros and subnormals, `zeros` says how many are zeros. `largest` and `smallest` are magnitudes,
    NaN where unknown; `mean` gives the share of negative ones.
    """

    counts: Floats
    zeros: float
    largest: float
    smallest: float
    mean: float

    @property
    def finite(self) -> float:
        return float(self.counts[:-1].sum())


def draw_values(known: ValueHistogram, size: int, seed: int = 0) -> Floats:
    """`size` finite numbers, shape (size,): each exponent as often as in the histogram, in random order.

    Within an exponent the density runs on a straight line towards those of its neighbours, between the extremes; the
    largest magnitude is among the numbers. Signs are random, as many negative as the mean asks for. Raises ValueError
    for a histogram that counts no finite number.
    """
    counts = np.asarray(known.counts, np.float64)[:-1]
    if not counts.sum() > 0:
        raise ValueError("nothing finite was recorded of this tensor, so there is nothing to draw from")
    zeros = float(np.clip(np.nan_to_num(known.zeros), 0, counts[0]))
    quotas = _quotas(np.array([zeros, counts[0] - zeros, *counts[1:]]), size)
    rng = np.random.default_rng(seed)
    pieces = [np.zeros(quotas[0])]
    ends = [_ends(field, known) for field in range(BINS - 1)]
    density = np.array([counts[0] - zeros, *counts[1:]]) / [high - low for low, high in ends]
    for field in np.flatnonzero(quotas[1:]).tolist():
        (low, high), count = ends[field], quotas[1 + field]
        even = (np.arange(count) + rng.random(count)) / count
        pieces.append(low + (high - low) * _along_line(even, *_edge_densities(density, field)))
    magnitudes = np.concatenate(pieces)
    if known.largest > 0 and magnitudes[-1] > 0:
        magnitudes[-1] = known.largest
    rng.shuffle(magnitudes)
    average = float(magnitudes.mean())
    negative = float(np.clip((1 - np.nan_to_num(known.mean) / average) / 2, 0, 1)) if average else 0.0
    signed: Floats = np.where(rng.random(size) < negative, -magnitudes, magnitudes)
    return signed


def _quotas(counts: Floats, size: int) -> NDArray[np.int_]:
    """Whole numbers in proportion to the counts that add up to `size` (largest remainders)."""
    shares = counts * (size / counts.sum())
    whole: NDArray[np.int_] = np.floor(shares).astype(np.int_)
    order = np.argsort(whole - shares, kind="stable")
    whole[order[: size - int(whole.sum())]] += 1
    return whole


def _edge_densities(density: Floats, field: int) -> tuple[float, float]:
    """Where an exponent begins and ends, relative to its mean; the trend goes on where the neighbour is empty."""
    here = density[field]
    below = density[field - 1] if field else 0.0
    above = density[field + 1] if field + 1 < len(density) else 0.0
    first, last = (float(np.sqrt(near / here)) for near in (below, above))
    if not first:
        first = 1 / last if last else 1.0
    return first, last or 1 / first


def _along_line(even: Floats, first: float, last: float) -> Floats:
    """Evenly spread numbers of 0..1 so bent that their density runs straight from `first` to `last`."""
    if abs(last - first) < 1e-6 * (first + last):
        return even
    bent: Floats = (np.sqrt(first**2 + (last**2 - first**2) * even) - first) / (last - first)
    return bent


def _ends(field: int, known: ValueHistogram) -> tuple[float, float]:
    """Magnitudes of an exponent field, as far as the extremes allow."""
    low, high = (0.0, 2.0 ** (1 - BIAS)) if field == 0 else (2.0 ** (field - BIAS), 2.0 ** (field + 1 - BIAS))
    inner_high = min(high, known.largest) if known.largest > low else high
    inner_low = max(low, known.smallest) if known.smallest < inner_high else low
    return inner_low, inner_high
