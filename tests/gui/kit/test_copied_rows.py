"""Selected rows of tables and trees go to the clipboard with their headings; Tab does not stay in a table."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QAbstractItemView, QTableWidget, QTableWidgetItem, QTreeWidget, QTreeWidgetItem
from pytestqt.qtbot import QtBot

from precgui.gui.kit.copied_rows import copied_text, let_copy
from precgui.gui.kit.table import TextTable


def test_that_selected_rows_are_copied_as_they_are_shown(qtbot: QtBot) -> None:
    """Qt copied the one cell that was current."""
    table = TextTable(("Run", "Accuracy", "Time"), "Runs")
    qtbot.addWidget(table)
    table.fill([("one", "99 %", "3 s"), ("two\tnamed", "98 %\n(one seed)", "2 s"), ("three", "97 %", "1 s")])
    table.setColumnHidden(2, True)
    table.horizontalHeader().moveSection(1, 0)
    table.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
    assert copied_text(table, whole=False) == ""
    table.selectRow(1)
    rows = table.actions()
    rows[0].trigger()
    assert QGuiApplication.clipboard().text() == "Accuracy\tRun\n98 % (one seed)\ttwo named"
    rows[1].trigger()
    assert QGuiApplication.clipboard().text().count("\n") == 3
    assert not table.tabKeyNavigation()


def test_that_names_of_rows_and_branches_of_a_tree_are_copied(qtbot: QtBot) -> None:
    table = QTableWidget(2, 1)
    qtbot.addWidget(table)
    let_copy(table)
    table.setHorizontalHeaderLabels(["precision"])
    table.setVerticalHeaderLabels(["first", "second"])
    for place, text in enumerate(("fp32", "bf16")):
        table.setItem(place, 0, QTableWidgetItem(text))
    table.setRowHidden(0, True)
    assert copied_text(table, whole=True) == "\tprecision\nsecond\tbf16"
    tree = QTreeWidget()
    qtbot.addWidget(tree)
    tree.setHeaderLabels(["part", "bytes"])
    top = QTreeWidgetItem(tree, ["weights", "8"])
    QTreeWidgetItem(top, ["head", "2"])
    QTreeWidgetItem(tree, ["gradients", "8"])
    let_copy(tree)
    assert copied_text(tree, whole=True) == "part\tbytes\nweights\t8\ngradients\t8"
    top.setExpanded(True)
    top.child(0).setSelected(True)
    assert copied_text(tree, whole=False) == "part\tbytes\nhead\t2"
    assert tree.contextMenuPolicy() == Qt.ContextMenuPolicy.ActionsContextMenu
