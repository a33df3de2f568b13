"""Sentences on how a device adds the products of a format: for the bench, the window and the notes of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precgui.sentences import L_, Sentence, filled, together

_FAST = L_("{format}, fast accumulation")
_KEPT: dict[str | None, str] = {
    "toward_zero": L_("sums keep {bits} bits, truncated"),
    "nearest_even": L_("sums keep {bits} bits, rounded to nearest"),
    "down": L_("sums keep {bits} bits, rounded down"),
    "up": L_("sums keep {bits} bits, rounded up"),
    None: L_("sums keep {bits} bits"),
}


def sums_title(row: Mapping[str, Any]) -> str:
    """The operands of an `accumulation`, and how they were multiplied where there is a choice."""
    if row["format"] == "e5m2":
        return L_("e5m2 times e4m3fn")
    return filled(_FAST, format=row["format"]) if row["fast"] else row["format"]


def sums_text(row: Mapping[str, Any]) -> str:
    """How products are added, by an `accumulation`; empty where that was not measured."""
    bits, count, rounding = row["bits"], row.get("promoted_every"), row.get("rounding")
    if bits is None:
        return L_("sums keep all bits that its operands can tell apart") if "terms" in row else ""
    kept = filled(_KEPT.get(rounding, _KEPT[None]), bits=bits)
    promoted = Sentence("after every {count} terms the partial sum is added in FP32", count=count) if count else ""
    return together(kept, promoted, between="; ")
