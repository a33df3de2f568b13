"""The pictures of the documents are taken of a window that is drawn, however busy the machine is."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from precgui.gui.answer import Answer
from tests.gui.theme_changes import change_theme


def test_that_no_picture_is_taken_while_a_part_waits_for_its_timer_or_its_answer(
    qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[2] / "packaging")
    screenshots = pytest.importorskip("screenshots", exc_type=ImportError)
    change_theme(qtbot, "light")
    window = QWidget()
    qtbot.addWidget(window)
    later = QTimer(window, singleShot=True, interval=120)
    hidden = QTimer(window, singleShot=True, interval=60_000)
    answer = Answer(window)
    assert not screenshots.is_drawing(window)
    hidden.start()  # a notice goes after a minute
    assert not screenshots.is_drawing(window)
    later.start()
    assert screenshots.is_drawing(window)
    later.stop()
    monkeypatch.setattr(Answer, "busy", property(lambda each: each is answer))
    assert screenshots.is_drawing(window)
    monkeypatch.setattr(screenshots, "themes", lambda: SimpleNamespace(is_changing=True))
    monkeypatch.setattr(Answer, "busy", False)
    assert screenshots.is_drawing(window)
