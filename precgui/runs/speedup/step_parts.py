"""The parts of a step of a kept profile, in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def times_of(side: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of the parts of a step in one precision."""
    return {
        "products": float(side["products_s"]), "casts": float(side["casts_s"]), "others": float(side["others_s"]),
        "gaps": float(side["gaps_s"]), "data": float(side["data_s"]),
    }  # fmt: skip


def total_s(side: Mapping[str, Any]) -> float:
    """Seconds of a step and of the wait for its data."""
    return float(side["step_s"]) + float(side["data_s"])
