"""Agreement of two orders of the same things."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def rank_agreement(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's correlation of ranks, ties sharing theirs; NaN for fewer than three pairs or where all are equal."""
    pairs = np.array([pair for pair in zip(first, second, strict=True) if all(map(math.isfinite, pair))], np.float64)
    if len(pairs) < 3:
        return math.nan
    ranks = [_ranks(column) - (len(pairs) - 1) / 2 for column in pairs.T]
    size = math.sqrt(float((ranks[0] ** 2).sum() * (ranks[1] ** 2).sum()))
    return float((ranks[0] * ranks[1]).sum()) / size if size > 0 else math.nan


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean rank, from 0, of all values that equal each."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    mean: NDArray[np.float64] = (ends - counts + ends - 1) / 2
    return mean[place]
