"""A run that is open in the window, and a problem to report to the user. Plain data, no Qt."""

from __future__ import annotations

from dataclasses import dataclass

from precgui.events import Severity
from precgui.runs.run import Run

COLOURS, DASHES = 7, 4  # coprime: 28 runs before a pair of colour and dash comes again


@dataclass
class OpenRun:
    """A run in the window. Colour and dash belong to it as long as it is open."""

    key: str
    run: Run
    name: str
    colour_index: int
    dash_index: int
    visible: bool = True
    line_px: float = 1.0


@dataclass(frozen=True, slots=True)
class Problem:
    """Something to tell the user: one sentence, and details one click away."""

    message: str
    details: str = ""
    severity: Severity = "error"
