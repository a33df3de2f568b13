"""`precgui compare` and `precgui export` on files of synthetic runs."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest

from precgui.cli.main import main
from precgui.config import RunConfig
from tests.runs.synthetic import open_writer, synthetic_events


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    paths = []
    for precision, step_s in (("bf16-amp", 0.0045), ("fp32", 0.009)):
        paths.append(str(tmp_path / f"{precision}.h5"))
        with open_writer(Path(paths[-1]), RunConfig.model_validate({"precision": precision})) as emit:
            for event in synthetic_events(step_s=step_s):
                emit(event)
    return paths


def test_that_json_is_one_document_with_the_promised_keys(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *files, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["baseline"] == "fp32"
    bf16, fp32 = document["runs"]
    assert {"run", "precision", "speedup", "memory_ratio", "energy_ratio", "accuracy_delta"} <= set(bf16)
    assert bf16["speedup"] == pytest.approx(2)
    assert (fp32["run"], fp32["precision"], fp32["speedup"]) == ("fp32", "fp32", 1.0)


def test_that_a_person_sees_a_table(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *files, "--baseline", "bf16-amp"]) == 0
    shown = capsys.readouterr().out
    assert "0.50x" in shown
    assert "baseline" in shown
    assert "training loss, last epoch" in shown


def test_that_csv_holds_the_table(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *files, "--csv", str(tmp_path / "table.csv")]) == 0
    with (tmp_path / "table.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["run"] for row in rows] == ["bf16-amp", "fp32"]
    assert float(rows[0]["speedup"]) == pytest.approx(2)
    assert main(["compare", *files, "--csv", str(tmp_path / "table.csv")]) == 2
    assert "already exists; choose" in capsys.readouterr().err


def test_that_bad_input_is_one_line_and_exit_code_2(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.h5").write_text("no run")
    for arguments, words in (
        (["compare", files[0], str(tmp_path / "bad.h5")], "bad.h5 is not an HDF5 file"),
        (["compare", str(tmp_path / "none.h5"), "--json"], "none.h5 is not there"),
        (["compare", *files, "--baseline", "fp8"], "no run is called fp8"),
        (["export", str(tmp_path / "none.h5"), "--csv", str(tmp_path)], "none.h5 is not there"),
        (["export", files[0], "--csv", str(tmp_path / "bad.h5")], "bad.h5 already exists"),
    ):
        assert main(arguments) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert words in err
        assert err.count("\n") == 1


def test_that_one_call_writes_a_table_and_reports(files: list[str], tmp_path: Path) -> None:
    table, html, page = tmp_path / "a.csv", tmp_path / "a.html", tmp_path / "a.md"
    assert main(["compare", *files, "--csv", str(table), "--html", str(html), "--markdown", str(page)]) == 0
    assert table.read_text(encoding="utf-8").startswith("baseline,")
    assert html.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert page.read_text(encoding="utf-8").startswith("# ")


def test_that_export_keeps_raw_values(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "raw"
    assert main(["export", files[0], "--csv", str(folder)]) == 0
    assert [Path(line).name for line in capsys.readouterr().out.split()] == [
        "steps.csv", "evaluation.csv", "power.csv", "devices.csv", "host.csv", "events.csv", "run.json",
    ]  # fmt: skip
    steps = [event for event in synthetic_events(step_s=0.0045) if type(event).__name__ == "StepDone"]
    with (folder / "steps.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [repr(float(row["grad_norm"])) for row in rows] == [repr(step.grad_norm) for step in steps]
    assert sum(math.isnan(float(row["loss"])) for row in rows) == 5
    assert rows[0]["step"] == "1"
    about = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    assert (about["status"], about["config"]["precision"]) == ("completed", "bf16-amp")
    assert main(["export", files[0], "--csv", str(folder)]) == 2
    assert "already exists" in capsys.readouterr().err
