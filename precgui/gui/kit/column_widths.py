"""Columns as wide as their contents, measured when these change.

Qt's `ResizeToContents` asks for every cell again at each change of the layout, such as a banner that comes: with the
cells of a model in Python up to half a second at once.
"""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QEvent, QObject, QTimer, Signal
from PySide6.QtWidgets import QHeaderView, QTableView


class ColumnWidths(QObject):
    """Follows the model, the font and the style of a table; columns that stretch are left alone.

    `widths` are what the columns need, empty until they were measured; `fitted` comes when they have been given it.
    """

    fitted = Signal()

    def __init__(self, table: QTableView, content_px: Callable[[int], int] | None = None) -> None:
        """`content_px`: the width that the cells of a column need; else Qt asks the first of them and those in view."""
        super().__init__(table)
        self._table, self._content_px = table, content_px or table.sizeHintForColumn
        self.widths: list[int] = []
        self._later = QTimer(self, singleShot=True, interval=0)
        self._later.timeout.connect(self.fit)
        table.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Fixed)
        model = table.model()
        for change in (
            model.dataChanged, model.headerDataChanged, model.rowsInserted, model.rowsRemoved, model.modelReset,
            model.layoutChanged,
        ):  # fmt: skip
            change.connect(self._follow)
        table.installEventFilter(self)

    def _follow(self) -> None:
        if self._table.isVisible():
            self._later.start()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Show:
            self.fit()
        elif event.type() in (QEvent.Type.FontChange, QEvent.Type.StyleChange):
            self._follow()
        return super().eventFilter(watched, event)

    def fit(self) -> None:
        """Measure the columns and give them what they need, now."""
        self._later.stop()
        across = self._table.horizontalHeader()
        least, most = across.minimumSectionSize(), across.maximumSectionSize()
        self.widths = [max(self._content_px(each), across.sectionSizeHint(each)) for each in range(across.count())]
        for column, width in enumerate(self.widths):
            if across.sectionResizeMode(column) == QHeaderView.ResizeMode.Fixed:
                across.resizeSection(column, min(max(width, least), most))
        self.fitted.emit()
