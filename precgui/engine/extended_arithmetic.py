"""Arithmetic on numbers of a training, any of which may be zero, infinite, NaN or near the largest float."""

from __future__ import annotations

import math
from collections.abc import Iterable


def inverse(scale: float) -> float:
    """The factor that unscales gradients, as `torch.amp.GradScaler` computes it: Inf for a scale that has fallen to 0.

    Gradients of such a step, which are 0, so become NaN, as those that the optimizer gets.
    """
    return 1 / scale if scale else math.copysign(math.inf, scale)


def exact_sum(values: Iterable[float]) -> float:
    """`math.fsum`, but Inf where a sum overflows, and NaN for Inf - Inf."""
    numbers = list(values)
    try:
        return math.fsum(numbers)
    except (OverflowError, ValueError):
        return sum(numbers)
