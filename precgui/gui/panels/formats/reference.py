"""The table of all formats, what each is good for, and the wrong claims about them with the bits that refute them."""

from __future__ import annotations

import csv
import io
import json
from html import escape
from pathlib import Path

from PySide6.QtCore import QModelIndex, QRect, QSize, QSortFilterProxyModel, Qt, QTimer, Signal
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QShowEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHBoxLayout,
    QLineEdit,
    QPushButton,
    QSizePolicy,
    QSplitter,
    QTableView,
    QVBoxLayout,
    QWidget,
)

from precgui.citations import sources_of
from precgui.formats.catalogue import catalogue
from precgui.formats.claims import CLAIMS, Claim
from precgui.formats.model import BlockFormat, FloatFormat
from precgui.formats.registry import get, prose
from precgui.gui.kit.copied_rows import let_copy
from precgui.gui.kit.file_dialogs import ask_for_new_file
from precgui.gui.panels.formats.bit_layout import FIELDS
from precgui.gui.panels.formats.bit_paint import field_colours
from precgui.gui.panels.formats.format_table import SORT_ROLE, FormatTable, Row
from precgui.gui.panels.formats.reading import scrolled, wrapped_label
from precgui.gui.theme import themes
from precgui.words import L_, _, translated

_ONE_SCALE = L_("one {scale} scale for {block} values of {element}")
_TWO_SCALES = L_("one {scale} scale for {block} values of {element}, and one FP32 scale for the tensor")
BAR_HEIGHT = 34


