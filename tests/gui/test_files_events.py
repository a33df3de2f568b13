"""TensorBoard's event files in the window: opened, dropped, unreadable."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import QMimeData, QPointF, Qt, QUrl
from PySide6.QtGui import QDropEvent
from pytestqt.qtbot import QtBot
from tensorboard.compat.proto.event_pb2 import Event

import precgui
from precgui.gui.notices import Notices
from precgui.gui.state import State
from precgui.gui.window import Window
from precgui.runs.event_export import export_events
from precgui.runs.eventfile import write_record


@pytest.fixture
def state(window: Window) -> State:
    made = State(window)
    window.attach(made)
    return made


def drop(window: Window, path: Path) -> None:
    data = QMimeData()
    data.setUrls([QUrl.fromLocalFile(str(path))])
    none = Qt.MouseButton.NoButton
    window.dropEvent(QDropEvent(QPointF(9, 9), Qt.DropAction.CopyAction, data, none, Qt.KeyboardModifier.NoModifier))


def test_that_a_folder_of_events_is_dropped_and_compared(
    qtbot: QtBot, window: Window, state: State, run_file: Path, tmp_path: Path, notices: Notices
) -> None:
    with precgui.open_run(run_file) as run:
        export_events(run, tmp_path / "logs")
    drop(window, tmp_path / "logs")
    qtbot.waitUntil(lambda: len(state.runs) == 1)
    (key,) = state.runs
    assert state.runs[key].name == "a run that was kept"
    window.files.open([run_file])
    assert [opened.run.series("loss")[1].tolist() for opened in state.runs.values()] == [
        pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])
    ] * 2
    drop(window, tmp_path / "logs")
    assert len(state.runs) == 2
    for panel in ("live", "compare", "tensors", "library"):
        window.show_panel(panel)
        window.repaint()
    assert notices.unread() == 0
    for each in list(state.runs):
        state.close_run(each)


def test_that_the_window_says_which_scalar_it_took(
    qtbot: QtBot, window: Window, state: State, tmp_path: Path, notices: Notices
) -> None:
    file = tmp_path / "events.out.tfevents.7"
    with file.open("wb") as written:
        for step in range(3):
            values = [{"tag": tag, "simple_value": 1.0} for tag in ("trainer/loss", "memory")]
            write_record(written, Event(step=step, wall_time=step, summary={"value": values}).SerializeToString())
    with qtbot.waitSignal(state.notice) as told:
        window.files.open([file])
    assert "loss is trainer/loss; not shown: memory" in told.args[0].message
    qtbot.waitUntil(lambda: len(state.runs) == 1)


def test_that_an_unreadable_event_file_is_one_sentence(
    qtbot: QtBot, window: Window, state: State, tmp_path: Path, notices: Notices
) -> None:
    (tmp_path / "events.out.tfevents.7").write_bytes(b"nothing of the kind")
    window.files.open([tmp_path / "events.out.tfevents.7"])
    qtbot.waitUntil(lambda: notices.unread() > 0)
    assert not state.runs
