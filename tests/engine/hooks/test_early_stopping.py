"""Runs that end early because nothing can be learned any more."""

from __future__ import annotations

import math
from typing import cast

import pytest

from precgui.config import RunConfig, TrainConfig, build
from precgui.engine.hook import TrainingRun
from precgui.engine.hooks.early_stopping import EarlyStopping
from precgui.engine.journal import Journal
from precgui.engine.run_parts import RunParts
from precgui.engine.train import train
from precgui.events import Event, RunEnded, StepDone


def done(step: int, loss: float = 1.0, norm: float = 1.0, *, skipped: bool = False) -> StepDone:
    return StepDone(step, 0.0, loss, 1.0, skipped, 0.1, norm, 0.1, 0.0, 8, math.nan)


def run_of(settings: TrainConfig) -> TrainingRun:
    """A run that has no model, and of all hooks at most this one."""
    run = TrainingRun(RunConfig(train=settings), cast(RunParts, None), Journal(lambda event: None), 40)
    run.make_hooks([EarlyStopping])
    return run


@pytest.mark.parametrize(("loss", "norm", "skipped", "ends"), [
    (math.nan, 1.0, False, True), (1.0, math.inf, False, True), (1.0, 1.0, False, False),
    (math.nan, math.nan, True, False),
])  # fmt: skip
def test_that_only_steps_that_were_taken_count_as_not_finite(
    loss: float, norm: float, skipped: bool, ends: bool
) -> None:
    run = run_of(TrainConfig(stop_at_nonfinite=True))
    run.hooks.end_step(done(7, loss, norm, skipped=skipped))
    assert bool(run.stop_reason) is ends
    quiet = run_of(TrainConfig())
    assert not quiet.hooks.hooks


def test_that_skipped_steps_count_in_a_row() -> None:
    run = run_of(TrainConfig(stop_after_skipped=3))
    for step, skipped in enumerate((True, True, False, True, True), 1):
        run.hooks.end_step(done(step, skipped=skipped))
    assert not run.stop_reason
    run.hooks.end_step(done(6, skipped=True))
    assert "3 steps in a row" in run.stop_reason


def test_that_a_run_ends_and_says_why() -> None:
    events: list[Event] = []
    config = build({
        "precision": "fp16-amp", "train": {"max_steps": 40, "stop_after_skipped": 4}, "data": {"batch_size": 8},
        "scaling": {"mode": "static", "initial_scale": 2.0**60}, "record": {"tensors": False},
    })  # fmt: skip
    train(config, events.append, lambda: False)
    ended = events[-1]
    assert isinstance(ended, RunEnded)
    assert ended.status == "stopped"
    assert ended.message == "stopped after step 4 of 40: 4 steps in a row were skipped (train.stop_after_skipped)"
