"""`precgui run` as a user and as a script see it."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from precgui import config
from precgui.cli import run_display
from precgui.cli.main import main
from precgui.events import RunEnded
from precgui.job import Job
from precgui.runs.errors import RunFileError
from precgui.runs.file.reader import open_run
from precgui.runs.step_times import step_time
from tests.warm_children import Python

SHORT = ["--set", "train.max_steps=10", "--set", "device=cpu", "--set", "threads=1"]


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["run", *arguments, *SHORT, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_that_json_has_the_promised_keys_and_nothing_else_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.h5"
    code, report = run_json(capsys, "digits-quick", "-o", str(path), "--set", "precision=bf16-amp")
    assert code == 0
    assert set(report) == {
        "run", "status", "precision", "steps", "final", "metric", "time_s", "before_first_step_s", "step_s_median",
        "samples_per_s",
        "memory_peak_bytes", "energy_j", "tensor_use", "skipped_steps", "nonfinite_events", "nonfinite_since_step",
        "nonfinite_validation",
    }  # fmt: skip
    assert (report["run"], report["status"], report["precision"], report["steps"]) == (
        str(path), "completed", "bf16-amp", 10,
    )  # fmt: skip
    assert set(report["final"]) == {"train_loss", "val_loss", "val_accuracy"}
    with open_run(path) as saved:
        assert step_time(saved.config, "bf16-amp") is not None  # for the estimate of the next run
    assert {key: report["metric"][key] for key in ("name", "unit", "higher_is_better")} == {
        "name": "accuracy", "unit": "%", "higher_is_better": True,
    }  # fmt: skip


def test_that_without_output_the_run_goes_to_the_runs_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, report = run_json(capsys)
    assert Path(report["run"]).parent == tmp_path / "runs"


def test_that_a_person_sees_the_end_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "-o", str(tmp_path / "a.h5"), *SHORT, "--set", "precision=fp16-amp"]) == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "training loss, last epoch" in " ".join(shown.err.split())
    assert "validation" in shown.err
    assert "FP16 is emulated" in " ".join(shown.err.split())


def test_that_time_before_the_first_step_is_told_where_it_is_much() -> None:
    assert run_display._time({"time_s": 53.0, "before_first_step_s": 41.25}).startswith(
        "53.0 s, 41.2 s of it before the first step"
    )
    for report in ({"time_s": 53.0, "before_first_step_s": 2.0}, {"time_s": 53.0, "before_first_step_s": None}):
        assert run_display._time(report) == "53.0 s"
    assert run_display._time({"time_s": None, "before_first_step_s": None}) == "- s"


def test_that_the_metric_is_called_as_its_task_calls_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--set", "task=regression", "--set", "train.max_steps=3", "--set", "record.tensors=false"]
    assert main(["run", "-o", str(tmp_path / "a.h5"), "--set", "device=cpu", *settings]) == 0
    shown = capsys.readouterr().err
    assert shown.count(", R² ") == 2, "after the epoch and in the table"
    assert "accuracy" not in shown


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["digits-quik"], "neither a file nor a recipe"),
        (["--set", "precision=fp99"], "precision: 'fp99' is not one of"),
        (["-o", "missing/folder/a.h5"], "missing/folder"),
        (["-o", "/proc/a.h5"], "/proc"),
    ],
)
def test_that_bad_input_is_one_line_and_exit_code_two(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert main(["run", *arguments, *SHORT]) == 2
    shown = capsys.readouterr()
    assert sentence in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_that_a_failed_run_exits_with_one_and_leaves_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.h5"
    text = ["task=text", "data.sequence_length=8", "data.batch_size=2", "train.attention=cudnn", "device=cpu"]
    settings = [word for setting in text for word in ("--set", setting)]
    assert main(["run", "-o", str(path), *SHORT, *settings, "--json"]) == 1
    shown = capsys.readouterr()
    assert json.loads(shown.out)["status"] == "failed"
    assert "train.attention = cudnn has no kernel" in shown.err
    with open_run(path) as saved:
        assert saved.status == "failed"


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("device=cuda:7", "cuda:7 is not there"),
        ("precision_options.keep_fp32=nowhere", "nowhere"),
        ("pruning.method=magnitude,pruning.end=9999", "the run has"),
    ],
)
def test_that_a_run_that_never_began_is_bad_input_and_leaves_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], setting: str, sentence: str
) -> None:
    path = tmp_path / "a.h5"
    settings = [word for each in setting.split(",") for word in ("--set", each)]
    assert main(["run", "-o", str(path), *SHORT, "--set", "precision=bf16-amp", *settings, "--json"]) == 2
    shown = capsys.readouterr()
    assert sentence in shown.err
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert not path.exists()


def test_that_a_refusal_is_printed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "-o", str(tmp_path / "a.h5"), *SHORT, "--set", "device=cuda:7"]) == 2
    assert capsys.readouterr().err.count("cuda:7 is not there") == 1


def test_that_an_interrupt_stops_cleanly_and_keeps_the_steps(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with Python("-m", "precgui.cli.main", "run", "digits-long", "-o", path, "--json") as command:
        _wait_for_steps(path)
        os.kill(command.pid, signal.SIGINT)
        ended = command.wait()
    report = json.loads(ended.stdout)
    assert ended.returncode == 0
    assert (report["status"], report["steps"] > 0) == ("stopped", True)
    assert "stopped after step" in ended.stderr


def test_that_a_file_that_was_removed_is_one_sentence_and_exit_code_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.h5"

    class Removing(Job):
        def run(self) -> RunEnded:
            path.unlink()
            return super().run()

    monkeypatch.setattr("precgui.job.Job", Removing)
    assert main(["run", "-o", str(path), *SHORT, "--json"]) == 1
    shown = capsys.readouterr()
    report = json.loads(shown.out)
    assert (report["status"], report["steps"], report["final"]["train_loss"]) == ("failed", 0, None)
    assert "was removed" in shown.err
    assert "Traceback" not in shown.err


def test_that_a_record_that_is_lost_at_the_very_end_is_no_completed_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.h5"

    class RemovedAtTheEnd(Job):
        def run(self) -> RunEnded:
            ended = super().run()
            assert ended.status == "completed"
            path.unlink()
            return ended

    monkeypatch.setattr("precgui.job.Job", RemovedAtTheEnd)
    assert main(["run", "-o", str(path), *SHORT, "--json"]) == 1
    shown = capsys.readouterr()
    assert json.loads(shown.out)["status"] == "failed"
    assert "was removed" in shown.err


def _wait_for_steps(path: Path) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        with suppress(RunFileError), open_run(path) as saved:  # not there yet, or just being made
            if len(saved.series("loss")[0]):
                return
        time.sleep(0.1)
    raise AssertionError("no step was recorded in two minutes")


def test_that_every_key_is_listed_whole_at_eighty_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["run", "--keys"]) == 0
    told = capsys.readouterr().out
    assert all(path in told for path, _, _ in config.key_table())


def test_that_keys_are_one_json_document(capsys):
    assert main(["run", "--keys", "--json"]) == 0
    keys = json.loads(capsys.readouterr().out)["keys"]
    assert [key["key"] for key in keys] == [path for path, _, _ in config.key_table()]


def test_that_an_unknown_key_leads_to_the_one_that_was_meant(capsys):
    assert main(["run", "digits-quick", "--set", "epochs=1"]) == 2
    assert "did you mean train.epochs?" in capsys.readouterr().err
