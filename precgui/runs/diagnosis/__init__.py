"""Verdicts on a run that carry their proof: rules on what was recorded, no torch, no window."""

from precgui.runs.diagnosis.examine import RULES, diagnose, examine
from precgui.runs.diagnosis.findings import BLAME, Diagnosis, Evidence, Finding, RuledOut, Undecided, as_json

__all__ = [
    "BLAME",
    "RULES",
    "Diagnosis",
    "Evidence",
    "Finding",
    "RuledOut",
    "Undecided",
    "as_json",
    "diagnose",
    "examine",
]
