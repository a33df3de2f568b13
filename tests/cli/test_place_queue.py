"""A sweep in the queue of a place: submitted there, asked about, brought home; never trained here beside it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from precgui.cli.main import main
from precgui.cli.parser import UserError
from precgui.cli.place_queue import QueuedSweep, _ended, queued_at
from precgui.places.settings import add_place, command_place
from precgui.sweeps.errors import SweepError
from precgui.sweeps.folder import QUEUED, SweepFolder
from precgui.sweeps.runner import run_sweep
from tests.places.test_for_real import here
from tests.sweeps.sample_sweep import small_sweep

JOB = "0123456789abcdef" * 2


def queue(folder: Path, **changes: object) -> None:
    kept = {"place": "login", "job": JOB, "name": "study", **changes}
    (folder / QUEUED).write_text(json.dumps(kept), encoding="utf-8")


def test_that_a_sweep_in_a_queue_is_not_trained_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = small_sweep(tmp_path)
    queue(folder.path)
    with pytest.raises(SweepError, match="are in the queue of a place"):
        run_sweep(folder, lambda event: None)
    assert main(["sweep", str(folder.path), "--place", "other"]) == 2
    assert "name it with --place login" in capsys.readouterr().err
    assert not any(folder.path_of(member).exists() for member in folder.plan.members)


@pytest.mark.parametrize("changes", [{"job": "../x"}, {"name": "../.."}, {"name": "a/b"}, {"name": ""}])
def test_that_a_file_of_a_queue_names_no_other_folder(tmp_path: Path, changes: dict[str, object]) -> None:
    queue(tmp_path)
    assert queued_at(tmp_path) == QueuedSweep("login", JOB, "study")
    queue(tmp_path, **changes)
    assert queued_at(tmp_path) is None


def test_that_only_names_of_runs_are_taken_from_a_place() -> None:
    names = ["s01-fp32", "../../x", "a/b", "/etc/x", "s02-fp32"]
    members = [{"name": name, "status": "completed"} for name in names]
    members[-1]["status"] = "running"
    assert _ended(json.dumps({"members": members})) == ["s01-fp32"]
    for document in ("", "[", "3", '{"members": [3]}'):
        with pytest.raises(UserError, match="printed no sweep"):
            _ended(document)


def test_that_a_queue_at_a_place_trains_and_its_runs_come_home(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    words = ("-m", "precgui", "serve", "--stdio")
    add_place(command_place("login", ["env", f"PRECGUI_STATE={tmp_path / 'there'}", sys.executable, *words]))
    home = tmp_path / "study"
    submitted = here("sweep", "digits-quick", "--set", "model.name=mlp", "--set", "train.max_steps=5", "--precisions",
                     "fp32", "--seeds", "1", "-o", home, "--place", "login", "--slurm")  # fmt: skip
    assert submitted.returncode == 0, submitted.stderr
    assert queued_at(home) is not None
    until_s = time.monotonic() + 300
    while time.monotonic() < until_s:
        assert here("sweep", home, "--place", "login").returncode == 0
        states = SweepFolder(home).states()
        if all(state.status == "completed" for state in states):
            return
        time.sleep(2)
    pytest.fail(f"not all runs have ended: {states}")
