"""The file of a dead process gets its end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

import precgui
from precgui.events import RunEnded
from precgui.runs.errors import RunFileError
from precgui.runs.file.repair import repair
from precgui.runs.signals import SIGNALS
from precgui.runs.summary import summarise
from tests.runs.synthetic import live_run, open_writer, synthetic_events


def finish_in_a_process(path: Path, *options: str, details: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "precgui.runs.file.repair", str(path), *options]
    return subprocess.run(command, input=details, capture_output=True, text=True, check=False)


def test_that_a_dead_run_is_closed_with_its_last_words(dead: Path) -> None:
    done = finish_in_a_process(dead, "--status", "failed", "--message", "killed by signal 9", details="last words\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    live = live_run(synthetic_events()[:-1])
    with precgui.open_run(dead) as run:
        assert (run.status, run.message, run.details, run.notes) == ("failed", "killed by signal 9", "last words\n", [])
        for name in SIGNALS:
            np.testing.assert_array_equal(np.array(run.series(name)), np.array(live.series(name)))
        assert run.events()[:-1] == live.events()
        assert (run.events()[-1].kind, run.events()[-1].step) == ("failure", 300)
        assert run.summary == summarise(live) | {"status": "failed"}
        assert run.environment["parameters"] == 12345
        assert (run.run_id, run.config) == ("7f", live.config)
    assert [path.name for path in dead.parent.iterdir()] == ["dead.h5"]
    with h5py.File(dead, "r") as file:  # closed well: plain HDF5 opens it
        assert file["status"][()] == b"failed"


def test_that_a_stopped_run_gets_no_failure(dead: Path) -> None:
    repair(dead, "stopped", "stopped by the user")
    with precgui.open_run(dead) as run:
        assert run.status == "stopped"
        assert run.events("failure") == []


def test_that_a_finished_run_is_left_alone(write: Callable[..., Path]) -> None:
    path = write()
    before = path.read_bytes()
    repair(path, "failed", "too late")
    assert path.read_bytes() == before


def test_that_a_run_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    with open_writer(tmp_path / "run.h5") as emit:
        with pytest.raises(RunFileError, match="still being written"):
            repair(tmp_path / "run.h5", "failed", "")
        emit(RunEnded(0.0, "completed"))
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert run.status == "completed"


def test_that_a_reader_sees_the_end_that_a_dead_run_was_given(dead: Path) -> None:
    with precgui.open_run(dead) as run:
        assert run.status == "failed"
        repair(dead, "failed", "killed")
        run.refresh()
        assert len(run.series("loss")[1]) == 300


def test_that_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "run.h5").write_text("no run")
    done = finish_in_a_process(tmp_path / "run.h5", "--message", "killed")
    assert done.returncode == 2
    assert done.stderr == f"{tmp_path / 'run.h5'} is not an HDF5 file; choose a run file (.h5).\n"
    assert (tmp_path / "run.h5").read_text() == "no run"


def test_that_a_cut_file_is_finished_with_what_is_left(dead: Path) -> None:
    content = dead.read_bytes()
    dead.write_bytes(content[: len(content) - 20_000])
    repair(dead, "failed", "killed")
    with precgui.open_run(dead) as run:
        assert (run.status, run.notes) == ("failed", [])
