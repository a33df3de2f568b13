"""How a run ended, in words that do not hide that nothing was learned: "completed, NaN since step 2"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def nonfinite_since(steps: NDArray[np.float64], loss: NDArray[np.float64]) -> int | None:
    """The first of the steps at the end whose losses are all not finite; None where the last loss is finite."""
    if not len(loss) or np.isfinite(loss[-1]):
        return None
    finite = np.flatnonzero(np.isfinite(loss))
    return int(steps[finite[-1] + 1 if len(finite) else 0])


def outcome(status: str, summary: Mapping[str, Any]) -> str:
    """The status with the reason why it is not worth its name; `summary` as `runs.summary.summarise` gives it.

    Summaries of early versions do not know since when the loss is not finite.
    """
    steps, skipped = summary.get("steps"), summary.get("skipped_steps")
    if status not in ("completed", "stopped") or not isinstance(steps, int) or steps <= 0:
        return status
    since = summary.get("nonfinite_since_step")
    if isinstance(since, int):
        return f"{status}, NaN since step {since}"
    if skipped == steps:
        return f"{status}, no step taken"
    final = summary.get("final")
    loss = final.get("train_loss", 0.0) if isinstance(final, Mapping) else summary.get("train_loss", 0.0)
    return f"{status}, NaN at the end" if loss is None and "nonfinite_since_step" not in summary else status
