"""Trainings at chance are named with their cause, their corrections and odd loops near chance are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from precgui.config import RecordConfig
from tests.faults.chance_faults import AT_CHANCE, NEAR_CHANCE
from tests.faults.odd_loops import judged
from tests.faults.published_faults import Open


@pytest.mark.parametrize("name", AT_CHANCE)
def test_that_a_training_at_chance_is_named_and_its_correction_is_not(name: str, tmp_path: Path) -> None:
    planted = AT_CHANCE[name]
    for broken in (True, False):

        def loop(opened: Open, broken: bool = broken) -> None:
            planted.train(opened, broken)

        problems = judged(loop, tmp_path / f"{broken}.h5", RecordConfig()).problems
        titles = [(each.title, each.evidence[0].text) for each in problems]
        answers = [(each.rule, each.precision_is_to_blame) for each in problems]
        assert answers == ([(planted.rule, planted.blame)] if broken else []), titles
        assert not broken or planted.says in problems[0].title
        assert (
            planted.rule in ("rate-too-high", "inputs-out-of-scale")
            or not broken
            or any("the best" in each.formula for each in problems[0].evidence)
        )


@pytest.mark.parametrize("name", NEAR_CHANCE)
def test_that_a_healthy_loop_near_chance_is_left_alone(name: str, tmp_path: Path) -> None:
    found = judged(NEAR_CHANCE[name], tmp_path / "run.h5", RecordConfig())
    assert [(each.rule, each.title, each.evidence[0].text) for each in found.problems] == []
