"""A row of controls wraps where it does not fit, and stands in one line again where it does."""

from __future__ import annotations

from PySide6.QtWidgets import QHBoxLayout, QLabel, QLineEdit, QPushButton, QVBoxLayout, QWidget
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


def test_that_a_field_takes_the_rest_of_its_line_and_has_room_for_its_hint(qtbot: QtBot) -> None:
    field, ask, place = QLineEdit(), QPushButton("Choose..."), QPushButton("Another place...")
    field.setPlaceholderText("a file, a folder or the name of a run that was kept")
    row = WrappingRow([field, ask, place], fills=field)
    around = QWidget()
    QHBoxLayout(around).addWidget(row)  # beside others a row may be as high as its lines
    around.layout().setContentsMargins(0, 0, 0, 0)
    qtbot.addWidget(around)
    around.resize(1000, 40)
    around.show()
    qtbot.wait(20)
    assert field.width() == 1000 - 16 - ask.width() - place.width()
    assert place.geometry().right() == row.rect().right()
    hint_px = field.fontMetrics().horizontalAdvance(field.placeholderText())
    around.resize(hint_px + 40, 120)
    qtbot.wait(20)
    assert field.width() == row.width() and field.width() > hint_px
    assert ask.y() > field.geometry().bottom() and place.geometry().bottom() <= row.rect().bottom()
    around.resize(row.minimumSizeHint().width(), 160)
    qtbot.wait(20)
    assert field.geometry().right() <= row.rect().right()


def test_that_a_part_which_is_shown_or_hidden_while_the_row_is_out_of_sight_gets_its_place(qtbot: QtBot) -> None:
    """Stop lay under Freeze in Live when a run had been started from another place."""
    stop, freeze = QPushButton("Stop run"), QPushButton("Freeze")
    stop.hide()
    row = WrappingRow([stop, freeze])
    around = QWidget()
    QVBoxLayout(around).addWidget(row)
    qtbot.addWidget(around)
    around.resize(400, 60)
    around.show()
    qtbot.wait(20)
    around.hide()
    stop.show()
    around.show()
    qtbot.wait(20)
    assert freeze.x() > stop.geometry().right()
    around.hide()
    stop.hide()
    around.show()
    qtbot.wait(20)
    assert freeze.x() == 0
