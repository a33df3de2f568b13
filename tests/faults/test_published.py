"""Mistakes that people have published are named, and unusual healthy loops left alone (those that are quick)."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from precgui.config import RecordConfig
from tests.faults.odd_loops import ALL, judged
from tests.faults.published_faults import Open, batches, network
from tests.faults.published_mistakes import FAULTS
from tests.faults.unusual_loops import UNUSUAL

NAMED = (
    "cleared_between_backward_and_step", "only_vectors_are_divided_by_the_scale", "scheduler_of_epochs_in_each_batch",
    "epsilon_of_a_norm_in_fp16", "head_replaced_after_the_optimizer", "frozen_encoder_in_half_precision",
    "loss_beyond_the_least_scale",
)  # fmt: skip
QUICK = (
    "master_weights_by_hand",
    "layers_unfrozen_one_after_another",
    "rate_from_zero_to_zero",
    "missing_values_as_nan",
)


@pytest.mark.parametrize("name", NAMED)
def test_that_a_published_mistake_is_named(name: str, tmp_path: Path) -> None:
    fault = FAULTS[name]

    def loop(opened: Open) -> None:
        fault.train(opened, True)

    problems = judged(loop, tmp_path / "run.h5", ALL).problems
    named = [each for each in problems if each.rule in fault.rules]
    assert named, [(each.rule, each.title) for each in problems]
    assert all(each.precision_is_to_blame in (None, fault.blame) or fault.blame is None for each in named)


@pytest.mark.parametrize("name", QUICK)
def test_that_an_unusual_healthy_loop_is_left_alone(name: str, tmp_path: Path) -> None:
    diagnosis = judged(UNUSUAL[name], tmp_path / "run.h5", RecordConfig())
    assert [(each.rule, each.title) for each in diagnosis.problems] == []


def test_that_masters_without_a_step_are_no_foreign_parameters(tmp_path: Path) -> None:
    """The overflow is the cause, and the same loop with a loss of size one is healthy."""
    train = FAULTS["loss_beyond_the_least_scale"].train
    broken = judged(lambda opened: train(opened, True), tmp_path / "broken.h5", RecordConfig())
    assert [(each.rule, each.precision_is_to_blame) for each in broken.problems] == [("no-step-taken", True)]
    assert "FP16" in broken.problems[0].title
    sound = judged(lambda opened: train(opened, False), tmp_path / "sound.h5", RecordConfig())
    assert [(each.rule, each.title) for each in sound.problems] == []


def test_that_copies_with_no_more_digits_are_foreign_parameters(tmp_path: Path) -> None:
    """An optimizer of a copy of the model that nobody steps, for gradients that never reach it."""

    def loop(opened: Open) -> None:
        model = network()
        recorder = opened(model, torch.optim.SGD(copy.deepcopy(model).parameters(), 0.1))
        for x, y in batches(20):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            recorder.step(loss)

    assert "foreign-parameters" in {each.rule for each in judged(loop, tmp_path / "run.h5", ALL).problems}
