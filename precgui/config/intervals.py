"""Intervals of a run, in steps or in minutes, as a config writes them."""

from __future__ import annotations

import re
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BeforeValidator

from precgui.sentences import Sentence

_TEXT = re.compile(r"(\d+(?:\.\d+)?) ?(steps?|s|min|minutes?|h|hours?)", re.ASCII)
_SECONDS = {"s": 1.0, "min": 60.0, "minute": 60.0, "minutes": 60.0, "h": 3600.0, "hour": 3600.0, "hours": 3600.0}
_LONGEST_S = 1e7


class StepInterval(NamedTuple):
    """So many steps, or seconds where `steps` is 0."""

    steps: int
    seconds: float


def interval(text: str) -> StepInterval | None:
    """The interval that a text such as `500 steps`, `10 min` or `1 h` means, None for an empty one. Raises ValueError.

    It has no unit of its own: a plain number counts steps.
    """
    kept = text.strip().lower()
    if not kept:
        return None
    match = _TEXT.fullmatch(f"{kept} steps" if kept.isdecimal() else kept)
    number = float(match[1]) if match else 0.0
    if match and match[2].startswith("step") and number.is_integer() and 1 <= number <= 1e9:
        return StepInterval(int(number), 0.0)
    if match and match[2] in _SECONDS and 0 < number * _SECONDS[match[2]] <= _LONGEST_S:
        return StepInterval(0, number * _SECONDS[match[2]])
    raise ValueError(
        Sentence("{value!r} is no interval; write a time or steps, such as 10 min, 1 h or 500 steps", value=text[:40])
    )


def _checked(text: str) -> str:
    interval(text)
    return text.strip()


def _as_text(value: Any) -> Any:
    """A plain number as its text."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


IntervalText = Annotated[str, BeforeValidator(_as_text), AfterValidator(_checked)]
