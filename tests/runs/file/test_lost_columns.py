"""A column of a run file that is lost, of another type or of another shape costs what it says, and nothing more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

import precgui
from precgui.events import EXPONENT_BINS, TENSOR_STATS, RunEnded, RunStarted, StepDone, TensorStats
from precgui.runs.diagnosis.examine import examine
from precgui.runs.file.reader import SavedRun
from precgui.runs.recorded_gradients import recorded_gradients
from precgui.runs.tensors.what_if_table import what_if_table
from tests.runs.synthetic import open_writer
from tests.written_once import written_once


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A run of five steps with gradients, gradients of activations and buffers of three tensors."""
    return written_once(tmp_path / "run.h5", "lost columns", write_run)


def write_run(path: Path) -> None:
    names, stats = ("a", "b", "c"), np.ones((3, len(TENSOR_STATS))).tobytes()
    counts = np.ones((3, EXPONENT_BINS), "<u4").tobytes()
    with open_writer(path) as emit:
        emit(RunStarted(0.0, 5, 5, "cpu"))
        for step in range(1, 6):
            emit(StepDone(step, 0.1 * step, 1 / step, 1024.0, False, 0.05, 1.0, 0.09, 0.01, 64, float("nan")))
            for kind in ("gradient", "activation_gradient", "buffer"):
                emit(TensorStats(step, 0.1 * step, kind, names, (1, 4, 1), stats, counts, ("fp16",) * 3))
        emit(RunEnded(1.0, "completed"))


def read_everything(run: SavedRun) -> None:
    examine(run)
    recorded_gradients(run)
    what_if_table(run, "gradient", ["fp16"], 0, "by tensor")


def change(path: Path, name: str, make: Callable[[h5py.Dataset], object]) -> None:
    with h5py.File(path, "r+") as file:
        values = make(file[name])
        del file[name]
        if isinstance(values, np.ndarray):
            file[name] = values
        elif values is not None:
            file.create_group(name)


CHANGES: dict[str, Callable[[h5py.Dataset], object]] = {
    "missing": lambda _: None,
    "a group": lambda _: "group",
    "text": lambda item: np.full(item.shape, b"x", "S8"),
    "fewer": lambda item: item[...][: len(item) // 2],
    "float32": lambda item: np.ones(item.shape, "f4"),
}
COLUMNS = (
    "steps/step", "steps/scale", "steps/skipped", "steps/loss", "tensors/dtypes/tensor", "tensors/dtypes/kind",
    "tensors/names", "tensors/gradient/step", "tensors/gradient/stats", "tensors/gradient/exponents",
    "tensors/gradient/stride", "tensors/activation_gradient/stats", "tensors/buffer/stats", "tensors/buffer/stride",
)  # fmt: skip


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("how", CHANGES)
def test_that_a_damaged_column_costs_no_reading_of_the_others(path: Path, name: str, how: str) -> None:
    change(path, name, CHANGES[how])
    with precgui.open_run(path) as run:
        read_everything(run)


@pytest.mark.parametrize("how", ["a group", "text"])
def test_that_a_lost_column_costs_its_table_whatever_is_read_first(path: Path, how: str) -> None:
    """NaN in its place would be a loss that diverged; a column that older files lack is NaN."""
    change(path, "steps/scale", CHANGES[how])
    change(path, "zeros/by_mask", CHANGES[how])
    with precgui.open_run(path) as run:
        assert run.steps == 0
        assert [len(run.series(name)[1]) for name in ("loss", "scale", "skipped", "lr")] == [0] * 4
        assert len(run.tensors()["gradient"]) == 5
        assert any("steps/scale" in note for note in run.notes)


@pytest.mark.parametrize("how", ["missing", "a group", "text"])
def test_that_a_lost_column_of_newer_files_is_unknown(path: Path, how: str) -> None:
    change(path, "steps/cpu_s", CHANGES[how])
    with precgui.open_run(path) as run:
        assert run.series("loss")[1].tolist() == [1 / step for step in range(1, 6)]
        assert np.isnan(run.column("steps", "cpu_s")).tolist() == [True] * 5


@pytest.mark.parametrize("tensors", [0, 1, 2, 9])
@pytest.mark.parametrize("kind", ["gradient", "activation_gradient", "buffer"])
@pytest.mark.parametrize("column", ["stats", "exponents", "stride"])
def test_that_a_tensor_axis_of_any_length_is_read(path: Path, kind: str, column: str, tensors: int) -> None:
    change(path, f"tensors/{kind}/{column}", lambda item: np.resize(item[...], (5, tensors, *item.shape[2:])))
    with precgui.open_run(path) as run:
        record = run.tensors()[kind]
        assert record.stats().shape[1] == record.exponents().shape[1] == record.strides().shape[1] == 3
        read_everything(run)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.nan, -np.inf, 1e308, -1e308, 5e-324])
@pytest.mark.parametrize("name", ["steps/loss", "steps/scale", "steps/step_s", "steps/cpu_s", "evaluation/loss"])
def test_that_numbers_that_no_run_has_are_judged_without_a_warning(path: Path, name: str, value: float) -> None:
    change(path, name, lambda item: np.full(item.shape, value))
    with precgui.open_run(path) as run:
        read_everything(run)