class LayoutBar(QWidget):
    """Fields of one format from left to right; a bit is as wide in every format of up to 32 bits."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._fields: list[tuple[str, int]] = []
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        themes().follow(self, self.update)

    def show_format(self, row: Row) -> None:
        fmt = get(row.element) if isinstance(row, BlockFormat) else row
        if isinstance(fmt, FloatFormat):
            parts = (("sign", fmt.sign_bits), ("exponent", fmt.exponent_bits), ("mantissa", fmt.mantissa_bits))
            self._fields = [(name, bits) for name, bits in parts if bits]
        else:
            self._fields = [("value", fmt.bits)]
        words = ", ".join(f"{bits} {translated(FIELDS[name])}" for name, bits in self._fields)
        self.setAccessibleName(_("Bits of {name}: {words}").format(name=fmt.name, words=words))
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(400, BAR_HEIGHT)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        theme, left = themes().theme, 0
        total = max(sum(bits for _, bits in self._fields), 32)
        unit = min(self.width() / total, 26.0)
        for name, bits in self._fields:
            width = round(unit * bits)
            box = QRect(left, 0, width, BAR_HEIGHT).adjusted(0, 0, -2, 0)
            colour = field_colours(theme)[name]
            painter.fillRect(box, QColor(theme.blend(colour, 0.85)))
            painter.setPen(QColor(theme.base))
            words = f"{bits} {translated(FIELDS[name])}"
            if self.fontMetrics().horizontalAdvance(words) >= width - 8:
                words = str(bits)
            painter.drawText(box, Qt.AlignmentFlag.AlignCenter, words)
            left += width
        painter.end()


class ReferenceTab(QWidget):
    """`number_requested` asks for a number to be shown in some formats."""

    number_requested = Signal(str, list)

    def __init__(self, session: object, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._has_fitted = False
        self.model = FormatTable()
        self.proxy = QSortFilterProxyModel(self)
        self.proxy.setSourceModel(self.model)
        self.proxy.setSortRole(SORT_ROLE)
        self.proxy.setFilterKeyColumn(-1)
        self.proxy.setFilterCaseSensitivity(Qt.CaseSensitivity.CaseInsensitive)
        self.table = self._make_table()
        self._splitter = QSplitter(Qt.Orientation.Vertical)
        self._splitter.setChildrenCollapsible(False)
        self._splitter.addWidget(self.table)
        self._splitter.addWidget(self._make_lower())
        self._splitter.setSizes([420, 300])
        column = QVBoxLayout(self)
        column.setContentsMargins(4, 12, 4, 4)
        column.addLayout(self._make_tools())
        column.addWidget(self._splitter, 1)
        self.table.selectRow(0)

    def _make_tools(self) -> QHBoxLayout:
        self.filter = QLineEdit()
        self.filter.setPlaceholderText(_("Filter: fp8, block, 1 + 5 …"))
        self.filter.setClearButtonEnabled(True)
        self.filter.setAccessibleName(_("Filter formats"))
        self.filter.textChanged.connect(self.proxy.setFilterFixedString)
        export = QPushButton(_("Export…"))
        export.setToolTip(_("Save the table as CSV or, with all fields, as JSON"))
        export.clicked.connect(self._ask_export)
        tools = QHBoxLayout()
        tools.addWidget(self.filter, 1)
        tools.addWidget(export)
        return tools

    def showEvent(self, event: QShowEvent) -> None:
        """Fit the columns once, when the style is known; then they are as a person leaves them."""
        super().showEvent(event)
        if not self._has_fitted:
            self._has_fitted = True
            QTimer.singleShot(0, self, lambda: self.table.resizeColumnsToContents())

    def _make_table(self) -> QTableView:
        table = QTableView()
        table.setModel(self.proxy)
        table.setSortingEnabled(True)
        table.horizontalHeader().setSortIndicator(-1, Qt.SortOrder.AscendingOrder)
        table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        table.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        table.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        let_copy(table)
        table.setShowGrid(False)
        table.setWordWrap(False)
        table.verticalHeader().hide()
        table.verticalHeader().setDefaultSectionSize(26)
        table.setMinimumHeight(160)
        table.setAccessibleName(_("Formats"))
        table.selectionModel().currentRowChanged.connect(self._show_row)
        return table

    def _make_lower(self) -> QSplitter:
        self.title = wrapped_label("heading")
        self.bar = LayoutBar()
        self.words = wrapped_label(rich=True)
        about = QWidget()
        column = QVBoxLayout(about)
        for widget in (self.title, self.bar, self.words):
            column.addWidget(widget)
        column.addStretch(1)
        claims = QWidget()
        list_column = QVBoxLayout(claims)
        heading = wrapped_label("heading")
        heading.setText(_("Claims that are wrong"))
        list_column.addWidget(heading)
        for claim in CLAIMS:
            list_column.addWidget(self._claim_view(claim))
        list_column.addStretch(1)
        lower = QSplitter(Qt.Orientation.Horizontal)
        lower.setChildrenCollapsible(False)
        lower.addWidget(scrolled(about, 240, 120))
        lower.addWidget(scrolled(claims, 240, 120))
        lower.setSizes([500, 500])
        return lower

    def _claim_view(self, claim: Claim) -> QWidget:
        view = wrapped_label(rich=True)
        evidence = "".join(f"<br><code>{translated(line)}</code>" for line in claim.evidence())
        link = _('<br><a href="show">Show the bits</a>') if claim.number else ""
        view.setText(f"<b><s>{translated(claim.claim)}</s></b><br>{translated(claim.truth)}{evidence}{link}")
        view.setTextInteractionFlags(Qt.TextInteractionFlag.TextBrowserInteraction)
        view.linkActivated.connect(lambda _href: self.number_requested.emit(claim.number, list(claim.formats)))
        return view

    def _show_row(self, current: QModelIndex, _before: QModelIndex) -> None:
        if not current.isValid():
            return
        row = self.model.rows[self.proxy.mapToSource(current).row()]
        self.title.setText(f"{row.name}: {translated(row.title)}")
        self.bar.show_format(row)
        words = prose(row.name)
        assert words is not None
        lines = [
            (_("Strong"), translated(words.strengths)), (_("Weak"), translated(words.weaknesses)),
            (_("Used"), translated(words.used)),
        ]  # fmt: skip
        if words.torch:
            lines.append((_("In torch"), f"<code>{words.torch}</code>"))
        lines += [(_("Source"), escape(translated(source.sentence))) for source in sources_of(words.source)]
        if isinstance(row, BlockFormat):
            scales = _TWO_SCALES if row.two_level else _ONE_SCALE
            lines.insert(
                0, (_("Block"), translated(scales).format(scale=row.scale, block=row.block, element=row.element))
            )
        elif row.aliases:
            lines.append((_("Also called"), ", ".join(row.aliases)))
        rows = "".join(f"<tr><td><b>{name}</b>&nbsp;&nbsp;</td><td>{said}</td></tr>" for name, said in lines)
        self.words.setText(f"<table>{rows}</table>")

    # Export

    def _ask_export(self) -> None:
        kinds = "CSV (*.csv);;JSON (*.json)"
        ask_for_new_file(self, _("Export the table of formats"), "formats.csv", kinds, self.export)

    def export(self, path: Path) -> None:
        """Write the table as CSV, or everything as JSON if the name ends so."""
        if path.suffix.lower() == ".json":
            words = json.dumps({"formats": catalogue()}, indent=1)
        else:
            buffer = io.StringIO()
            csv.writer(buffer, lineterminator="\n").writerows(self.model.as_text())
            words = buffer.getvalue()
        try:
            path.write_text(words, encoding="utf-8")
        except OSError as error:
            self.title.setText(_("{path} cannot be written: {strerror}").format(path=path, strerror=error.strerror))
