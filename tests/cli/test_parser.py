"""Whatever is typed wrong, in any command: one line that names it and the cure, exit code 2, no output."""

from __future__ import annotations

import importlib

import pytest

from precgui.cli.main import COMMANDS, main
from precgui.cli.parser import Parser


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("detect --task foo", "--task foo: choose from classification, detection, segmentation"),
        ("detect --size", "--size needs a value after it; see precgui detect --help"),
        ("bench --threads x", "--threads x: a whole number is needed; see precgui bench --help"),
        ("bench --ener", "--ener is not understood; perhaps --energy is meant"),
        ("bench --szies 32", "--szies 32 is not understood; perhaps --sizes is meant"),
        ("formats --foo", "--foo is not understood; see precgui formats --help"),
        ("encode", "VALUE is missing; see precgui encode --help"),
        ("encode 1 2 3", "2 3 is not understood; see precgui encode --help"),
        ("encode 1 --seed 1.5", "--seed 1.5: a whole number is needed"),
        ("arithmetic", "OPERATION, VALUE are missing; see precgui arithmetic --help"),
        ("decode 0x1 --format fp16 --json=3", "--json takes no value"),
        ("arithmetic sum 1 --order bogus", "--order bogus: choose from one by one, pairwise, kahan"),
        ("run --set", "--set needs a value after it; see precgui run --help"),
        ("run -o", "--output needs a value after it"),
        ("compare", "RUN.h5 is missing: name run files or the folder of a sweep; see precgui compare --help"),
        ("whatif a.h5 --json --csv c", "--csv and --json exclude each other: leave one out"),
        ("export a.h5", "one of --csv, --tensorboard, --html, --json, --script, --pt2, --weights is missing"),
        ("evaluate", "MODEL.pt is missing; see precgui evaluate --help"),
        ("detct", "detct is neither a file nor a command; perhaps detect is meant; see precgui --help"),
        ("nothing", "nothing is neither a file nor a command; the commands are detect, bench"),
        ("nothing.h5", "there is no file nothing.h5; give the path of a run file, or see precgui --help\n"),
        (
            "encode 1/0",
            "division by zero has no value in an expression, which is exact; write inf or nan if that is "
            "meant, or divide as a format does with precgui arithmetic divide\n",
        ),
        ("--foo", "--foo is not understood; see precgui --help"),
    ],
)
def test_that_bad_input_is_one_line_with_the_cure(capsys, arguments, sentence):
    assert main(arguments.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"precgui: {sentence}")
    assert captured.err.count("\n") == 1


def test_that_a_line_break_in_what_was_typed_does_not_break_the_line(capsys):
    assert main(["run", "no\nrecipe"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_that_every_command_is_read_by_the_parser_of_one_sentence(command):
    parser = Parser(prog="precgui")
    subparsers = parser.add_subparsers()
    importlib.import_module(COMMANDS[command]).add_parsers(subparsers)
    assert isinstance(subparsers.choices[command], Parser)


def test_that_help_and_version_still_end_well(capsys):
    for arguments in (["--help"], ["--version"], ["bench", "--help"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
    assert "usage: precgui bench" in capsys.readouterr().out


def test_that_ctrl_c_ends_without_a_traceback(capsys, monkeypatch):
    def interrupted(arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("precgui.cli.formats.run_formats", interrupted)
    assert main(["formats"]) == 130
    assert capsys.readouterr().err == ""
