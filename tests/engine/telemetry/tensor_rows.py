"""The statistics of an event by the names of the tensors."""

from __future__ import annotations

import numpy as np

from precgui.events import EXPONENT_BINS, TENSOR_STATS, TensorStats


def read(event: TensorStats) -> tuple[dict[str, dict[str, float]], dict[str, np.ndarray]]:
    """Statistics and exponent counts of each tensor."""
    stats = np.frombuffer(event.stats).reshape(-1, len(TENSOR_STATS))
    exponents = np.frombuffer(event.exponents, np.uint32).reshape(-1, EXPONENT_BINS)
    named = {
        name: dict(zip(TENSOR_STATS, row.tolist(), strict=True)) for name, row in zip(event.names, stats, strict=True)
    }
    return named, dict(zip(event.names, exponents, strict=True))
