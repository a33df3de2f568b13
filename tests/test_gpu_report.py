"""The report of `make gpu`: what becomes of parts that work, fail, hang or print what nobody expects."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import gpu_report
from benchmarks.gpu_report import Part, Report


def part(program: str, write=gpu_report.verbatim, limit_s: float = 60.0) -> Part:
    return Part("one", "One", ((sys.executable, "-c", program),), write, limit_s)


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return Report(tmp_path, 600.0)


def test_that_a_part_that_fails_says_its_last_words_and_leaves_the_next_alone(report: Report) -> None:
    failed = report.run(part("import sys; sys.exit('no FP8 here')"))
    assert failed.problem == "Ended with exit code 1: no FP8 here"
    assert report.run(part("print('fine')")).lines == ["```", "fine", "```"]


def test_that_a_part_that_hangs_is_ended_and_its_output_kept(tmp_path: Path) -> None:
    hanging = part("import time; print('begun', flush=True); time.sleep(600)", limit_s=6.0)
    outcome = Report(tmp_path, 600.0).run(hanging)
    assert outcome.problem == "Ended after 6 s, before it was ready."
    assert "begun" in (tmp_path / "log.txt").read_text(encoding="utf-8")


def test_that_no_part_begins_when_the_time_is_over(tmp_path: Path) -> None:
    assert Report(tmp_path, 1.0).run(part("print(1)")).problem == "Left out: the time for the report is over."


def test_that_output_that_is_not_the_expected_document_is_one_sentence(report: Report) -> None:
    assert report.run(part("print('{')", gpu_report.rates)).problem.startswith("Its output could not be read: JSON")
    assert report.run(part("print('{}')", gpu_report.rates)).problem.startswith(
        "Its output could not be read: KeyError"
    )


def test_that_a_figure_that_is_missing_is_not_a_number() -> None:
    row = {
        "format": "fp64",
        "m": 256,
        "tops": None,
        "spread": None,
        "share": None,
        "clock_mhz": None,
        "note": "no time",
    }
    lines = gpu_report.rates([json.dumps({"gemm": [row], "bandwidth_gbs": None})])
    assert lines[2] == "| fp64 | 256 | not measured |  | peak not known |  | no time |"
    assert lines[-1] == "Bandwidth of a copy: not measured."


def test_that_the_tests_that_failed_are_named() -> None:
    lines = gpu_report.tests(["..F\nFAILED tests/gpu/test_a.py::test_b - no\n== 1 failed, 2 passed in 3.00s =="])
    assert lines == ["1 failed, 2 passed in 3.00s", "- `FAILED tests/gpu/test_a.py::test_b - no`"]


def test_that_without_a_gpu_one_sentence_says_so(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_report.py", "--out", str(tmp_path / "out")])
    assert gpu_report.main() == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_that_the_report_of_a_part_is_written_as_soon_as_it_is_ready(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(gpu_report, "parts_for", lambda device: [part("print(1)"), part("raise SystemExit('no')")])
    monkeypatch.setattr(sys, "argv", ["gpu_report.py", "--out", str(tmp_path / "out"), "--device", "cpu"])
    assert gpu_report.main() == 1
    text = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "Not measured. Ended with exit code 1: no" in text
    document = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    assert [each["problem"] for each in document["parts"]] == ["", "Ended with exit code 1: no"]
    assert "One: done" in capsys.readouterr().out


def test_that_a_row_that_torch_refused_stands_in_the_table_with_its_reason() -> None:
    row = {"format": "e4m3fn", "m": 4096, "tops": None, "note": "torch refuses: no FP8 on this device"}
    lines = gpu_report.rates([json.dumps({"gemm": [row], "bandwidth_gbs": None})])
    assert lines[2] == "| e4m3fn | 4096 | not measured |  | peak not known |  | torch refuses: no FP8 on this device |"


def test_that_a_part_that_crashes_after_a_line_is_not_measured_and_keeps_the_line(report: Report) -> None:
    crashed = report.run(part("import sys; print('| heading |', flush=True); sys.exit('a kernel failed')"))
    assert crashed.problem == "Ended with exit code 1: a kernel failed"
    assert crashed.lines == ["```", "| heading |", "```"]


def test_that_tests_that_fail_or_are_ended_leave_the_results_of_the_others(tmp_path: Path) -> None:
    (tmp_path / "test_two.py").write_text(
        "import time\n\ndef test_first(): pass\n\ndef test_second(): assert False\n\n"
        "def test_third(): time.sleep(900)\n"
    )
    command = (sys.executable, "-m", "pytest", "-v", "-rfEs", "-p", "no:cacheprovider", str(tmp_path / "test_two.py"))
    whole = Report(tmp_path, 600.0).run(
        Part("t", "T", ((*command, "-k", "not third"),), gpu_report.tests, 60.0, codes=(0, 1))
    )
    assert not whole.problem
    assert "1 failed, 1 passed" in whole.lines[0]
    assert any("test_second" in line for line in whole.lines[1:])
    ended = Report(tmp_path, 600.0).run(Part("t", "T", (command,), gpu_report.tests, 45.0, codes=(0, 1)))
    assert ended.problem == "Ended after 45 s, before it was ready."
    assert any("test_first PASSED" in line for line in ended.lines)


def test_that_each_file_of_tests_on_the_gpu_is_a_part_of_its_own() -> None:
    parts = [
        part.name.removeprefix("tests-") for part in gpu_report.parts_for("cuda") if part.name.startswith("tests-")
    ]
    files = (gpu_report.ROOT / "tests" / "gpu").glob("test_*.py")
    assert sorted(parts) == sorted(file.stem.removeprefix("test_") for file in files)
