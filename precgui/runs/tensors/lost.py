"""The share of each tensor that a format loses, by steps: updates below half an ulp, others below its range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from precgui.events import TENSOR_STATS
from precgui.runs.tensors.grouping import View
from precgui.runs.tensors.what_if import BIAS, range_of


@dataclass(frozen=True)
class LostShares:
    """`share` (entries, steps) of 1, NaN where nothing was recorded; `names` (entries,), `steps` (steps,).

    `meaning` is `half ulp` for the share of the changes that a weight stored in the format would not take, `unchanged`
    for the share of the weights, stored in it, that a step did not change, and `zero` for the share of the elements
    that become zero though they are not.
    """

    names: tuple[str, ...]
    steps: NDArray[np.int64]
    share: NDArray[np.float64]
    meaning: Literal["half ulp", "unchanged", "zero"]


def lost_shares(view: View, name: str, log2_scale: int, stored: str = "") -> LostShares:
    """Of each entry of a view in a format, for tensors times 2^log2_scale; a scale does not matter for updates of
    formats whose ulps were compared in the training. `stored` is the format of the weights of the run where it is a
    narrow one. Raises ValueError for a format without exponents."""
    if view.rows.kind == "update" and name == stored:
        return LostShares(view.names, view.steps, 1 - view.stat("changed").T, "unchanged")
    if view.rows.kind == "update" and f"lost_{name}" in TENSOR_STATS:
        return LostShares(view.names, view.steps, view.stat(f"lost_{name}").T, "half ulp")
    return LostShares(view.names, view.steps, _underflow(view, range_of(name).zero_below - log2_scale), meaning="zero")


@np.errstate(all="ignore")
def _underflow(view: View, exponent: int) -> NDArray[np.float64]:
    """The share of the elements that are not zero and below 2^exponent, shape (entries, steps): exact, a bin edge."""
    counts, edge = view.rows.exponents, min(max(exponent + BIAS, 0), 255)
    zeros = np.nan_to_num(view.rows.stats[:, :, TENSOR_STATS.index("zeros")])
    below = counts[:, :, :edge].sum(2, dtype=np.float64) - (np.minimum(zeros, counts[:, :, 0]) if edge else 0.0)
    whole = counts.sum(2, dtype=np.float64)
    shares = [below[:, own].sum(1) / whole[:, own].sum(1) for own in view.members]
    return np.array(shares)
