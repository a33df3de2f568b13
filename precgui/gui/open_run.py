"""A run that is open in the window, and a problem to report to the user. Plain data, no Qt."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from precgui.events import Severity
from precgui.runs.run import Run, SignalSource

COLOURS, DASHES = 7, 4  # coprime: 28 runs before a pair of colour and dash comes again


@dataclass
class DrawnRun:
    """A run in a plot."""

    key: str
    run: SignalSource
    name: str
    colour_index: int
    dash_index: int
    visible: bool = True
    line_px: float = 1.0
    shade: int = 0


@dataclass
class OpenRun(DrawnRun):
    """A run in the window. Colour and dash belong to it as long as it is open."""

    run: Run


@dataclass(frozen=True, slots=True)
class Problem:
    """A message to the user: one sentence, details behind a button, and a file that it speaks of, to be opened.

    `run` is the key of the open run that it is about, where it is about one: with that it is over.
    """

    message: str
    details: str = ""
    severity: Severity = "error"
    file: Path | None = None
    run: str = ""


def usual_colour(run_id: str) -> int:
    """The index of the colour that a run asks for where its precision's is taken, the same in every session."""
    return int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:4]) % COLOURS


def distinct_name(title: str, created: str, taken: Collection[str]) -> str:
    """The title, followed by the time of creation, or else a number, where another open run has it already."""
    if title not in taken:
        return title
    try:
        timed = f"{title} {datetime.fromisoformat(created).astimezone():%H:%M:%S}"
    except ValueError:
        timed = title
    numbered = (f"{timed} ({number})" for number in range(2, len(taken) + 3))
    return timed if timed not in taken else next(name for name in numbered if name not in taken)


def short_names(names: Sequence[str]) -> list[str]:
    """The names without the words that all of them begin with, so that the rest differs."""
    words = [name.split(" ") for name in names]
    if len(set(names)) < 2:
        return list(names)
    common = 0
    while all(len(each) > common + 1 for each in words) and len({each[common] for each in words}) == 1:
        common += 1
    return [" ".join(each[common:]) for each in words]
