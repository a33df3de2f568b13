"""The report of `make gpu`: what becomes of parts that work, fail, hang or print what nobody expects."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest
import torch

from benchmarks import bench_rows, engine_overhead, gpu_report, precision_ratios
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


def test_that_no_part_begins_when_the_time_is_over(tmp_path: Path) -> None:
    assert Report(tmp_path, 1.0).run(part("print(1)")).problem == "Left out: the time for it is over."


def test_that_output_that_is_not_the_expected_document_is_one_sentence(report: Report) -> None:
    assert report.run(part("print('{')", gpu_report.rates)).problem.startswith("Its output could not be read: JSON")
    without = report.run(part("print('{}')", gpu_report.rates))
    assert without.problem.startswith("Its output could not be read: KeyError")


def gemm(**row: object) -> str:
    return json.dumps({"part": "gemm", "format": "fp64", "m": 256, "tops": None, "note": "no time", **row})


def test_that_a_figure_that_is_missing_is_not_a_number() -> None:
    lines = gpu_report.rates([gemm(spread=None, share=None, clock_mhz=None)])
    assert lines[2] == "| fp64 | 256 | not measured |  | peak not known |  | no time |"
    assert lines[-1] == "Bandwidth of a copy: not measured"


def test_that_the_bandwidth_is_that_of_the_copy_and_doubts_of_a_format_are_told() -> None:
    doubt = {"part": "certificate", "format": "bf16", "note": "asked for bf16, the error is that of fp32"}
    copy = {"part": "copy", "gb_s": 2345.6, "note": ""}
    lines = gpu_report.rates(["\n".join([json.dumps(doubt), gemm(), json.dumps(copy)])])
    assert lines[-2:] == ["Bandwidth of a copy: 2346 GB/s", "- bf16: asked for bf16, the error is that of fp32"]


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
    monkeypatch.setattr(
        gpu_report, "parts_for", lambda device, small: [part("print(1)"), part("raise SystemExit('no')")]
    )
    monkeypatch.setattr(sys, "argv", ["gpu_report.py", "--out", str(tmp_path / "out"), "--device", "cpu"])
    assert gpu_report.main() == 1
    text = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "Not measured in full. Ended with exit code 1: no" in text
    document = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    assert [each["problem"] for each in document["parts"]] == ["", "Ended with exit code 1: no"]
    assert "One: done" in capsys.readouterr().out


def test_that_a_row_that_torch_refused_stands_in_the_table_with_its_reason() -> None:
    lines = gpu_report.rates([gemm(format="e4m3fn", m=4096, note="torch refuses: no FP8 on this device")])
    assert lines[2] == "| e4m3fn | 4096 | not measured |  | peak not known |  | torch refuses: no FP8 on this device |"


def test_that_a_part_that_crashes_after_a_line_is_not_measured_and_keeps_the_line(report: Report) -> None:
    crashed = report.run(part("import sys; print('| heading |', flush=True); sys.exit('a kernel failed')"))
    assert crashed.problem == "Ended with exit code 1: a kernel failed"
    assert crashed.lines == ["```", "| heading |", "```"]


def hung(folder: Path, one: Part, has_printed: Callable[[Sequence[str]], bool]) -> gpu_report.Outcome:
    """The outcome of a part that prints and hangs, with a limit that lets it print, however busy the machine is."""
    for limit_s in (one.limit_s * factor for factor in (1, 5, 25)):
        outcome = Report(folder, 600.0).run(dataclasses.replace(one, limit_s=limit_s))
        assert outcome.problem == f"Ended after {limit_s:.0f} s, before it was ready."
        if has_printed(outcome.lines):
            return outcome
    pytest.fail(f"it printed {outcome.lines}")


def test_that_tests_that_fail_or_are_ended_leave_the_results_of_the_others(tmp_path: Path) -> None:
    (tmp_path / "test_two.py").write_text(
        "import time\n\ndef test_first(): pass\n\ndef test_second(): assert False\n\n"
        "def test_third(): time.sleep(900)\n"
    )
    command = (sys.executable, "-m", "pytest", "-v", "-rfEs", "-p", "no:cacheprovider", str(tmp_path / "test_two.py"))
    whole = Report(tmp_path, 600.0).run(
        Part("t", "T", ((*command, "-k", "not third"),), gpu_report.tests, 60.0, codes=(0, 1))
    )
    assert whole.problem.startswith("Tests failed: 1 failed, 1 passed")
    assert "1 failed, 1 passed" in whole.lines[0]
    assert any("test_second" in line for line in whole.lines[1:])
    one = Part("t", "T", (command,), gpu_report.tests, 8.0, codes=(0, 1))
    hung(tmp_path, one, lambda lines: any("test_first PASSED" in line for line in lines))


def test_that_each_file_of_tests_on_the_gpu_belongs_to_one_part() -> None:
    commands = [part.commands[0] for part in gpu_report.parts_for("cuda") if part.name.startswith("tests-")]
    files = (gpu_report.ROOT / "tests" / "gpu").glob("test_*.py")
    given = [word for words in commands for word in words if word.endswith(".py")]
    assert sorted(given) == sorted(f"tests/gpu/{file.name}" for file in files)


def test_that_tests_that_were_ended_are_counted_and_those_that_failed_named() -> None:
    lines = gpu_report.tests(["[gw0] [ 5%] PASSED a.py::one\nFAILED\na.py::two \nWHY a.py::two\nWHY E   assert 1 == 2"])
    assert lines == [
        "1 passed, 1 failed until it was ended",
        "- `FAILED`",
        "- `WHY a.py::two`",
        "- `WHY E   assert 1 == 2`",
    ]


ROWS = """
import json
row = {"model": "gpt medium", "precision": "fp8", "products": "native", "fp32_ms": 8.0, "step_ms": 4.0, "ratio": 2.0,
       "low": 1.9, "high": 2.1, "pairs": 30, "remark": ""}
