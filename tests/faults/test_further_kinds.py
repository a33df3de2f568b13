"""Mistakes that the first rules overlooked, put down to another cause or blamed on the wrong side are named now."""

from __future__ import annotations

from pathlib import Path

import pytest

from precgui.config import RecordConfig
from precgui.runs.diagnosis import Diagnosis
from tests.faults.lookalike_faults import HEALTHY_ZEROS, LOOKALIKES
from tests.faults.module_faults import MODULES
from tests.faults.numeric_faults import NUMERIC
from tests.faults.odd_loops import judged
from tests.faults.published_faults import Open, Train

ALL_FAULTS = {**NUMERIC, **MODULES, **LOOKALIKES}
HARMFUL = sorted(name for name, fault in ALL_FAULTS.items() if fault.rules)
TWINS = ("dead_relu", "detached_encoder", "giou_half", "normalize_eps_half", "weight_decay_huge")


def _judged(train: Train, path: Path, broken: bool) -> Diagnosis:
    def loop(opened: Open) -> None:
        train(opened, broken)

    return judged(loop, path, RecordConfig())


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
@pytest.mark.parametrize("name", HARMFUL)
def test_that_a_mistake_is_named_first_and_nobody_is_blamed_wrongly(name: str, tmp_path: Path) -> None:
    fault = ALL_FAULTS[name]
    problems = _judged(fault.train, tmp_path / "run.h5", True).problems
    told = [(each.rule, each.precision_is_to_blame, each.certainty, each.title) for each in problems]
    assert problems, told
    assert problems[0].rule in fault.rules, told
    if fault.blame is not None:
        assert all(each.precision_is_to_blame in (None, fault.blame) for each in problems), told
    assert all(each.certainty == "estimate" for each in problems if each.precision_is_to_blame is None), told


@pytest.mark.parametrize("name", TWINS)
def test_that_its_correction_is_left_alone(name: str, tmp_path: Path) -> None:
    problems = _judged(ALL_FAULTS[name].train, tmp_path / "run.h5", False).problems
    assert [(each.rule, each.title) for each in problems] == []


@pytest.mark.parametrize("name", sorted(HEALTHY_ZEROS))
def test_that_gradients_that_are_exactly_zero_do_not_accuse_a_healthy_loop(name: str, tmp_path: Path) -> None:
    problems = _judged(HEALTHY_ZEROS[name], tmp_path / "run.h5", False).problems
    assert [(each.rule, each.title) for each in problems] == []


def test_that_a_loss_of_inf_without_harm_is_no_error(tmp_path: Path) -> None:
    problems = _judged(NUMERIC["loss_sum_half"].train, tmp_path / "run.h5", True).problems
    assert {each.severity for each in problems} <= {"warning"}
