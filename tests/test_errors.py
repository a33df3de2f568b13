"""Errors for the user: one base that the command line and the window know, and the first line of errors of others."""

from __future__ import annotations

import ast
import builtins
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from precgui.cli import main
from precgui.engine.errors import EngineError
from precgui.errors import SentenceError
from precgui.runs.errors import RunFileError
from precgui.sentences import first_line
from precgui.sweeps.errors import SweepError

PACKAGE = Path(__file__).parents[1] / "precgui"
# Errors that never reach the user as they are: a caller makes a sentence of them.
INSIDE = {"NotMeasuredError", "NotebookError", "NotPredictableError", "StreamError", "CancelledError"}


def fails(error: BaseException) -> Callable[[Any], int]:
    def run(_: object) -> int:
        raise error

    return run


@pytest.mark.parametrize("kind", [EngineError, RunFileError, SweepError, MemoryError])
def test_that_the_command_line_prints_the_sentence_of_any_error_for_the_user(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command had to word them again as an error of the command line; one that did not printed a traceback."""
    command = ModuleType("failing_command")
    sentence = "run.h5 has no steps;\ntrain it again"
    command.__dict__["add_parsers"] = lambda subparsers: subparsers.add_parser("fail").set_defaults(
        run=fails(kind(sentence))
    )
    monkeypatch.setitem(sys.modules, "failing_command", command)
    monkeypatch.setitem(main.COMMANDS, "fail", "failing_command")
    assert main.main(["fail"]) == 2
    assert capsys.readouterr().err == "precgui: run.h5 has no steps; train it again\n"


def test_that_a_full_memory_without_a_word_is_a_sentence_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main, "_command", fails(MemoryError()))
    assert main.main(["detect"]) == 2
    assert capsys.readouterr().err == "precgui: the memory is full\n"


def error_classes() -> list[tuple[str, str]]:
    return [
        (".".join(("precgui", *path.relative_to(PACKAGE).with_suffix("").parts)), node.name)
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
        and node.name.endswith(("Error", "Fault"))
        and node.name not in INSIDE
        and node.name[0] != "_"
        if any(ast.unparse(base) in vars(builtins) or ast.unparse(base).endswith("Error") for base in node.bases)
    ]


def test_that_every_error_for_the_user_has_the_one_base() -> None:
    classes = {name: getattr(importlib.import_module(module), name) for module, name in error_classes()}
    assert {"ConfigError", "EngineError", "RunFileError", "TensorFileError"} <= classes.keys()
    assert [name for name, kind in classes.items() if not issubclass(kind, SentenceError)] == []


@pytest.mark.parametrize(
    ("message", "most", "line"),
    [
        ("mat1 and mat2 differ.\nmore", None, "mat1 and mat2 differ"),
        ("\n  Expected: ", None, "Expected"),
        ("", None, "ValueError"),
        ("a long message", 6, "a long"),
    ],
)
def test_that_the_first_line_of_an_error_of_others_fits_into_a_sentence(
    message: str, most: int | None, line: str
) -> None:
    assert first_line(ValueError(message), most) == line
