"""`precgui diagnose`: exit code, JSON document and text."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import precgui
from precgui.cli.main import main
from precgui.config import RunConfig
from precgui.events import Event, RunEnded, RunStarted, StepDone
from precgui.runs.errors import RunFileError
from tests.formats.checkpoint_files import safetensors
from tests.runs.synthetic import open_writer

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(name: str, losses: list[float], config: RunConfig | None = None, norm: float = 1.0) -> Path:
        path = tmp_path / name
        events: list[Event] = [RunStarted(0.0, len(losses), len(losses), "cpu")]
        events += [
            StepDone(step, 0.1 * step, loss, 1.0, False, 0.1, norm**step, 0.1, 0.0, 8, math.nan)
            for step, loss in enumerate(losses, 1)
        ]
        with open_writer(path, config) as writer:
            for event in [*events, RunEnded(9.0, "completed", "")]:
                writer(event)
        return path

    return write


GOOD, BAD = [2.0 * 0.95**i for i in range(30)], [1.0] * 5 + [math.nan] * 5


def test_that_the_exit_code_tells_healthy_from_broken(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = write("good.h5", GOOD), write("bad.h5", BAD)
    assert main(["diagnose", str(good)]) == 0
    assert "No fault found" in capsys.readouterr().out
    assert main(["diagnose", str(bad)]) == 1
    assert main(["diagnose", str(good), str(bad)]) == 1
    assert "step 6" in capsys.readouterr().out


def test_that_json_is_one_document(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = write("good.h5", GOOD), write("bad.h5", BAD)
    assert main(["diagnose", str(bad), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "problems"
    assert document["findings"][0]["step"] == 6
    assert all(each["why"].startswith("because ") for each in document["ruled_out"])
    assert main(["diagnose", str(good), str(bad), "--json"]) == 1
    both = json.loads(capsys.readouterr().out)["runs"]
    assert [each["verdict"] for each in both] == ["healthy", "problems"]


def test_that_what_is_ruled_out_is_listed_on_request(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(write("good.h5", GOOD)), "--ruled-out"]) == 0
    assert "ruled out: divergence, because" in capsys.readouterr().out


def test_that_a_loop_of_ones_own_is_not_told_of_settings_that_it_has_not(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    risen = [2.0 * 1.3**i for i in range(60)] + [math.nan] * 5
    for task, settings in (("digits", True), ("own-loop", False)):
        assert main(["diagnose", str(write(f"{task}.h5", risen, RunConfig(task=task), 1.2))]) == 1
        told = capsys.readouterr().out
        assert "Fix: " in told and ("--set " in told) is settings


@pytest.mark.parametrize("norm", [1.2, math.nan])
def test_that_a_proof_names_no_figure_that_was_not_recorded(
    write: Write, capsys: pytest.CaptureFixture[str], norm: float
) -> None:
    """A run without tensors had "the norm of the weights at nan times" of their first value."""
    main(["diagnose", str(write("risen.h5", [2.0 * 1.3**i for i in range(60)], RunConfig(), norm))])
    told = capsys.readouterr().out
    assert "The loss began at 2" in told and "weights were" in told and "nan" not in told


def test_that_what_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.h5").write_text("no run")
    assert main(["diagnose", str(tmp_path / "text.h5")]) == 2
    assert capsys.readouterr().err.startswith("precgui: ")
    assert main(["diagnose", str(tmp_path / "missing.h5")]) == 2


def test_that_a_folder_leads_to_the_run_files_in_it(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", str(tmp_path)]) == 2
    assert "neither run files (.h5) nor TensorBoard event files; name a run file" in capsys.readouterr().err
    path = write("good.h5", GOOD)
    assert main(["diagnose", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"precgui: {tmp_path} is a folder; name the run files in it, such as {path}.\n"


def test_that_python_diagnoses_a_path_and_says_what_it_takes(write: Write, tmp_path: Path) -> None:
    path = write("bad.h5", BAD)
    with precgui.open_run(path) as run:
        found = repr(precgui.diagnose(run))  # NaN differs from itself
    assert repr(precgui.diagnose(path)) == repr(precgui.diagnose(str(path))) == found != "[]"
    with pytest.raises(RunFileError, match="is not there"):
        precgui.diagnose(tmp_path / "none.h5")
    with pytest.raises(TypeError, match="or the path of a run file, but got: int"):
        precgui.diagnose(3)


def test_that_a_model_is_scanned_and_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = np.random.default_rng(0).standard_normal((32, 128)).astype(np.float32)
    bad = good.copy()
    bad[3, 5] = np.nan
    file = safetensors(tmp_path / "m.safetensors", {"a.weight": ("F32", good), "b.weight": ("F32", bad)})
    assert main(["diagnose", str(file)]) == 1
    assert "b.weight holds 1 NaN" in capsys.readouterr().out
    for words in (["diagnose", str(file), "--json"], ["model", str(file), "--scan", "--json"]):
        main(words)
        findings = json.loads(capsys.readouterr().out)["findings"]
        assert [each["rule"] for each in findings] == ["nonfinite-weights"] and findings[0]["tensors"] == ["b.weight"]
    main(["model", str(file), "--json"])
    assert json.loads(capsys.readouterr().out)["findings"] is None
    folder = tmp_path / "model"
    folder.mkdir()
    safetensors(folder / "model.safetensors", {"a.weight": ("F32", good)})
    assert main(["diagnose", str(folder)]) == 0
    (folder / "model.safetensors").write_bytes(b"no model")
    assert main(["diagnose", str(folder)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
