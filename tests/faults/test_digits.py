"""Digits that operations lose in 16 bits are named, the seeds in turns; corrections and odd loops are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from precgui.runs.diagnosis import lost_digit_rules, moment_rules
from tests.faults.digit_faults import DIGITS, ENOUGH
from tests.faults.odd_loops import judged
from tests.faults.published_faults import Open
from tests.faults.turns import in_turns


@pytest.mark.parametrize(("name", "seed"), in_turns(DIGITS, [0, 1]))
def test_that_lost_digits_are_named_and_the_correction_is_not(name: str, seed: int, tmp_path: Path) -> None:
    fault = DIGITS[name]
    for broken in (True, False):

        def loop(opened: Open, broken: bool = broken) -> None:
            fault.train(opened, broken)

        problems = judged(loop, tmp_path / f"{broken}.h5", seed=seed).problems
        answers = {(each.rule, each.precision_is_to_blame) for each in problems}
        assert answers == ({(fault.rules[0], fault.blame)} if broken else set())


@pytest.mark.parametrize("name", ENOUGH)
def test_that_a_loop_with_enough_digits_is_left_alone(name: str, tmp_path: Path) -> None:
    diagnosis = judged(ENOUGH[name], tmp_path / "run.h5")
    own = {rule.name for rule in (*lost_digit_rules.RULES, *moment_rules.RULES)}
    assert [(each.rule, each.title) for each in diagnosis.findings if each.rule in own] == []
