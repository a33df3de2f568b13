"""Zero weights as a series: live, in the file, in CSV, and in files that do not have it."""

from __future__ import annotations

import math
from pathlib import Path

import h5py
import numpy as np
import pytest

import precgui
from precgui.events import ZerosCounted
from precgui.runs.csv_export import export_csv
from tests.runs.synthetic import live_run, open_writer

COUNTS = [ZerosCounted(10, 0.1, 0.25, 0.01), ZerosCounted(20, 0.2, 0.5, math.nan)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with open_writer(tmp_path / "run.h5") as writer:
        for count in COUNTS:
            writer(count)
    return tmp_path / "run.h5"


def test_that_zeros_are_kept_by_mask_and_by_rounding(path: Path) -> None:
    live = live_run(COUNTS)
    with precgui.open_run(path) as saved:
        for run in (saved, live):
            np.testing.assert_array_equal(run.series("zeros_by_mask"), ([10, 20], [0.25, 0.5]))
            np.testing.assert_array_equal(run.series("zeros_by_rounding")[1], [0.01, math.nan])
            np.testing.assert_array_equal(run.series("zeros_by_mask", "time_s")[0], [0.1, 0.2])


def test_that_a_file_of_an_older_version_has_none(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        names = [name for name in file["rows_valid"].attrs["tables"] if name != b"zeros"]
        counts = dict(zip(file["rows_valid"].attrs["tables"], file["rows_valid"][:], strict=True))
        del file["rows_valid"], file["zeros"]
        file["rows_valid"] = [counts[name] for name in names]
        file["rows_valid"].attrs["tables"] = names
    with precgui.open_run(path) as run:
        assert run.notes == []
        assert len(run.series("zeros_by_mask")[1]) == 0


def test_that_they_are_written_as_csv(path: Path, tmp_path: Path) -> None:
    with precgui.open_run(path) as run:
        files = export_csv(run, tmp_path / "csv")
    assert "zeros.csv" in [file.name for file in files]
    lines = (tmp_path / "csv" / "zeros.csv").read_text().splitlines()
    assert lines[:2] == ["step,time_s,by_mask,by_rounding", "10,0.1,0.25,0.01"]
