"""The verdict on a run as a view shows it: its words, its colour, and how urgent it is."""

from __future__ import annotations

from precgui.gui.theme import severity_colour, themes
from precgui.runs.diagnosis.findings import Diagnosis
from precgui.words import L_, translated

VERDICTS = {"healthy": L_("Healthy"), "cannot be told": L_("Cannot be told"), "problems": L_("Problems")}


def short_verdict(diagnosis: Diagnosis) -> str:
    """The diagnosis for a narrow cell: healthy, or the title of the gravest problem."""
    if diagnosis.problems:
        return translated(diagnosis.problems[0].title)
    return translated(VERDICTS.get(diagnosis.verdict, diagnosis.verdict))


def verdict_colour(diagnosis: Diagnosis | None) -> str:
    """The colour of a verdict; muted while there is none."""
    theme = themes().theme
    if diagnosis is None or diagnosis.verdict == "cannot be told":
        return theme.muted
    return theme.ok if diagnosis.verdict == "healthy" else severity_colour(diagnosis.problems[0].severity)


def has_error(diagnosis: Diagnosis) -> bool:
    """Whether the gravest problem is an error."""
    return bool(diagnosis.problems) and diagnosis.problems[0].severity == "error"


def urgency(diagnosis: Diagnosis | None) -> int:
    """0 for a run with an error, 1 for one with warnings, 2 for the others."""
    if diagnosis is None or not diagnosis.problems:
        return 2
    return int(not has_error(diagnosis))
