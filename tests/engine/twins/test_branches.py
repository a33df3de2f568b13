"""Branches of a small network: the same state, the same batches, and biases that are planted."""

from __future__ import annotations

import pytest
from torch import nn

from precgui import config
from precgui.config import RunConfig
from precgui.engine.errors import EngineError, Stopped
from precgui.engine.twins.arms import BranchPlan, TwinArm, branch_points, rounding_twin
from precgui.engine.twins.branches import run_branches
from precgui.runs.verdict.branches import judge_drift


def small(*settings: str) -> RunConfig:
    return config.load("digits-quick", ["device=cpu", "threads=1", "model.name=mlp", "train.max_steps=60", *settings])


def test_that_a_branch_in_fp32_is_the_run_itself_to_the_last_bit() -> None:
    record = run_branches(small(), [TwinArm("same", "fp32")], BranchPlan(4, 5))
    assert record.steps == [12, 24, 36, 48]
    assert record.arms["same"].held_out == record.after
    assert not any(any(row) for branch in record.arms["same"].tensor_distances for row in branch)


def test_that_branches_leave_the_run_as_it_would_have_been() -> None:
    record = run_branches(small("train.max_steps=20"), [TwinArm("low", "bf16-pure")], BranchPlan(3, 4, warm_up=8))
    again = run_branches(small("train.max_steps=20"), [TwinArm("low", "fp32")], BranchPlan(3, 4, warm_up=8))
    assert record.after == again.after and record.steps == [8, 12, 16]


def test_that_a_rounding_twin_stays_near_and_bf16_weights_are_farther_away() -> None:
    record = run_branches(small(), [TwinArm("low", "bf16-pure"), rounding_twin("twin", 1)], BranchPlan(4, 5))
    low, twin = (record.arms[name].tensor_distances for name in ("low", "twin"))
    assert 0 < max(twin[0][-1]) < 1e-5 < min(low[0][-1])
    assert len(twin) == 4 and len(twin[0]) == 5 and len(twin[0][0]) == len(record.tensors)


def test_that_a_planted_bias_is_found_and_a_twin_is_none() -> None:
    def shrink(model: nn.Module, branch: int) -> None:
        for parameter in model.parameters():
            parameter.data *= 0.9

    record = run_branches(small(), [TwinArm("shrunk", "fp32", shrink), rounding_twin("twin", 1)], BranchPlan(12, 4))
    progress = sum(abs(a - b) for a, b in zip(record.after, record.before, strict=True)) / 12
    verdicts = {
        name: judge_drift([a - b for a, b in zip(arm.held_out, record.after, strict=True)], progress).verdict
        for name, arm in record.arms.items()
    }
    assert verdicts == {"shrunk": "bias", "twin": "no bias"}


def test_that_the_loss_scale_is_found_before_the_first_branch_counts() -> None:
    config_with_scale = small("scaling.initial_scale=1e30", "precision=fp16-amp", "train.max_steps=120")
    record = run_branches(config_with_scale, [TwinArm("low", "fp16-amp")], BranchPlan(2, 40, warm_up=5))
    assert record.arms["low"].skipped < 50
    assert any("find the scale" in note for note in record.notes)


@pytest.mark.parametrize(
    ("settings", "precision", "sentence"),
    [
        ([], "int8-qat", "int8-qat learns its ranges over a whole run"),
        (["task=cartpole", "model.name=auto"], "bf16-amp", "its batches are played by the model"),
        (["train.max_steps=30"], "bf16-amp", "the run has 30 steps, too few"),
        (["pruning.method=magnitude"], "bf16-amp", "pruning.method: "),
    ],
)
def test_that_runs_that_cannot_be_branched_are_refused(settings: list[str], precision: str, sentence: str) -> None:
    with pytest.raises(EngineError, match=sentence):
        run_branches(small(*settings), [TwinArm("low", precision)], BranchPlan(16, 12))


def test_that_branches_can_be_stopped() -> None:
    calls = iter([False] * 8 + [True] * 10_000)
    with pytest.raises(Stopped):
        run_branches(small(), [TwinArm("low", "bf16-amp")], BranchPlan(4, 5), lambda: next(calls))


def test_that_branch_points_are_spread_over_the_run() -> None:
    assert branch_points(100, BranchPlan(4, 10)) == [20, 40, 60, 80]
    assert branch_points(100, BranchPlan(10, 10, warm_up=0)) == list(range(0, 100, 10))
