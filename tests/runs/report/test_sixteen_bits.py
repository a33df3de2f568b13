"""The page "FP16 or BF16 here": the choice from the verdicts of a study, the gradients of its runs, the forms."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precgui.config import RunConfig
from precgui.events import EXPONENT_BINS, TENSOR_STATS, RunEnded, RunStarted, TensorStats
from precgui.runs.report.content import report_content
from precgui.runs.report.html import html_report, sixteen_bits_report
from precgui.runs.report.sixteen_bits import SixteenBits, sixteen_bits
from precgui.runs.report.writing import markdown_report
from precgui.runs.study.groups import make_study
from precgui.runs.study.run_figures import RunFigures
from tests.runs.study.sample_runs import arm, figures
from tests.runs.synthetic import open_writer

SEEDS = [0.90, 0.91, 0.89, 0.92, 0.90]
NEAR = [0.9005, 0.9095, 0.89, 0.9205, 0.8995]
COUNT, AMAX = (TENSOR_STATS.index(name) for name in ("count", "amax"))


def page(*arms: list[RunFigures]) -> SixteenBits:
    runs = [run for each in arms for run in each]
    result = sixteen_bits(make_study(runs), runs)
    assert result is not None
    return result


def failed(name: str, seed: int) -> RunFigures:
    return replace(figures(name, seed), status="failed", came_through=False, metric_value=None)


def timed(name: str, values: list[float], step_s: float) -> list[RunFigures]:
    """Runs that took about so long a step."""
    runs = arm(name, values)
    return [replace(run, step_s=step_s + run.seed * 1e-6, cpu_s=step_s + run.seed * 1e-6) for run in runs]


def recorded(folder: Path, exponent: int, precision: str = "fp32") -> Path:
    """A run with half of its gradients at 2^exponent and the largest at 1.5."""
    exponents, stats = np.zeros((2, EXPONENT_BINS), "<u4"), np.zeros((2, len(TENSOR_STATS)))
    exponents[0, [127 + exponent, 127]] = 500, 500
    exponents[1, 127] = 1000
    stats[:, COUNT], stats[:, AMAX] = 1000, 1.5
    path = folder / f"{precision}.h5"
    with open_writer(path, RunConfig(precision=precision)) as emit:
        emit(RunStarted(0.0, 5, 5, "cpu"))
        names = ("deep.weight", "head.weight")
        emit(TensorStats(1, 0.1, "gradient", names, (1, 1), stats.tobytes(), exponents.tobytes()))
        emit(RunEnded(1.0, "completed"))
    return path


def test_that_a_study_without_both_has_no_page() -> None:
    runs = [*arm("fp32", SEEDS), *arm("bf16-amp", NEAR)]
    assert sixteen_bits(make_study(runs), runs) is None
    assert "FP16 or BF16" not in html_report(report_content(make_study(runs), runs, title="", command=""))


@pytest.mark.parametrize(
    ("fp16", "bf16", "choice", "said"),
    [
        (arm("fp16-amp", NEAR), arm("bf16-amp", NEAR), "either", "no difference of their speed was shown"),
        (timed("fp16-amp", NEAR, 0.010), timed("bf16-amp", NEAR, 0.005), "bf16-amp", "2 times as fast as fp16-amp"),
        (timed("fp16-amp", NEAR, 0.005), timed("bf16-amp", NEAR, 0.010), "fp16-amp", "2 times as fast as bf16-amp"),
        (arm("fp16-amp", NEAR, emulated="Rounded."), arm("bf16-amp", NEAR), "bf16-amp", "fp16-amp is emulated"),
        ([*arm("fp16-amp", NEAR[:4]), failed("fp16-amp", 5)], arm("bf16-amp", NEAR), "bf16-amp", "1 of 5 failed"),
        (arm("fp16-amp", NEAR), arm("bf16-amp", [s - 0.05 for s in SEEDS]), "fp16-amp", "bf16-amp loses more"),
        (arm("fp16-amp", [0.5] * 5), arm("bf16-amp", [0.4] * 5), "neither", "fp16-amp loses more"),
        (arm("fp16-amp", SEEDS[:2]), arm("bf16-amp", SEEDS[:2]), "not decided", "was not shown"),
    ],
)  # fmt: skip
def test_that_the_choice_follows_the_verdicts(
    fp16: list[RunFigures], bf16: list[RunFigures], choice: str, said: str
) -> None:
    result = page(arm("fp32", SEEDS), fp16, bf16)
    assert result.choice == choice
    assert said in result.sentence


def test_that_a_format_that_the_device_computes_slowly_is_called_so() -> None:
    why = "This CPU has no fast BF16: a product takes 50 times its FP32 time."
    result = page(arm("fp32", SEEDS), arm("fp16-amp", NEAR, emulated="Rounded."), arm("bf16-amp", NEAR, slow=why))
    assert dict(result.rows)["computed here"] == ("emulated", "slowly")
    assert f"bf16-amp is slow here: {why}" in result.caveats


def test_that_without_fp32_or_with_a_failing_one_nothing_is_decided() -> None:
    alone = page(arm("fp16-amp", NEAR), arm("bf16-amp", NEAR))
    assert (alone.choice, alone.sentence[:24]) == ("not decided", "Not decided: FP32 is not")
    broken = page([*arm("fp32", SEEDS[:4]), failed("fp32", 5)], arm("fp16-amp", NEAR), arm("bf16-amp", NEAR))
    assert broken.choice == "not decided"
    assert "1 of 5 failed" in broken.sentence


@pytest.mark.parametrize(
    ("exponent", "word", "plain", "scaled"),
    [(-10, "not needed for these steps", "0 %", "0 %"), (-30, "needed", "25 %", "0 %"),
     (-60, "of no use", "25 %", "25 %")],
)  # fmt: skip
def test_that_the_loss_scale_is_judged_by_the_recorded_gradients(
    tmp_path: Path, exponent: int, word: str, plain: str, scaled: str
) -> None:
    base = [replace(run, path=recorded(tmp_path, exponent)) for run in arm("fp32", SEEDS[:1])]
    base += arm("fp32", SEEDS)[1:]
    result = page(base, arm("fp16-amp", NEAR), arm("bf16-amp", NEAR))
    rows: dict[str, Any] = dict(result.rows)
    assert rows["loss scale"] == (word, "not needed")
    assert rows["gradients that become zero, no loss scale"] == (plain, "0 %")
    assert rows["gradients that become zero at a loss scale of 2^14"] == (scaled, "not needed")
    assert [row[0] for row in result.tensors] == ([] if exponent == -10 else ["deep.weight"])
    assert result.needs_scaling is (exponent == -30)
    assert any("span more than FP16 holds" in line for line in result.caveats) is (exponent == -60)


def test_that_gradients_that_fp16_may_have_lost_are_not_taken(tmp_path: Path) -> None:
    path = recorded(tmp_path, -30, "fp16-amp")
    fp16 = [replace(run, path=path) for run in arm("fp16-amp", NEAR)]
    result = page(arm("fp32", SEEDS), fp16, arm("bf16-amp", NEAR))
    assert result.gradients is None
    assert result.no_gradients == "no run in FP32 or BF16 recorded its gradients"


def test_that_the_page_is_part_of_each_report_and_a_file_of_its_own(tmp_path: Path) -> None:
    path = recorded(tmp_path, -30)
    base = [replace(run, path=path) for run in arm("fp32", SEEDS)]
    runs = [*base, *arm("fp16-amp", NEAR, emulated="Products <b>are</b> rounded."), *arm("bf16-amp", NEAR)]
    content = report_content(make_study(runs), runs, title="mine <x>", command="precgui sweep x")
    alone = sixteen_bits_report(content)
    for text in ("use bf16-amp here", "deep.weight", "Products &lt;b&gt;are", "mine &lt;x&gt;", "against fp16-amp"):
        assert text in alone
    assert "use bf16-amp here" in html_report(content)
    assert "## FP16 or BF16 here" in markdown_report(content)
