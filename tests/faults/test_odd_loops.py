"""Loops of which a rule written from a symptom is wrong: nothing is said of the healthy ones, the faulty are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from precgui.config import RecordConfig
from tests.faults.odd_loops import ALL, FAULTY, HEALTHY, judged
from tests.faults.turns import in_turns

RECORDS = {"every step": ALL, "default": RecordConfig()}


@pytest.mark.parametrize(("name", "record"), in_turns(HEALTHY, list(RECORDS)))
def test_that_an_odd_but_healthy_loop_is_left_alone(name: str, record: str, tmp_path: Path) -> None:
    found = judged(HEALTHY[name], tmp_path / "run.h5", RECORDS[record])
    assert [(each.rule, each.title, each.evidence[0].text) for each in found.problems] == []


@pytest.mark.parametrize("name", FAULTY)
def test_that_the_same_loop_with_a_mistake_is_named(name: str, tmp_path: Path) -> None:
    rule, loop = FAULTY[name]
    found = judged(loop, tmp_path / "run.h5")
    assert rule in [each.rule for each in found.problems]
