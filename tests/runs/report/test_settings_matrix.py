"""The matrix of models and precisions: each model beside its own baseline, in every form of the report."""

from __future__ import annotations

from precgui.runs.report.content import ReportContent, report_content
from precgui.runs.report.html import html_report
from precgui.runs.report.writing import markdown_report
from precgui.runs.study.groups import make_study
from tests.runs.study.sample_runs import arm

SEEDS = [0.90, 0.91, 0.89, 0.92, 0.90]


def content() -> ReportContent:
    """Two models in two precisions: BF16 saves half of the memory of the cnn and nothing of the mlp."""
    runs, baselines = [], {}
    for model, memory, loss in (("cnn", 500.0, 0.0), ("mlp", 1000.0, 0.02)):
        base, low = f"fp32 model.name={model}", f"bf16-amp model.name={model}"
        baselines |= {base: base, low: base}
        runs += arm(base, SEEDS, precision="fp32", largest_batch=64.0)
        runs += arm(
            low,
            [value - loss for value in SEEDS],
            precision="bf16-amp",
            memory_bytes=memory,
            largest_batch=64000.0 / memory,
        )
    return report_content(make_study(runs, baseline_of=baselines), runs, title="", command="")


def test_that_each_model_is_compared_with_its_own_baseline() -> None:
    matrix = content().matrix
    assert matrix is not None
    assert matrix.precisions == ("fp32", "bf16-amp")
    cells = {(settings, figure): row for settings, figure, row in matrix.rows}
    assert cells["model.name=cnn", "memory saved"][1].startswith("50 %")
    assert cells["model.name=mlp", "memory saved"][1].startswith("0 %")
    title = "Accuracy against its baseline (95 % interval)"
    assert cells["model.name=cnn", title] == ("baseline", "0.00 points [-0.05, +0.05]")  # one sample of a thousand
    assert cells["model.name=mlp", title][1].startswith("-2.00 points")
    assert cells["model.name=mlp", "runs that came through"] == ("5 of 5", "5 of 5")
    assert cells["model.name=cnn", "largest batch, estimated"] == ("64 samples", "128 samples, 2.00x")
    assert cells["model.name=cnn", "energy saved"][1] == "not measured"
    assert cells["model.name=cnn", "speed-up"][0] == "baseline"


def test_that_every_form_has_it_and_a_study_of_one_model_has_none() -> None:
    whole = content()
    assert "<h2>Settings by precision</h2>" in html_report(whole)
    assert "## Settings by precision" in markdown_report(whole)
    runs = [*arm("fp32", SEEDS), *arm("bf16-amp", SEEDS)]
    plain = report_content(make_study(runs), runs, title="", command="")
    assert plain.matrix is None
    assert "Settings by precision" not in html_report(plain)
