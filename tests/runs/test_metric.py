"""The metric of a run: named by its task, in its unit, and never mixed with another."""

from __future__ import annotations

import math
import uuid
from dataclasses import asdict

import pytest

from precgui.config import RunConfig
from precgui.events import Evaluated, Metric, RunEnded, RunStarted
from precgui.runs.compare import compare
from precgui.runs.compared import RunComparison
from precgui.runs.comparison_notes import ONE_SEED
from precgui.runs.live import LiveRun
from precgui.runs.metric import ACCURACY, difference_text, in_text, metric_of, shared, value_text
from precgui.runs.summary import summarise
from tests.runs.synthetic import live_run

IOU = Metric("iou", "Mean IoU", "overlap")
ERROR = Metric("error", "Error", "distance", unit="mm", higher_is_better=False)


def run(value: float, metric: Metric | None, precision: str = "fp32") -> LiveRun:
    facts = {} if metric is None else {"metric": asdict(metric)}
    started = RunStarted(0.0, 1, 1, "cpu", facts)
    config = RunConfig.model_validate({"precision": precision})
    made = live_run([started, Evaluated(1, 1, 1.0, 0.5, value), RunEnded(1.0, "completed")], config)
    made.run_id = uuid.uuid4().hex
    return made


@pytest.mark.parametrize(
    "told", [None, 3, "iou", {}, {"name": "iou"}, {"name": 1, "title": [], "about": None}, {"name": "a", "title": "b"}]
)
def test_that_a_file_without_a_metric_has_the_accuracy(told: object) -> None:
    assert metric_of({"metric": told}) == ACCURACY
    assert metric_of({}) == ACCURACY


def test_that_a_metric_from_a_file_is_one_short_line_of_each() -> None:
    found = metric_of({"metric": {**asdict(IOU), "title": "a\nb" * 100, "unit": 5, "more": 1}})
    assert found.title.startswith("a ba")
    assert len(found.title) == 80
    assert found.unit == "%"


def test_that_values_are_shown_in_their_unit() -> None:
    plain = Metric("r2", "R²", "variance", unit="")
    assert [value_text(m, 0.98765, "-") for m in (IOU, ERROR, plain)] == ["98.77 %", "0.9877 mm", "0.9877"]
    assert [difference_text(m, -0.02, "-") for m in (IOU, ERROR, plain)] == ["-2.00 points", "-0.02 mm", "-0.02"]
    assert [difference_text(m, -1e-9, "-") for m in (IOU, plain)] == ["0.00 points", "-1e-09"]
    assert value_text(IOU, None, "-") == value_text(IOU, math.nan, "-") == difference_text(ERROR, None, "-") == "-"


def test_that_titles_go_into_sentences() -> None:
    assert [in_text(title) for title in ("Accuracy", "Mean IoU", "R²", "AP50", "IoU of all", "mAP")] == [
        "accuracy", "mean IoU", "R²", "AP50", "IoU of all", "mAP",
    ]  # fmt: skip


def test_that_runs_share_a_metric_or_none() -> None:
    assert shared([IOU, IOU]) == IOU
    assert shared([IOU, ERROR]) is None
    assert shared([]) is None


def test_that_a_summary_says_what_its_value_is() -> None:
    summary = summarise(run(0.5, ERROR))
    assert (summary["final"]["val_accuracy"], summary["metric"]) == (0.5, asdict(ERROR))
    assert summarise(run(0.5, None))["metric"]["name"] == "accuracy"


def test_that_different_metrics_are_not_subtracted() -> None:
    found: RunComparison = compare([run(0.5, IOU), run(0.75, IOU, "bf16-amp"), run(0.9, None)])
    assert [row.accuracy_delta for row in found.runs] == [0.0, 0.25, None]
    assert found.notes == (
        "The runs have different metrics (Mean IoU, Accuracy): differences are given to runs with the metric of the "
        "baseline only.",
        ONE_SEED,
    )
    assert compare([run(0.5, IOU), run(0.75, IOU)]).notes == (ONE_SEED,)
