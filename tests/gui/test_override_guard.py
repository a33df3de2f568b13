"""The guard around overrides of Qt methods: put there for every class, and no exception leaves it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Generic, TypeVar

import pyqtgraph as pg
import pytest
from PySide6.QtCore import QAbstractListModel, QSize
from PySide6.QtGui import QPainter, QPaintEvent, QShowEvent
from PySide6.QtWidgets import QVBoxLayout, QWidget
from pytestqt.qtbot import QtBot

from precgui.gui.override_guard import is_guarded, overrides
from tests.gui.raising_overrides import classes

T = TypeVar("T")
NOT_VIRTUAL = {"setText", "text"}  # Qt calls none of these; their callers are Python and get the exception


def test_that_every_override_in_the_window_is_guarded() -> None:
    """A name that the tables of `override_guard` lack is added there, or above if the method is not virtual."""
    bare = {
        f"{cls.__module__}.{cls.__name__}.{name}"
        for cls in classes()
        for name, function in overrides(cls)
        if not is_guarded(function) and name not in NOT_VIRTUAL and function.__module__.startswith("precgui")
    }
    assert bare == set()
    assert sum(1 for cls in classes() for _ in overrides(cls)) > 150


def test_that_the_plots_of_the_library_are_guarded_too() -> None:
    for cls, name in ((pg.AxisItem, "paint"), (pg.ViewBox, "boundingRect"), (pg.PlotWidget, "resizeEvent")):
        assert dict(overrides(cls))[name] is not None
        assert is_guarded(dict(overrides(cls))[name])


def test_that_a_mixin_and_a_generic_class_are_guarded() -> None:
    class Mixin:
        def showEvent(self, event: QShowEvent) -> None:
            int("x")

    class Mixed(Mixin, QWidget, Generic[T]):
        def sizeHint(self) -> QSize:
            return QSize()

    assert {name for name, function in overrides(Mixed) if is_guarded(function)} == {"showEvent", "sizeHint"}
    assert "showEvent" in vars(Mixed) and not is_guarded(Mixin.showEvent)


class Failing(QWidget):
    """Each of its overrides fails; what the guard answers is in the test."""

    def showEvent(self, event: QShowEvent) -> None:
        int("shown")

    def sizeHint(self) -> QSize:
        return QSize(int("size"), 0)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.drawPoint(int("painted"), 0)


class FailingModel(QAbstractListModel):
    def rowCount(self, *_: object) -> int:
        return int("rows")


def test_that_the_caller_goes_on_and_every_fault_is_told(qtbot: QtBot, capsys: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []
    around = QWidget()
    qtbot.addWidget(around)
    made = Failing()
    made.setMinimumSize(20, 20)
    QVBoxLayout(around).addWidget(made)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "excepthook", lambda kind, error, trace: told.append(str(error)))
        around.show()
        around.grab()
        rows = FailingModel().rowCount()
        hint = made.sizeHint()
    assert rows == 0
    assert hint == QWidget().sizeHint()
    assert {text.split("'")[1] for text in told} == {"shown", "size", "painted", "rows"}
    assert "active painter" not in capsys.readouterr().err


def test_that_no_override_that_raises_ends_the_process() -> None:
    program = Path(__file__).with_name("raising_overrides.py")
    ended = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False, timeout=600)
    assert ended.returncode == 0, ended.stderr[-2000:]
    answer = json.loads(ended.stdout)
    assert answer["silent"] == []
    assert answer["asked"] > 150
