"""Every place and tab in Chinese and in the pseudo language, which is 40 % longer, with the examples open.

Quick by default; `make layout` compares three sizes in both themes with English, too.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from PySide6.QtCore import QEvent
from PySide6.QtGui import QFontInfo
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from precgui import words
from precgui.gui.kit.consent import Consent
from precgui.gui.kit.measures import fixed_font
from precgui.gui.notices import Notices
from precgui.gui.panels.setup.existing_model import ExistingModel
from precgui.gui.session import Session
from precgui.gui.settings import Settings
from precgui.gui.shell.window import Window
from precgui.gui.theme import Mode, themes
from tests.gui.conftest import close_window
from tests.gui.filled_places import walk
from tests.gui.layout_faults import CUT, LIES, Fault, faults

LONG = "LAYOUT_LONG" in os.environ
ELIDES = ("hardware/advice",)  # its choices stand beside the tree and may be elided; their lists have them whole
TOO_SMALL = (  # 800 x 600, for 40 % more: single words of axes, long notes below plots, hints of fields
    "setup/existing QLineEdit1", "inspect scaler PlotWidget1", "compare groups Trade-off TradeOffPlot0",
    "compare groups Trade-off PlainLabel1", "compare groups Energy QLineEdit0", "compare groups Energy PlainLabel2",
)  # fmt: skip
SMALL, USUAL, LARGE = (800, 600), (1280, 800), (1920, 1080)
Size = tuple[int, int]
Views = dict[str, list[Fault]]


@contextmanager
def opened(qtbot: QtBot, notices: Notices, language: str) -> Iterator[Window]:
    words.use(language)
    made = Window(Settings(), notices)
    made.show()
    qtbot.waitExposed(made)
    made.attach(Session(made))
    yield made
    close_window(qtbot, made)
    words.use("en")


def settle() -> None:
    """Let layouts and what waits for the next turn of the event loop be done."""
    for _ in range(3):
        QApplication.sendPostedEvents(None, QEvent.Type.LayoutRequest.value)
        QApplication.processEvents()


def looked_at(qtbot: QtBot, window: Window, folder: Path, sizes: tuple[Size, ...]) -> dict[Size, Views]:
    """What is wrong in each view, by size."""
    found: dict[Size, Views] = {size: {} for size in sizes}
    until: Callable[[Callable[[], bool]], None] = qtbot.waitUntil
    for view in walk(window, until, folder):
        for size in sizes:
            window.resize(*size)
            settle()
            found[size][view] = faults(window)
            if (window.width(), window.height()) != size:
                found[size][view].append(Fault("window", CUT, f"{window.width()} x {window.height()}"))
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "a folder of runs with a long name" / "and another one in it"
    monkeypatch.setenv("PRECGUI_RUNS", str(path))
    return path


def worse_than(views: Views, known: Views) -> dict[str, list[Fault]]:
    """The faults that the same view has not among the known ones."""
    more: dict[str, list[Fault]] = {}
    for view, found in views.items():
        left = Counter((fault.part, fault.kind) for fault in known.get(view, ()))
        for fault in found:
            left[fault.part, fault.kind] -= 1
            if left[fault.part, fault.kind] < 0:
                more.setdefault(view, []).append(fault)
    return more


def is_known(fault: Fault, view: str, size: Size) -> bool:
    """What 40 % more text has no room for."""
    return view in ELIDES or (size == SMALL and f"{view} {fault.part.rpartition('/')[2]}" in TOO_SMALL)


@pytest.mark.parametrize(("language", "sizes"), [("zh_CN", (SMALL,)), ("pseudo", (SMALL,))], ids=str)
def test_that_nothing_is_cut_or_covered_in_another_language(
    qtbot: QtBot, notices: Notices, folder: Path, language: str, sizes: tuple[Size, ...]
) -> None:
    with opened(qtbot, notices, language) as window:
        for size, views in looked_at(qtbot, window, folder, sizes).items():
            wrong = [
                f"{size} {view}: {fault.part.rpartition('/')[2]} {fault.kind}, {fault.words}"
                for view, found in views.items()
                for fault in found
                if fault.kind in (CUT, LIES) and not (language == "pseudo" and is_known(fault, view, size))
            ]
            assert not wrong, "\n".join(wrong)


@pytest.mark.skipif(not LONG, reason="make layout compares every view with English; it takes minutes")
@pytest.mark.parametrize("mode", ["light", "dark"])
def test_that_no_view_is_worse_than_in_english(qtbot: QtBot, notices: Notices, folder: Path, mode: Mode) -> None:
    sizes = (SMALL, USUAL, LARGE)
    by_language = {}
    for language in ("en", "zh_CN"):
        with opened(qtbot, notices, language) as window:
            themes().set_mode(mode)
            by_language[language] = looked_at(qtbot, window, folder / language, sizes)
    for size in sizes:
        assert worse_than(by_language["zh_CN"][size], by_language["en"][size]) == {}, size


def test_that_code_keeps_a_font_of_fixed_width_in_chinese(qapp: QApplication) -> None:
    if not QFontInfo(fixed_font()).fixedPitch():
        pytest.skip("this machine has no font of fixed width")
    words.use("zh_CN")
    try:
        assert QFontInfo(fixed_font()).fixedPitch()
    finally:
        words.use("en")


def test_that_what_is_rounded_has_the_words_of_a_model(qtbot: QtBot) -> None:
    words.use("zh_CN")
    try:
        window = QWidget()
        qtbot.addWidget(window)
        form = ExistingModel(Session(), Consent(window, set()), window)
        assert [box.text() for box in form.rounded.values()] == ["权重", "权重和输入", "键", "值"]
    finally:
        words.use("en")
