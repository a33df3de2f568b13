"""Gradients that a loop rounds away are named; compression, masks and clips that people use are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from precgui.config import RecordConfig
from tests.faults import gradient_faults
from tests.faults.gradient_faults import KEEPING, LOSING
from tests.faults.odd_loops import judged


@pytest.mark.parametrize("name", LOSING)
def test_that_gradients_rounded_away_are_named(name: str, tmp_path: Path) -> None:
    found = judged(lambda opened: gradient_faults.train(opened, LOSING[name]), tmp_path / "run.h5", RecordConfig())
    assert [(each.rule, each.precision_is_to_blame) for each in found.problems] == [("rounded-gradients", True)]
    assert "body" in found.problems[0].module and "head.weight" in found.problems[0].tensors


@pytest.mark.parametrize("name", KEEPING)
def test_that_a_change_of_gradients_on_purpose_is_left_alone(name: str, tmp_path: Path) -> None:
    found = judged(lambda opened: gradient_faults.train(opened, KEEPING[name]), tmp_path / "run.h5", RecordConfig())
    assert "rounded-gradients" not in [each.rule for each in found.findings]
