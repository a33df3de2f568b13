"""Findings that another finding answers for."""

from __future__ import annotations

from pathlib import Path

from precgui.runs.diagnosis import consequences
from precgui.runs.diagnosis.consequences import EXPLAINS


def test_that_only_findings_of_rules_explain_and_are_explained() -> None:
    own = Path(consequences.__file__)
    rules = "".join(room.read_text(encoding="utf-8") for room in own.parent.glob("*.py") if room != own)
    names = {*EXPLAINS, *(name for effects in EXPLAINS.values() for name in effects)}
    assert [name for name in sorted(names) if f'"{name}"' not in rules] == []


def test_that_no_finding_explains_itself_or_its_own_cause() -> None:
    for cause, effects in EXPLAINS.items():
        assert len(set(effects)) == len(effects), cause
        assert cause not in effects
        assert not [name for name in effects if cause in EXPLAINS.get(name, ())]
