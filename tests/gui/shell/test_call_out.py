"""The call-out beside a part of the window."""

from __future__ import annotations

from PySide6.QtWidgets import QPlainTextEdit, QWidget
from pytestqt.qtbot import QtBot

from precgui.gui.kit.parts import column
from precgui.gui.shell.call_out import CallOut


def test_that_a_part_covered_by_its_own_parts_is_pointed_at_as_far_as_it_is_in_view(qtbot: QtBot) -> None:
    window = QWidget()
    qtbot.addWidget(window)
    window.resize(1000, 600)
    clip = QWidget(window)
    clip.setGeometry(20, 20, 600, 560)
    part = QWidget(clip)
    part.setGeometry(0, 0, 600, 900)
    text = QPlainTextEdit()
    column(text, margins=(0, 0, 0, 0), on=part)
    window.show()
    qtbot.waitUntil(part.isVisible)
    call_out = CallOut(window)
    call_out.tell("Step 1 of 1", "Look at this.")
    call_out.point_at(part)
    assert call_out.frame.isVisible() and not call_out.go.isVisible()
    assert call_out.frame.geometry() == clip.geometry().adjusted(-4, -4, 4, 4)
    assert not call_out.geometry().intersects(clip.geometry())
    clip.hide()
    call_out.point_at(part)
    assert not call_out.frame.isVisible() and call_out.go.isVisible()
