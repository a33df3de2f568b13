"""Damage that shows only when something reads a column is a notice, and once."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import h5py
import pytest
from PySide6.QtCore import QObject, Signal
from pytestqt.qtbot import QtBot

from precgui.config import RunConfig
from precgui.events import Incident
from precgui.gui import open_runs
from precgui.gui.session import Session
from precgui.runs.file.reader import SavedRun


def test_that_damage_of_a_column_that_is_read_late_is_reported_once(
    qtbot: QtBot, run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_runs, "NOTES_INTERVAL_MS", 5)
    with h5py.File(run_file, "r+") as file:
        rows = len(file["steps/grad_norm"])
        del file["steps/grad_norm"]
        file.create_dataset("steps/grad_norm", data=[b"x"] * rows)
    session = Session()
    notices: list[str] = []
    session.notice.connect(lambda problem: notices.append(problem.message))
    key = session.runs.open_file(run_file)
    assert key is not None
    assert notices == ["kept.h5: /steps/grad_norm has a type that a run file does not have."]
    monkeypatch.setattr(SavedRun, "notes", ["/power/device is damaged."])  # as after a panel has read it
    qtbot.waitUntil(lambda: len(notices) > 1)
    qtbot.wait(50)
    assert notices[1:] == ["kept.h5: /power/device is damaged."]
    session.runs.close(key)
    notes = session.findChild(open_runs.DamageNotes)
    assert notes is not None
    qtbot.waitUntil(lambda: not notes.is_active)


class Training(QObject):
    """A child process that says at once that its record has stopped, and trains on."""

    finished = Signal()

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self.inbox = deque(
            [[Incident(1.0, 42, "recording_stopped", "error", "Recording stopped after step 42: the disk is full.")]]
        )

    def launch(self) -> None:
        """Nothing is started."""

    def begin_run(self, config: RunConfig, path: Path, run_id: str, *, goes_on: bool) -> None:
        """Nothing is trained."""


def test_that_a_record_that_stops_is_reported_while_the_training_goes_on(
    qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a notice at the end alone: hours later, when nothing could be saved any more."""
    monkeypatch.setattr("precgui.gui.workers.child_process.RunThread", Training)
    session = Session()
    notices: list[str] = []
    session.notice.connect(lambda problem: notices.append(problem.message))
    session.training.start(RunConfig())
    qtbot.waitUntil(lambda: bool(notices))
    (opened,) = session.runs.values()
    assert notices == [f"{opened.name}: Recording stopped after step 42: the disk is full."]
    assert opened.run.status == "running"
