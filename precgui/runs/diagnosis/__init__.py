"""Verdicts on a run that carry their proof: rules on what was recorded, no torch, no window."""

from precgui.runs.diagnosis.checkpoint_rules import examine_scan
from precgui.runs.diagnosis.examine import RULES, diagnose, examine
from precgui.runs.diagnosis.findings import (
    BLAME,
    Blame,
    Diagnosis,
    Evidence,
    Finding,
    RuledOut,
    Undecided,
    as_json,
    blame_sentence,
)

__all__ = [
    "BLAME",
    "RULES",
    "Blame",
    "Diagnosis",
    "Evidence",
    "Finding",
    "RuledOut",
    "Undecided",
    "as_json",
    "blame_sentence",
    "diagnose",
    "examine",
    "examine_scan",
]
