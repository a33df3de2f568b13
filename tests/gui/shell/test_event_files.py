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
from precgui.gui.session import Session
from precgui.gui.shell.scalar_dialog import TITLES, ScalarsDialog
from precgui.gui.shell.window import Window
from precgui.runs.tensorboard import tags
from precgui.runs.tensorboard.event_file import write_record
from precgui.runs.tensorboard.export import export_events


@pytest.fixture
def session(window: Window) -> Session:
    made = Session(window)
    window.attach(made)
    return made


def drop(window: Window, path: Path) -> None:
    data = QMimeData()
    data.setUrls([QUrl.fromLocalFile(str(path))])
    none = Qt.MouseButton.NoButton
    window.dropEvent(QDropEvent(QPointF(9, 9), Qt.DropAction.CopyAction, data, none, Qt.KeyboardModifier.NoModifier))


def test_that_a_folder_of_events_is_dropped_and_compared(
    qtbot: QtBot, window: Window, session: Session, run_file: Path, tmp_path: Path, notices: Notices
) -> None:
    with precgui.open_run(run_file) as run:
        export_events(run, tmp_path / "logs")
    drop(window, tmp_path / "logs")
    qtbot.waitUntil(lambda: len(session.runs) == 1)
    (key,) = session.runs
    assert session.runs[key].name == "a run that was kept"
    window.files.open([run_file])
    assert [opened.run.series("loss")[1].tolist() for opened in session.runs.values()] == [
        pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])
    ] * 2
    drop(window, tmp_path / "logs")
    assert len(session.runs) == 2
    for panel in ("live", "compare", "inspect", "library"):
        window.show_panel(panel)
        window.repaint()
    assert notices.unread() == 0
    for each in list(session.runs):
        session.runs.close(each)


def written(folder: Path, tags: list[str]) -> Path:
    """An event file of three steps; the values of a tag begin with its place in the list."""
    file = folder / "events.out.tfevents.7"
    with file.open("wb") as written:
        for step in range(3):
            values = [{"tag": tag, "simple_value": place + step / 10} for place, tag in enumerate(tags, 1)]
            write_record(written, Event(step=step, wall_time=step, summary={"value": values}).SerializeToString())
    return file


def dialog(qtbot: QtBot, window: Window) -> ScalarsDialog:
    qtbot.waitUntil(lambda: window.findChild(ScalarsDialog) is not None)
    found = window.findChild(ScalarsDialog)
    assert isinstance(found, ScalarsDialog)
    return found


def choose(asked: ScalarsDialog, **wanted: str) -> None:
    for signal, tag in wanted.items():
        asked.choices[signal].setCurrentIndex(asked.choices[signal].findData(tag))


def test_that_the_window_says_which_scalar_it_took_and_takes_another(
    qtbot: QtBot, window: Window, session: Session, tmp_path: Path, notices: Notices
) -> None:
    assert not window.files.has_scalars()
    file = written(tmp_path, ["trainer/loss", "trainer/loss_box", "memory"])
    window.files.open([file])
    qtbot.waitUntil(lambda: len(session.runs) == 1)
    (entry,) = notices.entries()
    assert "loss is trainer/loss. Not shown: memory, trainer/loss_box" in entry.notice.text
    ((_, remedy),) = entry.notice.remedies
    remedy()
    asked = dialog(qtbot, window)
    assert asked.chosen_tags()["loss"] == "trainer/loss"
    assert "(3 points, last 1.2)" in asked.choices["loss"].currentText()
    choose(asked, loss="trainer/loss_box", memory_bytes="memory")
    assert "validation loss" in asked.missing.text()
    assert "the precision and the machine are unknown" in asked.missing.text()
    asked.accept()
    (opened,) = session.runs.values()
    assert opened.run.series("loss")[1].tolist() == pytest.approx([2, 2.1, 2.2])
    assert opened.run.series("memory_bytes")[1].tolist() == pytest.approx([3, 3.1, 3.2])
    assert window.files.has_scalars()


def test_that_the_window_asks_when_no_name_tells(
    qtbot: QtBot, window: Window, session: Session, tmp_path: Path, notices: Notices
) -> None:
    window.files.open([written(tmp_path, ["objective", "loss_scale"])])
    asked = dialog(qtbot, window)
    assert not session.runs
    assert asked.choices["scale"].currentData() == "loss_scale"
    assert not asked.accept_button.isEnabled()
    assert "without one there is nothing to compare" in asked.missing.text()
    choose(asked, val_loss="objective", scale="")
    assert asked.accept_button.isEnabled()
    asked.accept_button.click()
    (opened,) = session.runs.values()
    assert opened.run.series("val_loss")[1].tolist() == pytest.approx([1, 1.1, 1.2])
    assert opened.run.series("scale")[1].tolist() == []


def test_that_a_dialog_that_is_cancelled_opens_nothing(
    qtbot: QtBot, window: Window, session: Session, tmp_path: Path, notices: Notices
) -> None:
    window.files.open([written(tmp_path, ["objective"])])
    dialog(qtbot, window).reject()
    assert not session.runs
    assert not notices.unread()


def test_that_an_unreadable_event_file_is_one_sentence(
    qtbot: QtBot, window: Window, session: Session, tmp_path: Path, notices: Notices
) -> None:
    (tmp_path / "events.out.tfevents.7").write_bytes(b"nothing of the kind")
    window.files.open([tmp_path / "events.out.tfevents.7"])
    qtbot.waitUntil(lambda: notices.unread() > 0)
    assert not session.runs


def test_that_every_scalar_of_an_event_file_has_its_words() -> None:
    assert TITLES.keys() == set(tags.SIGNALS)
