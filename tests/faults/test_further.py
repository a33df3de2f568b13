"""Further mistakes are named, and further healthy loops that look odd are left alone (those that are quick)."""

from __future__ import annotations

from pathlib import Path

import pytest

from precgui.config import RecordConfig
from tests.faults.further_faults import FURTHER
from tests.faults.further_healthy import FURTHER_HEALTHY
from tests.faults.odd_loops import ALL, judged
from tests.faults.published_faults import Open

NAMED = ("row_of_zeros_in_fp8", "rotary_positions_in_bf16")
QUICK = ("sines_of_small_angles_in_bf16", "signs_with_bf16_weights", "targets_in_large_units")


@pytest.mark.parametrize("name", NAMED)
def test_that_the_mistake_is_named_and_its_correction_is_not(name: str, tmp_path: Path) -> None:
    fault = FURTHER[name]
    for broken in (True, False):

        def loop(opened: Open, broken: bool = broken) -> None:
            fault.train(opened, broken)

        problems = judged(loop, tmp_path / f"{broken}.h5", ALL).problems
        answers = {(each.rule, each.precision_is_to_blame) for each in problems}
        assert answers == ({(fault.rules[0], fault.blame)} if broken else set())


@pytest.mark.parametrize("name", QUICK)
def test_that_a_healthy_loop_is_left_alone(name: str, tmp_path: Path) -> None:
    diagnosis = judged(FURTHER_HEALTHY[name], tmp_path / "run.h5", RecordConfig())
    assert [(each.rule, each.title) for each in diagnosis.problems] == []