print(json.dumps(row), flush=True)
print("a warning of a driver", flush=True)
print(json.dumps({"model": "gpt medium", "precision": "nvfp4", "pairs": 0, "remark": "refused: a | b"}), flush=True)
"""
TABLE = [
    "| gpt medium | fp8 | native | 8.00 | 4.00 | 2.000 (1.900 to 2.100) | 30 |  |",
    "| gpt medium | nvfp4 | | | | refused | 0 | refused: a / b |",
]
HANG = "import time; time.sleep(600)"


def test_that_rows_that_were_printed_before_a_part_hung_or_died_are_in_its_table(tmp_path: Path) -> None:
    ways = {"": "", "import os; os.kill(os.getpid(), 11)": "Ended with exit code -11 (SIGSEGV): no reason given"}

    def by_line(ending: str, limit_s: float) -> Part:
        command = (sys.executable, "-c", ROWS + ending)
        return Part("one", "One", (command,), gpu_report.speeds, limit_s, by_line=True)

    for ending, problem in ways.items():
        outcome = Report(tmp_path, 600.0).run(by_line(ending, 60.0))
        assert (outcome.problem, outcome.lines[2:]) == (problem, TABLE)
        assert "a warning of a driver" in (tmp_path / "log.txt").read_text(encoding="utf-8")
    hung(tmp_path, by_line(HANG, 5.0), lambda lines: lines[2:] == TABLE)
    assert "a warning of a driver" in (tmp_path / "log.txt").read_text(encoding="utf-8")


def test_that_garbage_is_kept_in_the_report_and_bytes_that_are_no_text_end_nothing(report: Report) -> None:
    names = ("speeds", "registers", "detection", "overhead", "energy", "rates", "fp8", "study")
    for write in (getattr(gpu_report, name) for name in names):
        garbage = report.run(part("import sys; sys.stdout.buffer.write(b'[1, 2]\\xff\\n{')", write))
        assert garbage.problem.startswith("Its output could not be read: ")
        assert garbage.lines == ["```", "[1, 2]\N{REPLACEMENT CHARACTER}", "{", "```"]


def test_that_children_of_a_part_that_hangs_are_ended_with_it(tmp_path: Path) -> None:
    begin = f"import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', {HANG!r}])"
    program = f"{begin}; print(child.pid, flush=True); {HANG}"
    outcome = hung(tmp_path, part(program, limit_s=4.0), lambda lines: len(lines) > 1 and lines[1].isdecimal())
    assert outcome.seconds < 300  # the child sleeps for 600 s
    child = int(outcome.lines[1])
    for _ in range(200):
        if not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE:
            return
        time.sleep(0.05)
    pytest.fail("the child goes on")


def test_that_the_commands_after_one_that_fails_are_in_the_report(report: Report) -> None:
    commands = tuple((sys.executable, "-c", text) for text in ("print(1)", "import sys; sys.exit(7)", "print(3)"))
    outcome = report.run(Part("one", "One", commands, gpu_report.verbatim, 60.0))
    assert outcome.problem == "Command 2 of 3: Ended with exit code 7: it printed nothing"
    assert outcome.lines == ["```", "1", "```", "```", "3", "```"]


def test_that_the_limits_of_all_parts_fit_and_what_one_leaves_is_given_to_the_next(monkeypatch, tmp_path: Path) -> None:
    limits = [part.limit_s for part in gpu_report.parts_for("cuda")]
    assert sum(limits) <= 8 * 60 - gpu_report.RESERVE_S
    given_s = []
    take = lambda self, part, command, end: given_s.append(end - time.monotonic()) or "1"  # noqa: E731
    monkeypatch.setattr(Report, "_output", take)
    for later_s in (598.0, 300.0):
        Report(tmp_path, 600.0).run(part("print(1)", limit_s=60.0), later_s=later_s)
    assert given_s == pytest.approx([60.0, 120.0], abs=5.0)


def test_that_parts_that_have_not_ended_are_named_in_the_report_of_those_that_have(tmp_path: Path) -> None:
    outcome = gpu_report.Outcome("one", "One", 1.0, "", ["1"])
    gpu_report.write(tmp_path, ["# GPU report"], [outcome], [part("")])
    assert "- not ended when this was written: One" in (tmp_path / "report.md").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["waiting"] == ["one"]


def test_that_packages_that_are_absent_are_named_at_once_and_torch_ends_the_report(monkeypatch) -> None:
    monkeypatch.setattr(gpu_report, "NEEDED", ("json", "no_such_package"))
    assert "lacks no_such_package: parts that need them" in gpu_report.missing_packages()
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "cannot import torch" in gpu_report.missing_device("cuda")


def test_that_a_study_without_its_first_run_has_the_others() -> None:
    run = dict.fromkeys(("steps", "skipped_steps", "memory_peak_bytes", "energy_j"))
    run |= {"precision": "fp8", "status": "completed", "step_s_median": 0.5}
    lines = gpu_report.study([json.dumps({**run, "final": {"val_loss": 1.0, "val_accuracy": None}})])
    assert lines[-1].startswith("| fp8 | completed |")


def test_that_steps_are_timed_in_pairs_and_a_refused_precision_says_why(monkeypatch, capsys) -> None:
    words = ["--model", "cnn", "--size", "small", "--seconds", "0", "--precisions", "fp8,no-such-precision"]
    monkeypatch.setattr(sys, "argv", ["precision_ratios.py", *words])
    assert precision_ratios.main() == 0
    timed, refused = map(json.loads, capsys.readouterr().out.splitlines())
    assert timed["pairs"] == precision_ratios.FEWEST_PAIRS
    assert 0 < timed["low"] <= timed["ratio"] <= timed["high"]
    assert timed["products"] == "emulated"
    assert refused["pairs"] == 0
    assert "no-such-precision" in refused["remark"]


def test_that_the_bench_prints_each_row_as_soon_as_it_is_measured(monkeypatch) -> None:
    rates = next(part for part in gpu_report.parts_for("cpu", small=True) if part.name == "rates")
    monkeypatch.setattr(sys, "argv", list(rates.commands[0][1:]))
    printed: list[str] = []

    def take(text: str, *, flush: bool = False) -> None:
        assert flush
        printed.append(text)
        if json.loads(text)["part"] == "gemm" and json.loads(text)["format"] == "bf16":
            raise RuntimeError("the device is lost")

    monkeypatch.setattr("builtins.print", take)
    with pytest.raises(RuntimeError, match="the device is lost"):
        bench_rows.main()
    measured = [line.split(" | ")[:2] for line in gpu_report.rates(printed)[2:5]]
    assert measured == [["| fp32", "128"], ["| fp32", "256"], ["| bf16", "128"]]


def test_that_the_engine_prints_each_measurement_as_soon_as_it_is_made(monkeypatch) -> None:
    words = ["--models", "cnn", "--size", "small", "--pairs", "6", "--seconds", "0", "--precisions", ""]
    monkeypatch.setattr(sys, "argv", ["engine_overhead.py", *words])
    printed = []
    monkeypatch.setattr("builtins.print", lambda text, flush: printed.append(text) if flush else None)
    measured = engine_overhead.overhead

    def fails_in_the_second(*arguments):
        if printed:
            raise RuntimeError("the device is lost")
        return measured(*arguments)

    monkeypatch.setattr(engine_overhead, "overhead", fails_in_the_second)
    with pytest.raises(RuntimeError, match="the device is lost"):
        engine_overhead.main()
    lines = gpu_report.overhead(printed)
    assert len(lines) == 3
    assert lines[-1].startswith("| cnn | fp32 | ")


def test_that_a_part_with_an_energy_that_is_not_known_says_why() -> None:
    row = {"part": "energy", "format": "bf16", "m": 4096, "gross_j": None, "note": "no power sensor"}
    assert gpu_report.energy([json.dumps(row)]) == ["- format bf16, m 4096, note no power sensor"]


def test_that_sizes_of_fp8_are_rows() -> None:
    row = {
        "size": 64, "step_ms": {"native": 1.0, "emulated": 3.0, "bf16-amp": 2.0}, "emulated_over_native": 3.0,
        "bf16_over_native": 2.0, "difference_output": 5e-4, "difference_weight_gradient": 1e-4,
        "beside_measured_sums": [4e-8, 5e-8],
    }  # fmt: skip
    in_fp32 = row | {"difference_output": 1e-7, "difference_weight_gradient": 2e-7, "beside_measured_sums": None}
    assert gpu_report.fp8([json.dumps(row), json.dumps(in_fp32)])[2:] == [
        "| 64 | 1.000 | 3.000 | 2.000 | 3.000 | 2.000 | 5.0e-04 | 1.0e-04 | 4.0e-08 | 5.0e-08 |",
        "| 64 | 1.000 | 3.000 | 2.000 | 3.000 | 2.000 | 1.0e-07 | 2.0e-07 |  |  |",
    ]


def test_that_every_part_but_the_tests_has_a_small_size() -> None:
    parts = {part.name: part for part in gpu_report.parts_for("cuda", small=True)}
    alone = {name for name in parts if not name.startswith("tests-")} - {"detection"}
    assert set(gpu_report.SMALL) == alone
    for name, words in gpu_report.SMALL.items():
        for command in parts[name].commands:
            assert " ".join(words) in " ".join(command)
