"""Rows of a table or tree on the clipboard, as a spreadsheet takes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from PySide6.QtCore import QModelIndex, Qt
from PySide6.QtGui import QAction, QGuiApplication, QKeySequence
from PySide6.QtWidgets import QAbstractItemView, QTableView, QTreeView

from precgui.words import _

COPY_ALL = "Ctrl+Shift+C"


def let_copy(view: QTableView | QTreeView) -> None:
    """Copy the selected rows with Ctrl+C and all with Ctrl+Shift+C, with headings; Tab leaves the view.

    Qt copies the one current cell, and Tab goes from cell to cell in a table.
    """
    view.setTabKeyNavigation(False)
    keys = ((_("&Copy rows"), QKeySequence(QKeySequence.StandardKey.Copy), False),
            (_("Copy &table"), QKeySequence(COPY_ALL), True))  # fmt: skip
    for text, key, whole in keys:
        action = QAction(text, view)
        action.setShortcut(key)
        action.setShortcutContext(Qt.ShortcutContext.WidgetShortcut)
        action.triggered.connect(partial(_copy, view, whole))
        view.addAction(action)
    if view.contextMenuPolicy() == Qt.ContextMenuPolicy.DefaultContextMenu:
        view.setContextMenuPolicy(Qt.ContextMenuPolicy.ActionsContextMenu)


def _copy(view: QTableView | QTreeView, whole: bool, _checked: bool = False) -> None:
    if text := copied_text(view, whole=whole):
        QGuiApplication.clipboard().setText(text)


def copied_text(view: QTableView | QTreeView, *, whole: bool) -> str:
    """The headings and the selected rows, or all, with tabs between the cells that are shown; "" for no row."""
    rows = list(_rows(view))
    if not whole:
        chosen = {index.siblingAtColumn(0) for index in view.selectionModel().selectedIndexes()}
        rows = [row for row in rows if row in (chosen or {view.currentIndex().siblingAtColumn(0)})]
    if not rows:
        return ""
    columns = _columns(view)
    model, across = view.model(), Qt.Orientation.Horizontal
    lines = [[model.headerData(column, across) for column in columns]]
    lines += [[row.siblingAtColumn(column).data() for column in columns] for row in rows]
    if names := _names(view, rows):
        lines = [[name, *line] for name, line in zip(["", *names], lines, strict=True)]
    return "\n".join("\t".join(map(_cell, line)) for line in lines)


def _cell(value: object) -> str:
    return " ".join(str(value).split()) if value is not None else ""


def _columns(view: QTableView | QTreeView) -> list[int]:
    """The columns that are shown, from left to right."""
    header = view.horizontalHeader() if isinstance(view, QTableView) else view.header()
    places = map(header.logicalIndex, range(header.count()))
    return [column for column in places if not view.isColumnHidden(column)]


def _rows(view: QAbstractItemView) -> Iterator[QModelIndex]:
    """The first cell of each row that is shown, from above."""
    if isinstance(view, QTreeView):
        row = view.model().index(0, 0, view.rootIndex())
        if row.isValid() and view.isRowHidden(0, view.rootIndex()):
            row = view.indexBelow(row)
        while row.isValid():
            yield row.siblingAtColumn(0)
            row = view.indexBelow(row)
        return
    assert isinstance(view, QTableView)
    places = map(view.verticalHeader().logicalIndex, range(view.verticalHeader().count()))
    yield from (view.model().index(place, 0) for place in places if not view.isRowHidden(place))


def _names(view: QTableView | QTreeView, rows: Sequence[QModelIndex]) -> list[object]:
    """The headings of rows, where the table shows any."""
    if not isinstance(view, QTableView) or view.verticalHeader().isHidden():
        return []
    return [view.model().headerData(row.row(), Qt.Orientation.Vertical) for row in rows]
