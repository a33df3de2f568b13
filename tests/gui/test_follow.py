"""Runs that another process is writing: opened while they go on, followed to their end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from PySide6.QtCore import QTimer
from pytestqt.qtbot import QtBot

from precgui.events import RunEnded, StepDone
from precgui.gui import open_runs
from precgui.gui.panels.live.panel import LivePanel
from precgui.gui.panels.live.run_list import DETAIL, RunList
from precgui.gui.session import Session
from tests.runs.synthetic import open_writer, synthetic_events


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_runs, "FOLLOW_MS", 20)


def test_that_a_run_of_another_process_is_followed_to_its_end(qtbot: QtBot, tmp_path: Path) -> None:
    steps = [event for event in synthetic_events(60) if isinstance(event, StepDone)]
    session = Session()
    panel = LivePanel(session)
    qtbot.addWidget(panel)
    with open_writer(tmp_path / "run.h5") as emit:
        for event in steps[:20]:
            emit(event)
        emit.flush()
        key = session.runs.open_file(tmp_path / "run.h5")
        assert key is not None
        run = session.runs[key].run
        assert f"being written by process {os.getpid()} on " in told(panel.run_list)
        with qtbot.waitSignal(session.runs.data_arrived):
            for event in steps[20:]:
                emit(event)
            emit.flush()
        qtbot.waitUntil(lambda: len(run.series("loss")[1]) == 60)
        with qtbot.waitSignal(session.runs.changed):
            emit(RunEnded(1.0, "completed"))
    assert run.status == "completed"
    qtbot.waitUntil(lambda: "completed" in told(panel.run_list))
    qtbot.waitUntil(lambda: not session.findChild(QTimer, "follower").isActive())
    session.runs.close(key)


def told(runs: RunList) -> str:
    """What the list says of its runs below their names."""
    tree = runs.tree
    return "\n".join(tree.topLevelItem(row).data(0, DETAIL) for row in range(tree.topLevelItemCount()))


def test_that_a_file_that_vanishes_is_told_once(qtbot: QtBot, tmp_path: Path) -> None:
    session = Session()
    with open_writer(tmp_path / "run.h5") as emit:
        emit(synthetic_events(5)[1])
        emit.flush()
        session.runs.open_file(tmp_path / "run.h5")
        with qtbot.waitSignal(session.notice) as caught:
            (tmp_path / "run.h5").unlink()
        assert "no longer followed" in caught.args[0].message
        qtbot.waitUntil(lambda: not session.findChild(QTimer, "follower").isActive())
