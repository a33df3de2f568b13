"""The operations of a loss that may have made it NaN or Inf in a step in which nobody looked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from precgui.runs.diagnosis.blame import placed
from precgui.runs.diagnosis.findings import Evidence
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.recorded_facts import number, text, whole
from precgui.sentences import L_, Sentence, together

_MOST, _CTC = 3, "_ctc_loss"


def suspects(m: Measurements, step: int) -> list[Mapping[str, Any]]:
    """Rows of `loss_operations`, the nearest to the end of its domain first; those alone that reached it in this step,
    and in none before, where there are any."""
    if overflown := _overflown(m, step):
        return [overflown]
    rows = [row for row in m.fact_rows("loss_operations") if text(row, "operation") and text(row, "line")]
    whole_losses = {text(row, "line") for row in rows if text(row, "operation") == _CTC}  # torch divides in these, too
    rows = [row for row in rows if text(row, "operation") == _CTC or text(row, "line") not in whole_losses]
    if met := [row for row in rows if is_met(row, step)]:
        return met[:1]
    return sorted(rows, key=_nearness)[:_MOST]


def _nearness(row: Mapping[str, Any]) -> tuple[float, bool]:
    """The distance in three digits; a division comes behind the root or the deviation that it divides by."""
    return float(f"{number(row, 'distance'):.3g}"), text(row, "operation") == "div"


def _overflown(m: Measurements, step: int) -> Mapping[str, Any]:
    """The operation of a step that was computed in FP64 beside itself whose result is beyond its format; {} without."""
    row = next((each for each in m.fact_rows("exact_steps") if each.get("step") == step), {})
    cause = row.get("cause")
    place = cause.get("first_nonfinite") if isinstance(cause, Mapping) and cause.get("overflows") else None
    if not isinstance(place, Mapping) or place.get("backward") is not False or place.get("module"):
        return {}
    name, line = text(place, "operation").partition(".")[0], text(place, "line")
    return {"operation": name, "line": line, "overflows": True} if name and line else {}


def is_met(row: Mapping[str, Any], step: int) -> bool:
    """Whether an operation was seen to be given numbers for which it is undefined, in this step first."""
    return whole(row, "nearest") == step and number(row, "distance", math.inf) <= 0


def evidence_of(rows: list[Mapping[str, Any]], step: int) -> tuple[Evidence, ...]:
    """That these operations are undefined for some numbers; () without any."""
    if not rows or rows[0].get("overflows"):  # that of its blame says it
        return ()
    values: dict[str, float | int | str] = {
        "operations": ", ".join(f"{text(row, 'operation')} {text(row, 'line')}" for row in rows)
    }
    formula = L_("operations between outputs and loss that are undefined for some numbers")
    if is_met(rows[0], step):
        met = Sentence(
            "In step {step} {operation} is given numbers at or beyond the end of its domain.",
            step=step, operation=_placed(rows[0]),
        )  # fmt: skip
        return (Evidence(formula, values, met),)
    each = [
        Sentence("{operation} ({distance:.2g})", operation=_placed(row), distance=number(row, "distance"))
        for row in rows
    ]
    seen = Sentence(
        "Step {step} was not looked at operation by operation. Between the outputs and the loss these are undefined "
        "for some numbers; in brackets stands how near they came to these in other steps: {operations}.",
        step=step, operations=together(*each, between=", "),
    )  # fmt: skip
    return (Evidence(formula, values, seen),)


def named(short: str, rows: list[Mapping[str, Any]], step: int) -> str:
    """The clause of a cause, with the operation where it was seen, or where all are at one line."""
    if len({text(row, "line") for row in rows}) != 1:
        return short
    if rows[0].get("overflows"):
        return Sentence("{cause}: {operation} overflows there", cause=short, operation=_placed(rows[0]))
    if is_met(rows[0], step):
        return Sentence("{cause}: {operation} is undefined there", cause=short, operation=_placed(rows[0]))
    return Sentence("{cause}: suspect is {operation}", cause=short, operation=_placed(rows[0]))


def cure(fix: str, rows: list[Mapping[str, Any]]) -> str:
    """The fix, with the lines to look at first."""
    if not rows:
        return fix
    if text(rows[0], "operation") == _CTC:
        return Sentence(
            "Look first at {operation}: leave out samples whose targets need more places than their inputs have, or "
            "take zero_infinity=True.",
            operation=_placed(rows[0]),
        )  # fmt: skip
    look = Sentence(
        "Look first at {operations}: bound what is given to it, by a clamp or an epsilon.",
        operations=together(*(_placed(row) for row in rows), between=", "),
    )  # fmt: skip
    return together(look, fix)


def _placed(row: Mapping[str, Any]) -> str:
    return placed(text(row, "operation"), text(row, "line"))
