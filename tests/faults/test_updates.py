"""Rare and small updates that 16 bits lose are named; corrections and healthy loops are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.odd_loops import judged
from tests.faults.published_faults import Open
from tests.faults.update_faults import FIXED, HEALTHY, UPDATES


@pytest.mark.parametrize("name", UPDATES)
def test_that_lost_updates_are_named_and_their_correction_is_not(name: str, tmp_path: Path) -> None:
    fault = UPDATES[name]
    for broken in (True, False):

        def loop(opened: Open, broken: bool = broken) -> None:
            fault.train(opened, broken)

        problems = judged(loop, tmp_path / f"{broken}.h5").problems
        answers = {(each.rule, each.precision_is_to_blame) for each in problems}
        assert answers == ({(fault.rules[0], fault.blame)} if broken else set()), [each.title for each in problems]


@pytest.mark.parametrize("name", HEALTHY)
def test_that_updates_of_which_nothing_is_lost_are_left_alone(name: str, tmp_path: Path) -> None:
    assert [each.title for each in judged(HEALTHY[name], tmp_path / "run.h5").problems] == []


@pytest.mark.parametrize("name", FIXED)
def test_that_the_fix_mends_the_loop(name: str, tmp_path: Path) -> None:
    words, fixed = FIXED[name]
    ends: dict[str, float] = {}
    fixes: list[str] = []
    for way in ("broken", "twin", "fixed"):

        def loop(opened: Open, way: str = way) -> None:
            ends[way] = fixed(opened) if way == "fixed" else UPDATES[name].train(opened, way == "broken")

        fixes.append(" ".join(each.fix for each in judged(loop, tmp_path / f"{way}.h5").problems))
    assert words in fixes[0] and fixes[1:] == ["", ""]
    assert ends["fixed"] - ends["twin"] < 0.2 * (ends["broken"] - ends["twin"]), ends
