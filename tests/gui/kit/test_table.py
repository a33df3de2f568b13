"""The table of texts is filled again every second while a run goes on: only what has changed is announced."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QModelIndex, Qt
from PySide6.QtGui import QColor
from pytestqt.qtbot import QtBot

from precgui.gui.kit.table import MEASURED_ROWS, RIGHT, Cell, CellModel, TextTable
from precgui.gui.theme import themes


def test_that_only_changed_cells_are_announced_and_columns_fit_at_the_end(qtbot: QtBot) -> None:
    table = TextTable(("Part", "a", "b"), "Differences")
    qtbot.addWidget(table)
    table.show()
    table.fill([("machine", "1", ""), ("settings", "2", "")])
    changed: list[tuple[int, int]] = []

    def note(index: QModelIndex) -> None:
        changed.append((index.row(), index.column()))

    table.cells.dataChanged.connect(note)
    titles: list[int] = []
    table.cells.headerDataChanged.connect(lambda _, first: titles.append(first))
    table.set_columns(("Part", "a", "b"))
    longer = "a longer text than before" * 3
    table.fill([("machine", "1", ""), ("settings", longer, "")])
    assert changed == [(1, 1)] and titles == []
    qtbot.waitUntil(lambda: table.columnWidth(1) > table.fontMetrics().horizontalAdvance(longer))


def test_that_columns_are_measured_when_the_texts_change_and_not_when_the_table_is_resized(
    qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each change of the layout, such as a banner that comes, asked a large table for every cell: 0.67 s at once."""
    asked: list[int] = []
    answer = CellModel.data

    def data(self: CellModel, index: QModelIndex, role: int = Qt.ItemDataRole.DisplayRole) -> object:
        asked.append(role)
        return answer(self, index, role)

    monkeypatch.setattr(CellModel, "data", data)
    table = TextTable([f"column {n}" for n in range(30)], "Many")
    qtbot.addWidget(table)
    texts = [[f"row {row} has {'wide ' * (row == 20)}{column}" for column in range(30)] for row in range(MEASURED_ROWS)]
    table.resize(600, 200)
    table.show()
    table.fill(texts)
    assert len(asked) < 30 * MEASURED_ROWS
    for column in range(29):
        assert table.columnWidth(column) >= table.fontMetrics().horizontalAdvance(texts[20][column])
    asked.clear()
    table.resize(700, 200)
    table.doItemsLayout()
    assert asked == []
    narrow = table.columnWidth(0)
    font = table.font()
    font.setPointSizeF(2 * font.pointSizeF())
    table.setFont(font)
    qtbot.waitUntil(lambda: table.columnWidth(0) > 1.5 * narrow)


def test_that_rows_and_columns_come_and_go_and_a_selected_row_stays(qtbot: QtBot) -> None:
    table = TextTable(("Run", "Loss"), "Runs")
    qtbot.addWidget(table)
    table.fill([("a", "1"), ("b", "2"), ("c", "3")])
    table.selectRow(1)
    table.fill([("a", "1"), ("b", "2.5")])
    assert table.texts() == [("a", "1"), ("b", "2.5")]
    assert {index.row() for index in table.selectedIndexes()} == {1}
    table.set_columns(("Run", "Loss", "Time"))
    assert table.titles() == ("Run", "Loss", "Time") and table.texts() == []
    table.fill([("a", "1", "2 s")])
    assert table.texts() == [("a", "1", "2 s")]


def test_that_a_cell_is_shown_with_its_colour_side_and_tip_and_never_as_html(qtbot: QtBot) -> None:
    table = TextTable((Cell("Loss", tip="of validation", align=RIGHT),), "Runs")
    qtbot.addWidget(table)
    table.fill([(Cell("<b>1</b>", colour="#112233", background="#445566", align=RIGHT),), (Cell("2", tip=""),)])
    first, second = table.cells.index(0, 0), table.cells.index(1, 0)
    assert first.data(Qt.ItemDataRole.ForegroundRole) == QColor("#112233")
    assert first.data(Qt.ItemDataRole.BackgroundRole) == QColor("#445566")
    assert first.data(Qt.ItemDataRole.TextAlignmentRole) == RIGHT
    assert "<b>" not in first.data(Qt.ItemDataRole.ToolTipRole)
    assert second.data(Qt.ItemDataRole.ToolTipRole) == ""
    across = Qt.Orientation.Horizontal
    assert table.cells.headerData(0, across, Qt.ItemDataRole.ToolTipRole) == "of validation"
    assert table.cells.headerData(0, across, Qt.ItemDataRole.TextAlignmentRole) == RIGHT


def test_that_a_verdict_has_the_colour_of_its_severity(qtbot: QtBot) -> None:
    table = TextTable(("Verdict",), "Verdicts")
    qtbot.addWidget(table)
    table.fill([("missed by 2 %",), ("met",)], 0, ["missed", "met"])
    colours = [table.cells.index(row, 0).data(Qt.ItemDataRole.ForegroundRole) for row in (0, 1)]
    assert colours == [QColor(themes().theme.error), QColor(themes().theme.text)]


def test_that_a_narrow_table_gives_up_columns_and_tells_them_in_its_first_cells(qtbot: QtBot) -> None:
    table = TextTable(("Group", "Mean", "Difference", "Reason"), "groups")
    qtbot.addWidget(table)
    table.give_up((3, 1))
    table.fill([("fp32", "99.16 %", "-0.11 points to the baseline", "the interval lies inside")])

    def shown(width: int) -> list[str]:
        table.resize(width, 200)
        return [title for column, title in enumerate(table.titles()) if not table.isColumnHidden(column)]

    table.show()
    assert shown(900) == ["Group", "Mean", "Difference", "Reason"]
    needed = sum(table.sizeHintForColumn(column) for column in (0, 1, 2)) + 100
    assert shown(needed) == ["Group", "Mean", "Difference"]
    assert shown(260) == ["Group", "Difference"]
    assert shown(900) == ["Group", "Mean", "Difference", "Reason"]
    tip = table.model().index(0, 0).data(Qt.ItemDataRole.ToolTipRole)
    assert "Mean: 99.16 %" in tip and "Reason: the interval" in tip
