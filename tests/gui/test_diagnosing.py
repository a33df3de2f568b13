"""Runs are judged in a thread, which reads what the run was when it was asked for."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import QObject
from pytestqt.qtbot import QtBot

from precgui.config import RunConfig
from precgui.events import RunEnded, StepDone
from precgui.gui.answer import Answer, thread
from precgui.gui.diagnosing import JudgedRun, judgement, reader_of
from precgui.runs import diagnosis
from precgui.runs.diagnosis import Diagnosis
from precgui.runs.file.reader import open_run
from precgui.runs.run import Run
from tests.runs.synthetic import live_run, open_writer, synthetic_events


def judged(qtbot: QtBot, run: Run, meanwhile: Callable[[], object] = lambda: None) -> Diagnosis:
    """The diagnosis of a run; `meanwhile` is done when it has been asked for."""
    answers: list[JudgedRun] = []
    owner = QObject()
    Answer(owner, answered=answers.append).ask(thread(judgement("key", run)))
    meanwhile()
    qtbot.waitUntil(lambda: answers != [])
    assert answers[0].key == "key" and answers[0].taken_s >= 0
    return answers[0].diagnosis


def saved(path: Path) -> None:
    with open_writer(path) as writer:
        for event in synthetic_events():
            writer(event)


def test_that_the_window_does_not_judge_by_itself(qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    own = diagnosis.examine
    monkeypatch.setattr(diagnosis, "examine", lambda run: (threads.append(threading.current_thread()), own(run))[1])
    judged(qtbot, live_run(synthetic_events()))
    assert threads != []
    assert threading.main_thread() not in threads


def test_that_a_saved_run_is_judged_from_its_file_although_it_is_closed_meanwhile(qtbot: QtBot, tmp_path: Path) -> None:
    saved(tmp_path / "run.h5")
    run = open_run(tmp_path / "run.h5")
    assert judged(qtbot, run, meanwhile=run.close).steps == 300


def test_that_a_saved_run_whose_file_has_been_deleted_is_still_judged(qtbot: QtBot, tmp_path: Path) -> None:
    saved(tmp_path / "run.h5")
    with open_run(tmp_path / "run.h5") as run:
        (tmp_path / "run.h5").unlink()
        assert judged(qtbot, run).steps == 300


def test_that_the_copy_of_a_live_run_does_not_grow_and_says_the_same() -> None:
    events = [event for event in synthetic_events() if not isinstance(event, RunEnded)]
    run = live_run(events, RunConfig())
    with reader_of(run)() as copied:
        before = copied.series("loss")[1].tolist(), len(copied.events()), copied.steps  # type: ignore[attr-defined]
        run.extend([StepDone(301, 9.0, 1.0, 1.0, False, 0.1, 1.0, 0.1, 0.0, 8, math.nan)] * 500)
        after = copied.series("loss")[1].tolist(), len(copied.events()), copied.steps  # type: ignore[attr-defined]
    assert str(before) == str(after)
    assert run.steps == before[2] + 500
