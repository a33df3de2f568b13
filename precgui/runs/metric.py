"""The metric of a run in words: what its task measures, in which unit, and which way is better."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from precgui.events import Metric
from precgui.sanitize import one_line
from precgui.sentences import L_, Sentence, recased

ACCURACY = Metric("accuracy", L_("Accuracy"), L_("share of the samples whose class is found"))
_ROUNDING_ERROR = 1e-12  # of a mean of differences that add up to 0
_LONGEST = 80  # characters of a text from a file


def metric_of(environment: Mapping[str, Any]) -> Metric:
    """The metric of a run's task, from its environment; accuracy where none is named."""
    reported = environment.get("metric")
    if not isinstance(reported, Mapping):
        return ACCURACY
    requested = {each.name: type(getattr(ACCURACY, each.name)) for each in fields(Metric)}
    known: dict[str, Any] = {
        name: reported[name] for name, kind in requested.items() if isinstance(reported.get(name), kind)
    }
    if not {"name", "title", "about"} <= known.keys():
        return ACCURACY
    known |= {name: one_line(value, _LONGEST) for name, value in known.items() if isinstance(value, str)}
    return Metric(**known)


def metric_named(metric: str | Metric) -> Metric:
    """A metric from its name alone: a share of 1 of which more is better. Raises ValueError for an empty name."""
    if isinstance(metric, Metric):
        return metric
    if not metric.strip():
        raise ValueError("a metric needs a name; give one, or a precgui.Metric")
    if metric == ACCURACY.name:
        return ACCURACY
    return Metric(metric, metric, metric)


def shared(metrics: Iterable[Metric]) -> Metric | None:
    """The metric that all of these runs have, or None when they differ or there are none."""
    results = list(metrics)
    return results[0] if results and all(metric == results[0] for metric in results) else None


def value_text(metric: Metric, value: float | None, unknown: str) -> str:
    """A value with its unit; a share in per cent."""
    if value is None or not math.isfinite(value):
        return unknown
    return f"{100 * value:.2f} %" if metric.unit == "%" else f"{value:.4g} {metric.unit}".rstrip()


def difference_text(metric: Metric, difference: float | None, unknown: str) -> str:
    """A difference with its sign and unit; of shares in percentage points."""
    if difference is None or not math.isfinite(difference):
        return unknown
    if metric.unit == "%":
        return with_unit(signed(100 * difference, 2), "points")
    return f"{difference or 0.0:+.4g} {metric.unit}".rstrip()


def with_unit(number: str, unit: str) -> str:
    """A number, or one with its spread, before its unit; points and samples are words."""
    match unit:
        case "points":
            return Sentence("{number} points", number=number)
        case "samples":
            return Sentence("{number} samples", number=number)
    return f"{number} {unit}".rstrip()


def signed(value: float, digits: int) -> str:
    """A number with its sign; one that rounds to zero has none."""
    text = f"{value:+.{digits}f}"
    return text[1:] if float(text) == 0 else text


def decimals(least: int, value: float, ends: Sequence[float] = ()) -> int:
    """How many decimals show a value and its interval: `least`, and more where the width of the interval, or the value
    where it has none, would read as 0."""
    width = max(ends) - min(ends) if ends else 0.0
    needed = _first_decimal(width) + 1 if _first_decimal(width) else _first_decimal(value)
    return max(least, needed)


def _first_decimal(value: float) -> int:
    """The place of the first digit of a value below 1; 0 for others, and for the rounding error of a 0."""
    size = abs(value)
    return -math.floor(math.log10(size)) if _ROUNDING_ERROR < size < 1 else 0


def in_text(title: str) -> str:
    """A title inside a sentence: a first capital goes, unless more follow (IoU, R²)."""
    first = title.partition(" ")[0]
    is_word = len(first) > 2 and first[1:].islower()
    return recased(title, "lower") if is_word else title


def way_text(metric: Metric) -> str:
    return L_("higher is better") if metric.higher_is_better else L_("lower is better")
