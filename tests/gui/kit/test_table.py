"""The table of texts is filled again every second while a run goes on: only what has changed is made anew."""

from __future__ import annotations

from PySide6.QtWidgets import QHeaderView
from pytestqt.qtbot import QtBot

from precgui.gui.kit.table import TextTable


def test_that_only_changed_cells_are_made_anew_and_columns_fit_at_the_end(qtbot: QtBot) -> None:
    table = TextTable(("Part", "a", "b"), "Differences")
    qtbot.addWidget(table)
    table.show()
    table.fill([("machine", "1", ""), ("settings", "2", "")])
    kept, other, heading = table.item(0, 1), table.item(1, 1), table.horizontalHeaderItem(0)
    table.set_columns(("Part", "a", "b"))
    longer = "a longer text than before" * 3
    table.fill([("machine", "1", ""), ("settings", longer, "")])
    assert table.item(0, 1) is kept and table.horizontalHeaderItem(0) is heading
    assert table.item(1, 1) is not other
    assert table.horizontalHeader().sectionResizeMode(0) == QHeaderView.ResizeMode.ResizeToContents
    qtbot.waitUntil(lambda: table.columnWidth(1) > table.fontMetrics().horizontalAdvance(longer))
