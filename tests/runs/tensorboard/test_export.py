"""Runs out to TensorBoard, read back by TensorBoard's own reader."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import precgui
from precgui.events import RunEnded, StepDone
from precgui.runs.errors import RunFileError
from precgui.runs.tensorboard.export import export_events
from tests.runs.synthetic import open_writer, synthetic_events
from tests.runs.tensors.test_record import NAMES, stats_event


def exported(path: Path, folder: Path) -> EventAccumulator:
    with precgui.open_run(path) as run:
        export_events(run, folder)
    everything = dict.fromkeys(("scalars", "tensors", "histograms"), 0)
    read = EventAccumulator(str(folder), size_guidance=everything)
    read.Reload()
    return read


def test_that_tensorboard_reads_every_step_with_nan_and_inf(write: Callable[..., Path], tmp_path: Path) -> None:
    path = write()
    read = exported(path, tmp_path / "logs")
    with precgui.open_run(path) as run:
        for name in ("loss", "grad_norm", "lr", "scale", "memory_bytes"):
            told = read.Scalars(f"train/{name}")
            steps, values = run.series(name)
            assert [event.step for event in told] == steps.tolist()
            np.testing.assert_array_equal([event.value for event in told], values.astype(np.float32))
        begin = told[0].wall_time - run.series("loss", "time_s")[0][0]
        assert begin == pytest.approx(1767323045)  # as the run says that it was created
    assert sum(math.isnan(event.value) for event in read.Scalars("train/loss")) == 5
    assert sum(math.isinf(event.value) for event in read.Scalars("train/grad_norm")) == 5
    assert read.Scalars("val/accuracy")[-1].value == pytest.approx(1 - 1 / 300)
    assert {"power_w/cuda:0", "energy_j/package-0"} <= set(read.Tags()["scalars"])
    assert "energy_j/cuda:0" not in read.Tags()["scalars"]  # never measured
    incidents = read.Tensors("precgui/events")
    assert [event.step for event in incidents] == [50, 100, 150, 200, 250]
    assert b"fc.weight" in incidents[0].tensor_proto.string_val[0]


def test_that_values_beyond_fp32_are_kept_as_fp64(tmp_path: Path) -> None:
    norms = [1.0, 1e300, math.inf, math.nan]
    with open_writer(tmp_path / "run.h5") as emit:
        for step, norm in enumerate(norms, 1):
            emit(StepDone(step, float(step), 1.0, 1.0, False, 0.1, norm, 0.1, 0.0, 8, math.nan))
        emit(RunEnded(9.0, "completed"))
    read = exported(tmp_path / "run.h5", tmp_path / "logs")
    told = [event.tensor_proto.double_val[0] for event in read.Tensors("train/grad_norm")]
    np.testing.assert_array_equal(told, norms)


def test_that_histograms_hold_every_element_that_has_an_exponent(tmp_path: Path) -> None:
    events = [stats_event(step, NAMES) for step in (1, 3)]
    with open_writer(tmp_path / "run.h5") as emit:
        for event in [*synthetic_events(5)[:-1], *events, RunEnded(1.0, "completed")]:
            emit(event)
    read = exported(tmp_path / "run.h5", tmp_path / "logs")
    counts = np.frombuffer(events[1].exponents, np.uint32).reshape(3, -1)
    for place, name in enumerate(NAMES):
        first, last = read.Histograms(f"gradient_exponents/{name}")
        assert (first.step, last.step) == (1, 3)
        assert last.histogram_value.bucket == counts[place, 1:-1].tolist()
        assert (last.histogram_value.min, last.histogram_value.max) == (-126, 128)
        assert last.histogram_value.num == counts[place, 1:-1].sum(dtype=np.int64)
    assert math.isinf(read.Scalars("gradient/conv.weight/amax")[0].value)


def test_that_a_folder_that_has_the_file_already_is_refused(write: Callable[..., Path], tmp_path: Path) -> None:
    path = write()
    with precgui.open_run(path) as run:
        (written,) = export_events(run, tmp_path / "logs")
        before = written.read_bytes()
        with pytest.raises(RunFileError, match="already exists; choose another folder"):
            export_events(run, tmp_path / "logs")
        assert written.read_bytes() == before
        with pytest.raises(RunFileError, match=r"run\.h5 cannot be written|already exists"):
            export_events(run, path)


def test_that_a_missing_library_is_named_with_its_cure(
    write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    with precgui.open_run(write()) as run, pytest.raises(RunFileError, match=r"pip install \"precgui\[tensorboard\]\""):
        export_events(run, tmp_path / "logs")
    assert not (tmp_path / "logs").exists()
