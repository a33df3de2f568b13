"""Small things that a person trips over: what is kept, what waits, what is named, what comes back after a restart."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from PySide6.QtGui import QPixmapCache
from PySide6.QtWidgets import QToolButton
from pytestqt.qtbot import QtBot

from precgui.cli.main import main
from precgui.config import RunConfig
from precgui.gui.kit import icons
from precgui.gui.notices import Notices
from precgui.gui.panels.hardware.bench_tab import MeasuredTab
from precgui.gui.panels.hardware.model import HardwareModel
from precgui.gui.panels.library import panel as library
from precgui.gui.panels.library.folder import RunsFolder
from precgui.gui.panels.library.panel import LibraryPanel
from precgui.gui.panels.live.queue_list import QueueList
from precgui.gui.panels.setup.panel import SetupPanel
from precgui.gui.session import Session
from precgui.gui.settings import Settings
from precgui.gui.shell import display
from precgui.gui.shell.startup import StartupStages
from precgui.gui.shell.window import Window
from precgui.gui.workers import kept_thread
from precgui.gui.workers.child_process import ChildThread, RunThread
from precgui.hardware.measured import rate_text
from tests.gui.conftest import close_window, write_run


def test_that_choosing_a_recipe_keeps_what_was_changed_by_hand(qtbot: QtBot) -> None:
    panel = SetupPanel(Session())
    qtbot.addWidget(panel)
    panel.form.set_value(RunConfig(precision="bf16-amp", seed=7))
    panel.use_recipe("gpt-quick")
    config = panel.form.value()
    assert config is not None
    assert (config.task, config.precision, config.seed) == ("text", "bf16-amp", 7)
    assert "Kept from before: precision = bf16-amp, seed = 7" in panel.recipe_note.text()
    panel.new_run()
    config = panel.form.value()
    assert config is not None
    assert (config.precision, config.seed) == ("fp32", 0)
    assert "Kept" not in panel.recipe_note.text()


def test_that_a_value_that_does_not_fit_the_recipe_is_not_kept(qtbot: QtBot) -> None:
    panel = SetupPanel(Session())
    qtbot.addWidget(panel)
    panel.form.set_value(RunConfig.model_validate({"model": {"name": "resnet"}, "seed": 3}))
    panel.use_recipe("gpt-quick")
    config = panel.form.value()
    assert config is not None
    assert (config.model.name, config.seed) == ("auto", 3)


def test_that_a_measurement_waits_for_the_run_and_can_be_taken_back(
    qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = [True]
    model = HardwareModel(lambda: busy[0])
    tab = MeasuredTab(model)
    qtbot.addWidget(tab)
    tab.device.addItem("a device", "cpu")
    tab.start()
    assert not any(isinstance(thread, ChildThread) for thread in kept_thread.running())
    assert tab.message.text().startswith("A run is active: the measurement starts when it has ended.")
    tab.stop.click()
    assert (tab.measure.isEnabled(), tab.stop.isEnabled()) == (True, False)
    model.idle.emit()
    assert not any(isinstance(thread, ChildThread) for thread in kept_thread.running())
    tab.start()
    started: list[bool] = []
    monkeypatch.setattr(tab, "start", lambda _: started.append(True))
    busy[0] = False
    model.idle.emit()
    assert started == [True]


def test_that_a_run_waits_for_the_measurement(qtbot: QtBot) -> None:
    session = Session()
    session.training.set_measuring(True)
    with qtbot.waitSignal(session.notice) as told:
        session.training.start(RunConfig())
    assert "when the measurement" in told.args[0].message
    assert (len(session.training.waiting), session.findChildren(RunThread)) == (1, [])


def test_that_rates_have_a_unit_that_suits_them() -> None:
    assert [rate_text(tops) for tops in (989.4, 1.25, 0.00355, 2e-6)] == [
        "989 Top/s", "1.25 Top/s", "3.55 Gop/s", "2 Mop/s",
    ]  # fmt: skip


def press(queue: QueueList, text: str) -> None:
    (button,) = [button for button in queue.findChildren(QToolButton) if button.text() == text]
    button.click()


def test_that_the_queue_is_a_list_whose_order_changes(qtbot: QtBot) -> None:
    session = Session()
    queue = QueueList(session)
    qtbot.addWidget(queue)
    assert queue.isHidden()
    session.training.waiting = [RunConfig(title=title) for title in "abc"]
    session.training.changed.emit()
    assert (queue.isHidden(), queue.heading.text()) == (False, "3 runs wait")
    queue.choose(2)
    press(queue, "Up")
    assert [config.title for config in session.training.waiting] == ["a", "c", "b"]
    assert queue.row == 1
    press(queue, "Remove")
    assert [config.title for config in session.training.waiting] == ["a", "b"]


def test_that_runs_says_that_it_reads_before_it_says_that_there_is_none(qtbot: QtBot) -> None:
    panel = LibraryPanel(Session())
    qtbot.addWidget(panel)
    assert panel.pages.empty.heading.text() == library.READING
    qtbot.waitUntil(lambda: not panel.findChild(RunsFolder).is_reading)
    assert panel.pages.empty.heading.text() == "No runs yet"


def test_that_a_drawing_is_rendered_once_for_each_colour(qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    QPixmapCache.clear()
    drawn: list[object] = []
    real = icons.QSvgRenderer  # type: ignore[attr-defined]
    monkeypatch.setattr(icons, "QSvgRenderer", lambda data: drawn.append(data) or real(data))
    for _ in range(3):
        icons.pixmap("bell", "#123456")
    assert len(drawn) == 1
    icons.pixmap("bell", "#654321")
    assert len(drawn) == 2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has them")
def test_that_missing_system_libraries_are_named_with_their_packages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QT_QPA_PLATFORM", "xcb")
    monkeypatch.setattr(display, "_loads", lambda library: "icccm" not in library)
    monkeypatch.setattr(display.shutil, "which", lambda program: program == "apt-get" or None)  # type: ignore[attr-defined]
    assert main([]) == 2
    assert capsys.readouterr().err == (
        "precgui: Qt cannot open a window without system libraries; install them: apt install libxcb-icccm4\n"
    )
    monkeypatch.setenv("QT_QPA_PLATFORM", "offscreen")
    assert display.missing_libraries() == []


def test_that_open_runs_come_back_after_a_restart(qtbot: QtBot, tmp_path: Path) -> None:
    paths = [write_run(tmp_path / f"{name}.h5", name) for name in ("one", "two")]
    for files in (paths, []):
        window = Window(Settings(), Notices())
        start = StartupStages(window, files)
        window.show()
        qtbot.waitUntil(lambda window=window: window.session is not None and len(window.session.runs) == 2)
        assert window.session is not None
        if files:
            window.session.baseline_file = str(paths[1])
            window.show_panel("diagnose")
        else:
            assert window.session.baseline_file == str(paths[1])
            assert window.host.current == "diagnose"  # the place comes back, too
        qtbot.waitUntil(lambda window=window: not window.host.waiting())
        close_window(qtbot, window)
        start.deleteLater()
    assert Settings().repaired == []
