"""`precision = auto`: formats of layers are verified before the run trains in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from precgui.cli import assign, sweep_progress
from precgui.cli.main import main
from precgui.config import is_precision_auto
from precgui.runs.file.reader import open_run
from precgui.runs.verdict.judge import Verdict

SMALL = ["--set", "model.name=mlp", "--set", "train.max_steps=10", "--set", "device=cpu"]


def judged(monkeypatch: pytest.MonkeyPatch, word: Any) -> None:
    verdict = Verdict("accuracy_lost", word, n=5, why="" if word == "met" else "too few seeds")
    monkeypatch.setattr(assign, "_verify", lambda *_: (Path("runs"), verdict))


def test_that_a_run_trains_in_verified_formats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    judged(monkeypatch, "met")
    source, path = tmp_path / "auto.toml", tmp_path / "run.h5"
    source.write_text('precision = "auto"\n[model]\nname = "mlp"\n[train]\nmax_steps = 10\n')
    words = ["run", str(source), "--set", "device=cpu", "-o", str(path), "--json"]
    assert main([*words, "--formats", "bf16,e4m3fn", "--budget", "bits=12"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "completed"
    with open_run(path) as saved:
        options = saved.config.precision_options
    assert saved.config.precision == "emulated:fp32" and set(options.layers.values()) <= {"bf16", "e4m3fn"}


def test_that_nothing_is_trained_where_no_formats_can_be_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    judged(monkeypatch, "undecided")
    path = tmp_path / "run.h5"
    assert main(["run", "digits-quick", "--set", "precision=auto", *SMALL, "-o", str(path)]) == 1
    assert "found no formats that it could verify, so nothing is trained" in capsys.readouterr().err
    assert not path.exists()


def test_that_a_search_that_is_stopped_while_it_verifies_trains_nothing_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PRECGUI_RUNS", str(tmp_path))
    monkeypatch.setattr(sweep_progress, "run_or_watch", lambda folder, progress: True)
    path = tmp_path / "run.h5"
    assert main(["run", "digits-quick", "--set", "precision=auto", *SMALL, "-o", str(path)]) == 2
    assert "stopped before the formats were verified, so they are not used; precgui sweep" in capsys.readouterr().err
    assert not path.exists()


def test_that_a_budget_that_is_too_small_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "digits-quick", "--set", "precision=auto", *SMALL, "--formats", "bf16", "--budget", "bits=3"]
    assert main(words) == 2
    assert "3 bits a weight are too few" in capsys.readouterr().err


def test_that_auto_is_seen_in_settings_and_files_only_as_the_precision(tmp_path: Path) -> None:
    assert is_precision_auto("digits-quick", ["precision=auto"])
    assert not is_precision_auto("digits-quick", ["device=auto"])
