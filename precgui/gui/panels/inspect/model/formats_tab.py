"""Inspect > Formats: the heat map tensor x format of a scanned model, bytes against error, and one tensor opened."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pyqtgraph as pg
from PySide6.QtCore import QModelIndex, Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QHeaderView, QLineEdit, QSplitter, QStackedWidget, QTableView, QWidget

from precgui.gui.answer import Answer, thread
from precgui.gui.kit.choice import Choice
from precgui.gui.kit.copied_rows import let_copy
from precgui.gui.kit.filled_cells import FilledCells
from precgui.gui.kit.parts import column, holder, label, named, row
from precgui.gui.kit.segmented import SegmentedChoice
from precgui.gui.panels.inspect.model.effect_view import EffectView
from precgui.gui.panels.inspect.model.format_grid import FIRST_FORMAT, NAME, VIEWS, FormatGridModel, FormatGridProxy
from precgui.gui.panels.inspect.model.tensor_detail import TensorDetail
from precgui.gui.plots.simple_plot import SimplePlot
from precgui.gui.session import Session
from precgui.gui.theme import themes
from precgui.runs.models.effects import ModelEffects
from precgui.runs.models.model_facts import format_totals
from precgui.runs.models.model_file import ModelScan, read_effects, read_model_file
from precgui.words import L_, _, translated

_ABOUT = L_(
    "Each cell is a tensor rounded to a format. An error of weights finds suspects; it is no loss: only a measurement "
    "on data tells what a format costs."
)
_NAME_PX = 260
WEIGHTS, EFFECT = L_("Weights"), L_("Effect")
LOSSLESS_DB = 80.0
_PADDING = 0.08
_NAME_GAP_PX, _LEAST_SHARE = 20, 0.25  # beside a name; of the width, for the points


class BytesPlot(SimplePlot):
    """Each format as a point: bytes of all tensors against their signal to noise."""

    def __init__(self, parent: QWidget | None = None) -> None:
        self.points: dict[str, tuple[float, float]] = {}
        super().__init__(_("Bytes of all tensors against signal to noise"), padding=0.12, parent=parent)
        self.name_axes("MiB", _("signal to noise, dB"))

    def show_points(self, points: dict[str, tuple[float, float]]) -> None:
        """Show formats by name; those that lose next to nothing are left out: others would stand on a heap."""
        self.points = {name: point for name, point in points.items() if point[0] and abs(point[1]) < LOSSLESS_DB}
        self.redraw()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if hasattr(self, "empty") and self.plotItem is not None:  # None once pyqtgraph has closed the plot
            self.redraw()  # the names keep their size

    def draw(self) -> str:
        if not self.points:
            return _("Nothing was scanned.")
        theme = themes().theme
        x, y = ([point[axis] / scale for point in self.points.values()] for axis, scale in ((0, 2**20), (1, 1.0)))
        metrics, view = self.fontMetrics(), self.plotItem.vb.size()
        lines = view.height() / (1 + 2 * _PADDING) / metrics.height()  # names that are moved up make the range longer
        right, places = max(x) + 0.04 * (max(x) - min(x) or 1.0), label_places(y, max(lines - len(y) / 2, len(y) / 2))
        self.plotItem.addItem(pg.ScatterPlotItem(x, y, size=9, pen=None, brush=theme.accent))
        for name, left, low, place in zip(self.points, x, y, places, strict=True):
            text = pg.TextItem(name, color=theme.text, anchor=(0, 0.5))
            text.setPos(right, place)
            line = pg.PlotCurveItem([left, right], [low, place], pen=pg.mkPen(theme.line, width=1))
            for item in (line, text):
                self.plotItem.addItem(item)
        names_px = max(metrics.horizontalAdvance(name) for name in self.points) + _NAME_GAP_PX
        share = max(1 - names_px / max(view.width(), 1.0), _LEAST_SHARE)
        self.plotItem.setXRange(min(x), min(x) + (right - min(x)) / share, padding=0.04)
        self.plotItem.setYRange(min(y), max(*places, *y), padding=_PADDING)
        return ""


def label_places(heights: Sequence[float], lines: float = 16) -> list[float]:
    """Heights for labels near these, each at least a line from the next; so many lines fit into the range."""
    gap = (max(heights) - min(heights) or 1.0) / max(lines, 1.0)
    places = list(heights)
    order = sorted(range(len(heights)), key=heights.__getitem__)
    for below, above in pairwise(order):
        places[above] = max(places[above], places[below] + gap)
    return places


class FormatsTab(QWidget):
    """Shows the scan that the file of the current run holds."""

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._session = session
        self._key: str | None = None
        self.grid = FormatGridModel()
        self.grid.setParent(self)
        self.sorted = FormatGridProxy(self.grid)
        self.sorted.setParent(self)
        self.table, self.detail, self.sizes = QTableView(), TensorDetail(), BytesPlot()
        self.view, self.search = Choice(_("Figure")), QLineEdit()
        self.summary = label("", "heading")
        self.page = SegmentedChoice((WEIGHTS, EFFECT), _("Errors of weights, or the measured effect"))
        self.effect, self._pages = EffectView(), QStackedWidget()
        self._reading = Answer(self, answered=self._show, failed=self._fail, title=_("Reading the scan of a model"))
        self._lay_out()
        self._connect()

    def _lay_out(self) -> None:
        for name, title in VIEWS.items():
            self.view.addItem(translated(title), name)
        self.search.setPlaceholderText(_("Tensors whose name holds ..."))
        self.search.setAccessibleName(_("Search tensors"))
        self.search.setClearButtonEnabled(True)
        self.table.setModel(self.sorted)
        self.table.setAccessibleName(_("Tensors in formats"))
        self.table.setSelectionBehavior(QTableView.SelectionBehavior.SelectRows)
        self.table.setSelectionMode(QTableView.SelectionMode.SingleSelection)
        self.table.setItemDelegate(FilledCells(self.table))
        self.table.setWordWrap(False)
        self.table.setShowGrid(False)
        let_copy(self.table)
        self.table.setSortingEnabled(True)
        self.table.verticalHeader().hide()
        self.table.verticalHeader().setDefaultSectionSize(self.fontMetrics().height() + 8)
        self.table.horizontalHeader().setResizeContentsPrecision(32)
        self.table.horizontalHeader().setHighlightSections(False)
        self.table.sortByColumn(-1, Qt.SortOrder.AscendingOrder)
        lower = QSplitter(Qt.Orientation.Horizontal)
        lower.addWidget(self.detail)
        lower.addWidget(self.sizes)
        lower.setStretchFactor(0, 3)
        lower.setStretchFactor(1, 2)
        lower.setChildrenCollapsible(False)
        bar = row(named(_("F&igure"), self.view), self.view, (self.search, 1))
        upper = holder(column(label(translated(_ABOUT), "muted"), bar, (self.table, 1), spacing=8))
        parts = QSplitter(Qt.Orientation.Vertical)
        parts.addWidget(upper)
        parts.addWidget(lower)
        parts.setStretchFactor(0, 3)
        parts.setStretchFactor(1, 2)
        for page in (parts, self.effect):
            self._pages.addWidget(page)
        column(row((self.summary, 1), self.page), (self._pages, 1), margins=(0, 8, 0, 0), on=self)

    def _connect(self) -> None:
        self.page.chosen.connect(lambda name: self._pages.setCurrentIndex(int(name == EFFECT)))
        self.view.currentIndexChanged.connect(lambda place: self.grid.show_view(self.view.itemData(place)))
        self.search.textChanged.connect(self.sorted.setFilterFixedString)
        self.table.selectionModel().currentRowChanged.connect(self._open_row)
        themes().follow(self, self.grid.redraw)

    @property
    def scan(self) -> ModelScan | None:
        return self.grid.scan

    def show_run(self, key: str | None) -> None:
        """Read the scan of another file; None shows none."""
        if key == self._key and self.scan is not None:
            return
        self._key = key
        opened = self._session.runs.get(key or "")
        path = opened.run.path if opened is not None else None
        if path is None:
            self._show((None, None))
            return
        self._reading.ask(thread(_read, path), latest_only=True)

    def _fail(self, sentence: str) -> None:
        self._show((None, None))
        self.summary.setText(sentence)

    def _show(self, found: tuple[ModelScan | None, ModelEffects | None]) -> None:
        scan, effects = found
        self.grid.show_scan(scan)
        self.effect.show_effects(effects)
        self.page.setVisible(effects is not None)
        self.page.choose(EFFECT if effects is not None else WEIGHTS)
        self.detail.show_survey(None)
        whole = format_totals(scan) if scan is not None else []
        self.sizes.show_points({each.name: (each.nbytes, each.sqnr_db) for each in whole})
        self.summary.setText(_summary(scan) if scan is not None else _("This file holds no scan of a model."))
        across = self.table.horizontalHeader()
        self.table.resizeColumnsToContents()
        if scan is not None:
            across.resizeSection(NAME, min(across.sectionSize(NAME), _NAME_PX))
            for place in range(FIRST_FORMAT, across.count()):
                across.setSectionResizeMode(place, QHeaderView.ResizeMode.Interactive)
            if scan.surveys:
                self.table.selectRow(0)

    def _open_row(self, current: QModelIndex, before: QModelIndex) -> None:
        place = self.sorted.mapToSource(current)
        self.detail.show_survey(self.grid.survey(place.row()) if place.isValid() else None)


def _read(path: Path) -> tuple[ModelScan | None, ModelEffects | None]:
    """The scan and the measurements that a file holds. Raises RunFileError."""
    return read_model_file(path), read_effects(path)


def _summary(scan: ModelScan) -> str:
    whole = len(scan.surveys)
    left = sum(bool(row["why_not"]) for row in scan.tensors)
    if not scan.is_complete:
        text = _(
            "{model}: {tensors} tensors in {formats} formats; the scan is not complete, the same command goes on with "
            "it."
        )
    elif left:
        text = _("{model}: {tensors} tensors in {formats} formats, {left} left out.")
    else:
        text = _("{model}: {tensors} tensors in {formats} formats.")
    return text.format(model=scan.architecture or _("Model"), tensors=whole, formats=len(scan.formats), left=left)
