"""A row of controls wraps where it does not fit, and stands in one line again where it does."""

from __future__ import annotations

from PySide6.QtWidgets import QLabel, QPushButton, QVBoxLayout, QWidget
from pytestqt.qtbot import QtBot

from precgui.gui.kit.wrapping_row import WrappingRow


def test_that_a_row_wraps_instead_of_cutting_its_buttons(qtbot: QtBot) -> None:
    buttons = [QPushButton(f"Button number {number}") for number in range(4)]
    state, last = QLabel(), QPushButton("Last")
    row = WrappingRow([*buttons, state], at_right=last)
    around = QWidget()
    QVBoxLayout(around).addWidget(row)
    around.layout().setContentsMargins(0, 0, 0, 0)
    qtbot.addWidget(around)
    around.resize(sum(button.sizeHint().width() + 8 for button in buttons) + last.sizeHint().width() + 20, 40)
    around.show()

    def has_lines(count: int) -> None:
        assert len({part.y() + part.height() // 2 for part in (*buttons, last) if part.isVisible()}) == count

    qtbot.wait(20)
    has_lines(1)
    assert last.geometry().right() == row.rect().right()
    state.setText("a sentence that takes the rest of the line")
    qtbot.wait(20)
    has_lines(2)
    state.setText("")
    qtbot.wait(20)
    has_lines(1)
    around.resize(2 * buttons[0].sizeHint().width() + 20, 200)
    qtbot.wait(20)
    has_lines(3)
    assert all(button.width() >= button.sizeHint().width() for button in (*buttons, last))
    assert row.minimumSizeHint().width() < row.width()
    buttons[3].hide()
    qtbot.wait(20)
    has_lines(2)
