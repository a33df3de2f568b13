"""Runs that end early because nothing can be learned any more."""

from __future__ import annotations

import math

import pytest

from precgui.config import TrainConfig, build
from precgui.engine.early_end import EarlyEnd
from precgui.engine.train import train
from precgui.events import Event, RunEnded, StepDone


def done(step: int, loss: float = 1.0, norm: float = 1.0, *, skipped: bool = False) -> StepDone:
    return StepDone(step, 0.0, loss, 1.0, skipped, 0.1, norm, 0.1, 0.0, 8, math.nan)


@pytest.mark.parametrize(("loss", "norm", "skipped", "ends"), [
    (math.nan, 1.0, False, True), (1.0, math.inf, False, True), (1.0, 1.0, False, False),
    (math.nan, math.nan, True, False),
])  # fmt: skip
def test_that_only_steps_that_were_taken_count_as_not_finite(
    loss: float, norm: float, skipped: bool, ends: bool
) -> None:
    end = EarlyEnd(TrainConfig(stop_at_nonfinite=True))
    end.after(done(7, loss, norm, skipped=skipped))
    assert bool(end.reason) is ends
    quiet = EarlyEnd(TrainConfig())
    quiet.after(done(7, loss, norm, skipped=skipped))
    assert not quiet.reason


def test_that_skipped_steps_count_in_a_row() -> None:
    end = EarlyEnd(TrainConfig(stop_after_skipped=3))
    for step, skipped in enumerate((True, True, False, True, True), 1):
        end.after(done(step, skipped=skipped))
    assert not end.reason
    end.after(done(6, skipped=True))
    assert "3 steps in a row" in end.reason


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
