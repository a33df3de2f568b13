"""Run files with numbers that no run has, and tensors that have lost a part, are compared and reported all the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

import precgui
from precgui.events import EXPONENT_BINS, TENSOR_STATS, RunEnded, RunStarted, TensorStats
from precgui.runs.recorded_gradients import recorded_gradients
from precgui.runs.report.html import html_report
from precgui.runs.report.ungrouped import ungrouped_report
from precgui.runs.report.writing import markdown_report
from precgui.runs.study.figures import figures_of
from precgui.runs.tensors.what_if_table import what_if_table
from tests.runs.synthetic import open_writer


def fill(path: Path, name: str, value: float) -> Path:
    """The column with this value in each row, as a wider number where its own type has no place for it."""
    with h5py.File(path, "r+") as file:
        shape, space = file[name].shape, file[name].maxshape
        del file[name]
        file.create_dataset(name, data=np.full(shape, value), maxshape=space, chunks=True)
    return path


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e308])
@pytest.mark.parametrize("name", ["evaluation/accuracy", "evaluation/loss", "steps/step_s", "steps/time_s"])
def test_that_runs_with_numbers_that_no_run_has_are_reported(
    write: Callable[..., Path], tmp_path: Path, name: str, value: float
) -> None:
    paths = [fill(write(tmp_path / f"{which}.h5"), name, value) for which in ("one", "two", "three")]
    with precgui.open_run(paths[0]) as run:
        figures = figures_of(run, "one")
        for figure in (figures.metric_value, figures.val_loss, figures.step_s, figures.time_s):
            assert figure is None or np.isfinite(figure)
    report = ungrouped_report(paths)
    shown = markdown_report(report).split("## Claims")[0]  # claims speak of NaN
    assert "nan" not in shown.casefold().replace("nan or inf", "")
    assert html_report(report)


@pytest.mark.parametrize("name", ["stats", "exponents", "stride"])
def test_that_a_column_of_fewer_tensors_than_names_is_read(tmp_path: Path, name: str) -> None:
    path, names = tmp_path / "run.h5", ("a", "b", "c")
    stats, counts = np.ones((3, len(TENSOR_STATS))).tobytes(), np.ones((3, EXPONENT_BINS), "<u4").tobytes()
    with open_writer(path) as emit:
        emit(RunStarted(0.0, 3, 3, "cpu"))
        for step in (1, 2, 3):
            emit(TensorStats(step, 0.1 * step, "gradient", names, (1, 4, 1), stats, counts))
        emit(RunEnded(1.0, "completed"))
    with h5py.File(path, "r+") as file:
        values = file[f"tensors/gradient/{name}"][:, :2]
        del file[f"tensors/gradient/{name}"]
        file.create_dataset(f"tensors/gradient/{name}", data=values)
    with precgui.open_run(path) as run:
        record = run.tensors()["gradient"]
        assert record.stats().shape[1] == record.exponents().shape[1] == record.strides().shape[1] == len(record.names)
        assert what_if_table(run, "gradient", ["fp16"], 0, "by tensor") is not None
        recorded_gradients(run)
