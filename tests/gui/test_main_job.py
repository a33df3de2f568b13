"""The main job from end to end, by clicks: configure a run, watch it, stop it, start another, open both again."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLineEdit, QWidget
from pytestqt.qtbot import QtBot

from precgui.gui.notices import Notices
from precgui.gui.panels.library.panel import LibraryPanel
from precgui.gui.panels.live.panel import LivePanel
from precgui.gui.panels.setup.panel import SetupPanel
from precgui.gui.session import Session
from precgui.gui.settings import Settings
from precgui.gui.shell.window import Window
from precgui.gui.workers import child_process
from precgui.runs.file.reader import open_run
from tests.gui.conftest import close_window
from tests.gui.plotted import items


def open_window(qtbot: QtBot) -> tuple[Window, Session]:
    window = Window(Settings(), Notices())
    session = Session(window)
    window.attach(session)
    window.resize(1280, 800)
    window.show()
    qtbot.waitExposed(window)
    return window, session


def panel(window: Window, name: str, kind: type[QWidget]) -> QWidget:
    window.show_panel(name)
    (found,) = window.host.findChildren(kind)
    return found


def drawn_loss(live: LivePanel, key: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The points of the training-loss curve of a run, as they are on the screen."""
    live.plots.draw_pending()
    x, y = items(live.plots.frames[0].chart, "line", key)[0].getData()
    return x, y


def type_into(qtbot: QtBot, setup: SetupPanel, path: str, text: str) -> None:
    editor = setup.form.editors[path]
    assert isinstance(editor, QLineEdit)
    editor.clear()
    qtbot.keyClicks(editor, text)


def test_that_a_person_can_train_watch_stop_compare_and_come_back(
    qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "KILL_AFTER_S", 60.0)  # however busy the machine is, the process ends by itself
    window, session = open_window(qtbot)
    setup = panel(window, "setup", SetupPanel)
    assert isinstance(setup, SetupPanel)

    # Choose int8-qat and a run that would take long, and press Start.
    qtbot.mouseClick(setup.precision.cards["int8-qat"].button, Qt.MouseButton.LeftButton)
    type_into(qtbot, setup, "train.epochs", "100000")
    qtbot.mouseClick(setup.start_button, Qt.MouseButton.LeftButton)
    live = panel(window, "live", LivePanel)
    assert isinstance(live, LivePanel)
    (one,) = session.runs
    first = session.runs[one].run
    qtbot.waitUntil(lambda: len(first.series("loss")[0]) > 20)

    # Points are in the plot while it runs; Stop ends it.
    qtbot.waitUntil(lambda: len(drawn_loss(live, one)[0]) > 20)
    window.actions_.by_id["run.stop"].trigger()
    qtbot.waitUntil(lambda: first.status == "stopped")

    # No point of the plot was lost against the file.
    assert first.path is not None
    with open_run(first.path) as saved:
        steps, losses = saved.series("loss")
        assert (saved.config.precision, saved.status) == ("int8-qat", "stopped")
    np.testing.assert_array_equal(steps, np.arange(1, len(steps) + 1))
    np.testing.assert_array_equal(first.series("loss"), (steps, losses))
    assert_drawn(live, one, steps, losses)

    # A second run in another precision joins it in the same plot.
    panel(window, "setup", SetupPanel)
    qtbot.mouseClick(setup.precision.cards["fp32"].button, Qt.MouseButton.LeftButton)
    type_into(qtbot, setup, "train.epochs", "3")
    qtbot.mouseClick(setup.start_button, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: len(session.runs) == 2)
    two = list(session.runs)[1]
    second = session.runs[two].run
    qtbot.waitUntil(lambda: second.status == "completed")
    panel(window, "live", LivePanel)
    assert_drawn(live, two, *second.series("loss"))
    assert_drawn(live, one, steps, losses)
    close_window(qtbot, window)

    # Tomorrow: another window, the same folder, both files opened from the library.
    window, session = open_window(qtbot)
    library = panel(window, "library", LibraryPanel)
    assert isinstance(library, LibraryPanel)
    qtbot.waitUntil(lambda: library.filtered.rowCount() == 2)
    library.view.selectAll()
    library.open_selected()
    qtbot.waitUntil(lambda: len(session.runs) == 2)
    reopened = {opened.run.config.precision: opened.run for opened in session.runs.values()}
    np.testing.assert_array_equal(reopened["int8-qat"].series("loss"), (steps, losses))
    np.testing.assert_array_equal(reopened["fp32"].series("loss"), second.series("loss"))
    live = panel(window, "live", LivePanel)
    assert isinstance(live, LivePanel)
    assert_drawn(live, one, steps, losses)
    close_window(qtbot, window)


def assert_drawn(live: LivePanel, key: str, steps: NDArray[np.float64], losses: NDArray[np.float64]) -> None:
    """The curve on the screen holds every point, or the extremes of each pixel and nothing that is not recorded."""
    live.plots.frames[0].log_button.setChecked(False)
    live.plots.follow()
    x, y = drawn_loss(live, key)
    assert live.plots.frames[0].chart.scale == "linear"
    if len(x) == len(steps):
        np.testing.assert_array_equal(x, steps)
        np.testing.assert_array_equal(y, losses)
    assert (y.min(), y.max()) == (losses.min(), losses.max())
    np.testing.assert_array_equal(y, losses[np.searchsorted(steps, x)])
