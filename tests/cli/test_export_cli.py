"""`precgui export` to CSV, JSON and TensorBoard, and `precgui compare` with somebody else's events."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import precgui
from precgui.cli.main import main
from precgui.events import EXPONENT_BINS, TENSOR_STATS, RunEnded
from tests.runs.synthetic import open_writer, synthetic_events
from tests.runs.tensors.test_record import NAMES, stats_event


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.h5"
    tensors = [stats_event(step, NAMES[: 2 if step == 1 else 3]) for step in (1, 2)]
    with open_writer(path) as emit:
        for event in [*synthetic_events()[:-1], *tensors, RunEnded(4.0, "completed")]:
            emit(event)
    return path


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_that_csv_holds_the_statistics_and_histograms_of_tensors(file: Path, tmp_path: Path) -> None:
    assert main(["export", str(file), "--csv", str(tmp_path / "raw")]) == 0
    stats, bins = (table(tmp_path / "raw" / f"gradient{end}.csv") for end in ("", "-exponents"))
    assert [(row["step"], row["tensor"]) for row in stats] == [("1", n) for n in NAMES[:2]] + [("2", n) for n in NAMES]
    with precgui.open_run(file) as run:
        record = run.tensors()["gradient"]
        written = np.array([[np.float32(row[name]) for name in TENSOR_STATS] for row in stats])
        np.testing.assert_array_equal(written[2:], record.stats(1, 2)[0])
        counted = np.zeros((2, 3, EXPONENT_BINS), np.uint32)
        for row in bins:
            counted[int(row["step"]) - 1, NAMES.index(row["tensor"]), int(row["bin"])] = int(row["elements"])
        np.testing.assert_array_equal(counted, record.exponents())


def test_that_json_is_one_document(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(file), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["summary"]["steps"] == 300
    assert document["config"]["precision"] == "fp16-amp"
    assert document["status"] == "completed"


def test_that_a_run_goes_to_tensorboard_and_is_compared_with(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(file), "--tensorboard", str(tmp_path / "logs")]) == 0
    events = capsys.readouterr().out.strip()
    assert Path(events).parent == tmp_path / "logs"
    assert main(["compare", str(file), events, "--json"]) == 0
    ours, theirs = json.loads(capsys.readouterr().out)["runs"]
    assert theirs["run"] == "digits cnn fp16-amp"
    assert theirs["precision"] == ours["precision"] == "fp16-amp"
    for name in ("steps", "val_accuracy", "train_loss", "skipped_steps", "nonfinite_events", "speedup"):
        assert theirs[name] == pytest.approx(ours[name], rel=1e-6), name
    assert main(["export", str(file), "--tensorboard", str(tmp_path / "logs")]) == 2
    assert "already exists; choose another folder" in capsys.readouterr().err


def test_that_a_scalar_is_named_on_the_command_line(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["export", str(file), "--tensorboard", str(tmp_path / "logs")])
    capsys.readouterr()
    assert main(["compare", str(file), str(tmp_path / "logs"), "--tag", "loss=train/grad_norm"]) == 0
    assert "loss is train/grad_norm" in capsys.readouterr().err
    for wrong, words in (("loss", "--tag loss is not SIGNAL=NAME"), ("loss=none", "no scalar is called none")):
        assert main(["compare", str(file), str(tmp_path / "logs"), "--tag", wrong]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert words in err
