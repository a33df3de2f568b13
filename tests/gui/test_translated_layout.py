"""Finished places in Chinese and in the pseudo language, which is 40 % longer: no button and no label is cut."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtWidgets import QAbstractButton, QApplication, QLabel, QPushButton, QSizePolicy, QToolButton
from pytestqt.qtbot import QtBot

from precgui import words
from precgui.config import RunConfig
from precgui.events import Event, RunEnded, RunStarted, StepDone
from precgui.examples import EXAMPLES
from precgui.gui.notices import Notices
from precgui.gui.open_run import OpenRun
from precgui.gui.panels.compare.groups import VIEWS
from precgui.gui.panels.compare.panel import DIFFERENCES, RUNS, ComparePanel
from precgui.gui.panels.diagnose.panel import DiagnosePanel
from precgui.gui.panels.inspect.panel import InspectPanel
from precgui.gui.panels.inspect.tabs import TABS as TABS_OF_INSPECT
from precgui.gui.session import Session
from precgui.gui.settings import Settings
from precgui.gui.shell.window import Window
from tests.gui.conftest import close_window
from tests.runs.synthetic import live_run

TABS = (
    "formats/bits", "formats/line", "formats/range", "formats/arithmetic", "formats/quantise", "formats/reference",
    "hardware/devices", "hardware/formats", "hardware/measured", "hardware/live", "hardware/places",
    "hardware/calculator", "library", "live", "setup", "setup/study", "setup/existing",
    "diagnose", "diagnose/script", "diagnose/loop",
)  # fmt: skip


@pytest.fixture(params=[("pseudo", 800, 600), ("zh_CN", 800, 600), ("pseudo", 1280, 800)], ids=str)
def translated_window(
    request: pytest.FixtureRequest, qtbot: QtBot, notices: Notices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Window]:
    language, width, height = request.param
    monkeypatch.setenv("PRECGUI_RUNS", str(tmp_path / "a folder of runs with a long name" / "and another one in it"))
    words.use(language)
    made = Window(Settings(), notices)
    made.resize(width, height)
    made.show()
    qtbot.waitExposed(made)
    made.attach(Session(made))
    yield made
    close_window(qtbot, made)
    words.use("en")


def cut(window: Window) -> list[str]:
    """Texts of buttons and of labels of one line that have less room than they need."""
    found = []
    parts: list[QAbstractButton | QLabel] = [*window.findChildren(QPushButton), *window.findChildren(QToolButton)]
    for part in [*parts, *window.findChildren(QLabel)]:
        text = part.text()
        wraps = isinstance(part, QLabel) and (part.wordWrap() or "\n" in text or not part.pixmap().isNull())
        if not text or wraps or not part.isVisible() or part.visibleRegion().isEmpty():
            continue
        if part.sizePolicy().horizontalPolicy() == QSizePolicy.Policy.Ignored:  # elided on purpose, with a tool tip
            continue
        only_icon = isinstance(part, QAbstractButton) and isinstance(part, QToolButton) and not part.icon().isNull()
        if not only_icon and part.width() < part.minimumSizeHint().width():
            found.append(f"{text} ({part.width()} < {part.minimumSizeHint().width()})")
    return found


def test_that_nothing_is_cut_in_another_language(translated_window: Window) -> None:
    found = {}
    for place in TABS:
        translated_window.show_panel(place)
        QApplication.processEvents()
        found[place] = cut(translated_window)
    assert {place: texts for place, texts in found.items() if texts} == {}


def test_that_nothing_is_cut_in_compare_with_a_study_and_runs(translated_window: Window, qtbot: QtBot) -> None:
    window = translated_window
    session = window.session
    assert session is not None
    for example in EXAMPLES:
        if example.is_study:
            session.open_study(example.path)
        else:
            session.runs.open_file(example.path)
    window.show_panel("compare")
    panel = window.findChild(ComparePanel)
    assert panel is not None
    qtbot.waitUntil(lambda: panel.groups.report_content is not None, timeout=20_000)
    found = {}
    for view in VIEWS:
        panel.groups.view.choose(view)
        QApplication.processEvents()
        found[view] = cut(window)
    for view in (DIFFERENCES, RUNS):
        panel.view.choose(view)
        qtbot.waitUntil(lambda: panel.table.rowCount() > 0 or panel.view.current != RUNS, timeout=20_000)
        QApplication.processEvents()
        found[f"single {view}"] = cut(window)
    assert {place: texts for place, texts in found.items() if texts} == {}


def test_that_nothing_is_cut_in_inspect_with_a_run(translated_window: Window, qtbot: QtBot) -> None:
    window = translated_window
    session = window.session
    assert session is not None
    path = next(each.path for each in EXAMPLES if each.name == "scale-collapse")
    key = session.runs.open_file(path)
    assert key is not None
    found = {}
    for spec in TABS_OF_INSPECT:
        if spec.id == "formats":  # of models
            continue
        session.requests.inspect(key, spec.id)
        panel = window.findChild(InspectPanel)
        assert panel is not None
        qtbot.waitUntil(panel.tab(spec.id).isVisible, timeout=20_000)
        QApplication.processEvents()
        found[spec.id] = cut(window)
    assert {tab: texts for tab, texts in found.items() if texts} == {}


def test_that_findings_of_a_run_and_of_a_script_are_not_cut(translated_window: Window, qtbot: QtBot) -> None:
    losses = [*(2.0 * 0.95**step for step in range(20)), *[math.nan] * 20]
    events: list[Event] = [RunStarted(0.0, 0, 0, "cpu")]
    for step, loss in enumerate(losses, 1):
        events.append(StepDone(step, 0.1 * step, loss, 1.0, False, 0.1, 1.0, 0.1, 0.0, 8, math.nan))
    run = live_run([*events, RunEnded(9.0, "completed")], RunConfig())
    assert translated_window.session is not None
    translated_window.session.runs.put(OpenRun("broken", run, "broken", 0, 0))
    translated_window.show_panel("diagnose")
    panel = translated_window.findChild(DiagnosePanel)
    assert panel is not None
    qtbot.waitUntil(lambda: len(panel.cards) > 0)
    QApplication.processEvents()
    found = cut(translated_window)
    translated_window.show_panel("diagnose/script")
    panel.script.show_text("import torch\nscaler = torch.cuda.amp.GradScaler()\n", "train.py")
    qtbot.waitUntil(lambda: len(panel.script.cards) > 0)
    QApplication.processEvents()
    assert found + cut(translated_window) == []
