"""Many files at once: the first is opened at once, the others one in a turn, and one notice names those that fail."""

from __future__ import annotations

from pathlib import Path

from pytestqt.qtbot import QtBot

from precgui.gui.open_run import Problem
from precgui.gui.session import Session
from tests.gui.conftest import write_run


def bad(path: Path) -> Path:
    path.write_bytes(b"no run")
    return path


def test_that_each_file_after_the_first_has_a_turn_of_its_own(qtbot: QtBot, tmp_path: Path) -> None:
    session, turns, opened = Session(), [], []
    session.runs.added.connect(lambda _: turns.append(len(session.runs)))
    session.runs.opener.open([write_run(tmp_path / f"{name}.h5", name) for name in "abc"], opened.append)
    assert opened == list(session.runs)
    assert turns == [1]
    qtbot.waitUntil(lambda: turns == [1, 2, 3])
    assert len(opened) == 1


def test_that_a_file_chosen_while_others_wait_is_opened_at_once_and_reported_to_who_chose_it(
    qtbot: QtBot, tmp_path: Path
) -> None:
    session = Session()
    earlier, later = list[str](), list[str]()
    session.runs.opener.open([write_run(tmp_path / f"{name}.h5", name) for name in "abc"], earlier.append)
    session.runs.opener.open([write_run(tmp_path / "d.h5", "d")], later.append)
    assert [session.runs[key].name for key in earlier + later] == ["a", "d"]
    qtbot.waitUntil(lambda: len(session.runs) == 4)


def test_that_files_that_cannot_be_opened_are_one_notice(qtbot: QtBot, tmp_path: Path) -> None:
    session, opened = Session(), list[str]()
    problems: list[Problem] = []
    session.notice.connect(problems.append)
    paths = [bad(tmp_path / "x.h5"), bad(tmp_path / "y.h5"), write_run(tmp_path / "a.h5", "a")]
    session.runs.opener.open(paths, opened.append)
    qtbot.waitUntil(lambda: bool(problems))
    assert [session.runs[key].name for key in opened] == ["a"]
    (problem,) = problems
    assert problem.message.startswith("2 of 3 files could not be opened")
    assert "x.h5" in problem.details
    assert "y.h5" in problem.details


def test_that_one_file_that_cannot_be_opened_keeps_its_sentence(qtbot: QtBot, tmp_path: Path) -> None:
    session, opened = Session(), list[str]()
    problems: list[Problem] = []
    session.notice.connect(problems.append)
    session.runs.opener.open([bad(tmp_path / "x.h5")], opened.append)
    session.runs.opener.open([], opened.append)
    assert "x.h5" in problems[0].message
    assert not opened
