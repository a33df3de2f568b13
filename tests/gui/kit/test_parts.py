"""Parts written as the picture that they make, and the choice that keeps its entry."""

from __future__ import annotations

from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QLineEdit, QWidget
from pytestqt.qtbot import QtBot

from precgui.gui.kit.choice import Choice
from precgui.gui.kit.parts import button, column, label, named, row


def test_that_a_picture_of_rows_and_columns_becomes_the_layout(qtbot: QtBot) -> None:
    window, first, field = QWidget(), label("a", wrap=False), QLineEdit()
    pressed: list[bool] = []
    press = button("Press", lambda: pressed.append(True), "<b>tip</b>")
    head = row(named("&Field", field), field, 1, press)
    column(head, (first, 1), label("b", "muted"), on=window, margins=(1, 2, 3, 4))
    qtbot.addWidget(window)
    window.resize(400, 300)
    window.show()
    qtbot.waitExposed(window)
    margins = window.contentsMargins() if window.layout() is None else window.layout().contentsMargins()
    assert (margins.left(), margins.top(), margins.right(), margins.bottom()) == (1, 2, 3, 4)
    assert press.parent() is window and press.geometry().right() == 400 - 3 - 1
    assert first.height() > 4 * field.height()
    assert "<b>" not in press.toolTip()
    qtbot.mouseClick(press, Qt.MouseButton.LeftButton, pos=QPoint(5, 5))
    assert pressed == [True]


def test_that_a_choice_keeps_its_entry_when_entries_come_again_and_says_when_it_is_gone(qtbot: QtBot) -> None:
    chosen: list[object] = []
    choice = Choice("Figure", lambda: chosen.append(choice.currentData()))
    qtbot.addWidget(choice)
    choice.offer([("loss", 1), ("time", 2)])
    assert chosen == [1]
    choice.setCurrentIndex(1)
    choice.offer([("loss", 1), ("time", 2), ("energy", 3)])
    assert choice.currentText() == "time" and chosen == [1, 2]
    choice.offer([("loss", 1), ("energy", 3)])
    assert choice.currentText() == "loss" and chosen == [1, 2, 1]
    choice.offer([])
    assert choice.currentIndex() == -1 and chosen == [1, 2, 1, None]
