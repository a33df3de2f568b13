"""Judged branches and their side file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from precgui.runs.errors import RunFileError
from precgui.runs.twins import TWINS, TwinResult, distance_band, twin_result


def points(low: float | None, twin: float = 0.0, noise: float = 1e-4) -> list[dict[str, Any]]:
    return [
        {"step": 10 * n, "before": 2.0, "reference": 1.9, "low": None if low is None else 1.9 + low + noise * (-1) ** n,
         "twins": [1.9 + twin + 1e-9 * (-1) ** n]}
        for n in range(16)
    ]  # fmt: skip


def result(low: float | None = 0.05, twin: float = 0.0, precision: str = "bf16-pure") -> TwinResult:
    loss = distance_band("the training loss", [[1e-6, 1e-3]] * 16, [[1e-6, 1e-6]] * 16)
    near = distance_band("a.weight", [[1e-7, 1e-7]] * 16, [[1e-7, 1e-7]] * 16)
    far = distance_band("b.weight", [[1e-7, math.inf]] * 16, [[1e-7, 1e-7]] * 16)
    return twin_result(precision, 2, points(low, twin), loss, [near, far], samples=64, skipped=0, notes=[])


def test_that_a_bias_is_told_with_its_size_and_share() -> None:
    biased = result()
    assert biased.verdict == "bias"
    assert "0.05 higher than in FP32 after 2 steps" in biased.message and "0.5 times the change" in biased.message


def test_that_nothing_is_said_where_the_rounding_twin_drifts_as_well() -> None:
    assert result(twin=0.01).verdict == "undecided"
    assert "one ulp drift as well" in result(twin=0.01).message


def test_that_branches_that_are_not_finite_break() -> None:
    assert result(low=None).verdict == "broken"
    assert "in 16 of 16 branches" in result(low=None).message


def test_that_the_first_step_and_tensor_outside_the_band_are_named() -> None:
    document = result().document()
    assert document["first_step_outside"] == 2
    assert document["first_tensor_outside"] == "b.weight" and document["tensors_outside"] == 1
    assert json.dumps(document, allow_nan=False)


def test_that_a_branch_far_away_at_one_point_only_stays_inside_the_band() -> None:
    band = distance_band("w", [[1.0], [0.0], [0.0]], [[0.1], [0.1], [0.1]])
    assert band.leaves_at is None


def test_that_results_beside_a_run_are_data_and_others_are_left_out(tmp_path: Path) -> None:
    run = tmp_path / "run[1].h5"
    TWINS.write(TWINS.path(run, "bf16-pure"), result())
    TWINS.write(TWINS.path(run, "emulated:e4m3fn"), result(precision="emulated:e4m3fn"))
    TWINS.path(run, "fp8").write_text('{"precision": "fp8"}')
    assert [kept.precision for kept in TWINS.all(run)] == ["bf16-pure", "emulated:e4m3fn"]
    with pytest.raises(RunFileError, match="cannot be written"):
        TWINS.write(tmp_path / "nowhere" / "x.json", result())
