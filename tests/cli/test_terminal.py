"""What files say never reaches the terminal as a command, nor Rich as markup, nor a spreadsheet as a formula."""

from __future__ import annotations

import ast
import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from precgui.cli.console import HarmlessConsole
from precgui.cli.main import main
from precgui.config import build
from precgui.events import Evaluated, RunEnded, RunStarted, StepDone
from precgui.runs.csv_cells import cell, write_table
from precgui.runs.file.writer import RunWriter
from precgui.sanitize import sanitize

ROOT = Path(__file__).parents[2]
CLI = ROOT / "precgui" / "cli"
ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"
FORMULA = "=cmd|' /C calc'!A0"


def write(path: Path, title: str, metric: str = "Accuracy") -> Path:
    told = {"name": "m", "title": metric, "about": metric, "unit": "", "higher_is_better": True}
    config = build({"title": title, "precision": "fp32"})
    with RunWriter(path, config, run_id=path.stem, created="", machine={}, environment={}) as writer:
        writer(RunStarted(0.0, 2, 2, "cpu", {"metric": told}))
        for step in (1, 2):
            writer(StepDone(step, 0.1 * step, 1.0, 1.0, False, 0.05, 1.0, 0.09, 0.01, 64, float("nan")))
        writer(Evaluated(2, 1, 0.2, 0.3, 0.75))
        writer(RunEnded(0.5, "completed"))
    return path


def test_that_control_characters_are_shown_as_their_codes() -> None:
    assert sanitize(ESCAPES) == "\\x1b]0;owned\\x07\\x1b[2J\\x9b31m\\u202e"
    assert sanitize("two\n\tlines äöü €") == "two\n\tlines äöü €"
    assert sanitize("a\udcff").encode() == b"a\\udcff"


def test_that_a_console_keeps_its_own_codes_and_shows_those_of_texts() -> None:
    out = io.StringIO()
    HarmlessConsole(file=out, force_terminal=True, width=200).print(f"[bold]x{ESCAPES}", highlight=False)
    assert out.getvalue() == f"\x1b[1mx{sanitize(ESCAPES.replace(chr(7), ''))}\x1b[0m\n"  # Rich drops the bell


@pytest.mark.parametrize("metric", [ESCAPES, "[/x]", "[bold]m[/]"])
def test_that_a_comparison_shows_titles_and_metrics_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], metric: str
) -> None:
    paths = [str(write(tmp_path / f"{name}.h5", f"{name} {ESCAPES}", metric)) for name in ("a", "b")]
    assert main(["compare", *paths]) == 0
    shown = capsys.readouterr()
    assert not set(shown.out + shown.err) & set("\x1b\x07\x9b\u202e")
    assert "[/x]" in shown.out or metric != "[/x]"


def test_that_an_error_shows_the_escapes_of_a_file_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", f"/nowhere/{ESCAPES}.h5"]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_that_every_print_of_the_command_line_is_harmless() -> None:
    wrong = [
        f"{file.name}:{call.lineno} {ast.unparse(call.func)}"
        for file in CLI.glob("*.py")
        if file.name not in ("terminal.py", "console.py")
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        and ast.unparse(call.func) in ("print", "Console")
        and not ast.unparse(call.args[0] if call.args else call).startswith(("json.dumps(", "dump(", "json_text.dump("))
    ]
    assert not wrong, f"use say() of cli/terminal.py and HarmlessConsole of cli/console.py: {wrong}"


# Spreadsheets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "written"),
    [(FORMULA, f"'{FORMULA}"), ("+1+1", "'+1+1"), ("@x", "'@x"), ("-1.5", "-1.5"), ("-inf", "-inf"), ("+3", "+3"),
     (-2.0, -2.0), ("plain", "plain"), ("\tx", "'\tx"), ("-", "'-"), ("", "")],
)  # fmt: skip
def test_that_texts_that_a_spreadsheet_would_compute_are_marked(value: object, written: object) -> None:
    assert cell(value) == written


def test_that_a_table_reads_back() -> None:
    out = io.StringIO()
    write_table(out, ["a", "=b"], [[1, FORMULA], [-2.5, "x"]])
    assert list(csv.reader(out.getvalue().splitlines())) == [["a", "'=b"], ["1", f"'{FORMULA}"], ["-2.5", "x"]]


def test_that_a_comparison_writes_no_formula(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", FORMULA)
    assert main(["compare", str(path), "--csv", str(tmp_path / "out.csv")]) == 0
    rows = list(csv.reader((tmp_path / "out.csv").read_text(encoding="utf-8").splitlines()))
    assert not [text for row in rows for text in row if text.startswith("=")]


# Streams that take nothing -----------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a full device is of Linux")
@pytest.mark.parametrize("command", ["formats", "formats --json"])
def test_that_a_full_output_is_one_sentence(command: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "precgui.cli.main", *command.split()],
            stdout=full, stderr=subprocess.PIPE, text=True, env=environment, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("precgui: the output cannot be written: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(os.name != "posix", reason="needs a shell of Unix")
def test_that_a_closed_output_is_no_fault() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = f"{sys.executable} -m precgui.cli.main formats >&-"
    done = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "command",
    [
        ("compare",), ("compare", "--json"), ("compare", "--markdown", "NEW"), ("export", "--csv", "NEW"),
        ("diagnose",),
    ],
)  # fmt: skip
def test_that_a_column_that_cannot_be_read_is_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    import h5py

    path = write(tmp_path / "a.h5", "a")
    with h5py.File(path, "r+") as file:
        del file["steps/grad_norm"], file["steps/loss"], file["steps/scale"]
    name, *options = (word.replace("NEW", str(tmp_path / "new")) for word in command)
    main([name, str(path), *options])
    assert capsys.readouterr().err.count("/steps/loss is missing") == 1


def test_that_json_of_a_comparison_is_json_whatever_the_times_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import h5py

    path = write(tmp_path / "a.h5", "a")
    with h5py.File(path, "r+") as file:
        file["steps/time_s"][1] = float("inf")
        file["summary"][()] = b"{}"
    assert main(["compare", str(path), "--json"]) == 0
    json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
