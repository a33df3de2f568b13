"""Mistakes are named with their rule and blame; their twins, and sound loops that look like them, are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from precgui.config import RecordConfig
from tests.faults import (
    axis_faults,
    cast_faults,
    choice_faults,
    coarse_faults,
    constant_faults,
    data_faults,
    deliberate_loops,
    discarded_faults,
    flat_faults,
    leaking_faults,
    loss_faults,
    planned_faults,
    policy_faults,
    reload_faults,
    replay_faults,
    rewritten_faults,
    sequence_faults,
    setup_faults,
    shape_faults,
    shift_faults,
    signal_faults,
    singular_faults,
    sorted_faults,
    state_faults,
    typical_faults,
    vanishing_faults,
    whole_number_faults,
)
from tests.faults.class_faults import FAULTS, HEALTHY
from tests.faults.odd_loops import judged

assert coarse_faults and state_faults and constant_faults and rewritten_faults and deliberate_loops  # they add to both
assert data_faults and setup_faults and whole_number_faults and loss_faults and vanishing_faults
assert axis_faults and typical_faults and leaking_faults and shape_faults and sequence_faults and singular_faults
assert cast_faults and flat_faults and planned_faults and policy_faults and replay_faults
assert discarded_faults and reload_faults and shift_faults and signal_faults and sorted_faults and choice_faults


@pytest.mark.parametrize("name", FAULTS)
def test_that_a_mistake_is_named(name: str, tmp_path: Path) -> None:
    planted = FAULTS[name]
    problems = judged(planted.loop, tmp_path / "run.h5", RecordConfig()).problems
    told = [(each.rule, each.precision_is_to_blame) for each in problems]
    assert told == [(planted.rule, planted.blame)], [(each.title, each.evidence[0].text) for each in problems]
    assert planted.says in problems[0].title, problems[0].title
    assert planted.cures in problems[0].fix, problems[0].fix


@pytest.mark.parametrize("name", HEALTHY)
def test_that_a_sound_loop_is_left_alone(name: str, tmp_path: Path) -> None:
    problems = judged(HEALTHY[name], tmp_path / "run.h5", RecordConfig()).problems
    assert [(each.rule, each.title, each.evidence[0].text) for each in problems] == []
