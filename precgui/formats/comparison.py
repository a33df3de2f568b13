"""A tensor before and after quantisation, ready to be drawn: histograms, marks and figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from precgui.formats.arrays import Floats
from precgui.formats.schemes import Options, Outcome, apply_scheme, rule_comparison

BINS = 120
MOST_LINES = 2000
MOST_VALUES = 1 << 21


@dataclass(frozen=True)
class Comparison:
    """Histograms over `edges` before and after; `levels` are the different values after, none where there are many."""

    before: Floats
    outcome: Outcome
    edges: Floats
    counts: NDArray[np.int_]
    after: NDArray[np.int_]
    levels: Floats
    level_counts: NDArray[np.int_]
    rules: dict[str, float]


def compare(values: Floats, scheme: str, options: Options, told: Callable[[float], None]) -> Comparison:
    """Quantise and count; `told` is called with the share that is done. Raises ValueError as `apply_scheme` does."""
    if not values.size:
        raise ValueError("There are no values; type some, with commas between them.")
    told(0.1)
    outcome = apply_scheme(values, scheme, options)
    told(0.4)
    rules = rule_comparison(values, scheme, options)
    told(0.7)
    before, after = (part[np.isfinite(part)].ravel() for part in (values, outcome.values))
    edges = _edges(before)
    levels, numbers = np.unique(after, return_counts=True)
    if levels.size > MOST_LINES:
        levels, numbers = np.zeros(0), np.zeros(0, np.int_)
    told(0.9)
    counts, found = (np.histogram(part, edges)[0].astype(np.int_) for part in (before, after))
    return Comparison(values, outcome, edges, counts, found, levels, numbers.astype(np.int_), rules)


def _edges(values: Floats) -> Floats:
    if not values.size:
        return np.array([-0.5, 0.5])
    low, high = float(values.min()), float(values.max())
    if not high > low:
        return np.array([low - 0.5, low + 0.5])
    edges: Floats = np.linspace(low, high, BINS + 1)
    return edges if np.all(np.isfinite(edges)) and np.all(np.diff(edges) > 0) else np.array([low, high])


def part_of(values: Floats, most: int = MOST_VALUES) -> tuple[Floats, str]:
    """At most `most` values: all, or whole rows evenly spread, or the first ones; and which these are, in words."""
    if values.size <= most:
        return values, ""
    step = -(-values.size // most)
    if values.ndim > 1 and values.shape[0] >= 2 * step:
        part = np.ascontiguousarray(values[::step])
        return part, f"every {step}th row, {part.size} of {values.size} values"
    return values.ravel()[:most].copy(), f"the first {most} of {values.size} values"
