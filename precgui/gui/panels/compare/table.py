"""The table of Compare: a row a run, a column a figure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QFont, QResizeEvent
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QTableWidget, QTableWidgetItem, QToolButton, QWidget

from precgui.events import Metric
from precgui.gui.format_colours import colour_chip, precision_colour
from precgui.gui.kit.copied_rows import let_copy
from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.open_run import OpenRun
from precgui.gui.plots.export import SWATCH, swatch_icon
from precgui.runs.caveats import marked
from precgui.runs.compared import Compared, RunComparison
from precgui.runs.facts import seconds_text
from precgui.runs.figures import FIGURES
from precgui.runs.metric import difference_text, in_text, shared, value_text, way_text
from precgui.runs.ratio_interval import ratio_text
from precgui.words import L_, Sentence, _, n_, together, translated

UNKNOWN = "–"
FROM_ONE_SEED = L_("To the baseline, from one run each: one seed is no measurement, another one moves it, too")
NAME_WIDTH, NARROW_NAME_WIDTH = 180, 100  # pixels of the names, and in a table below NARROW
NARROW, WIDEST_PX, NARROW_WIDEST_PX = 900, 200, 150  # longer cells are elided; their tool tip has all of it
METRIC, DIFFERENCE = 2, 3  # columns
# The columns by importance: those that do not fit are hidden from the end.
FIRST = ("Precision", "Metric", "Difference", "Speed-up", FIGURES["memory_bytes"].title, "Status")
TEXTS = 2  # the first columns hold words, the others numbers
MOST_ROWS, LEAST_ROWS = 8, 2  # visible without scrolling
LEFT = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter


def figure(value: float | None, form: str) -> str:
    """A number in a format such as `{:.3g} s`; a dash when it was not measured."""
    return UNKNOWN if value is None else form.format(value)


def _step_time(run: Compared) -> str:
    return UNKNOWN if run.step_s_median is None else marked(seconds_text(run.step_s_median), run.arithmetic)


def _speedup(run: Compared) -> str:
    unknown = run.why_no_ratio or UNKNOWN
    return ratio_text(run.speedup, run.speedup_interval, unknown, run.arithmetic, run.why_no_interval)


def _energy_ratio(run: Compared) -> str:
    unknown = run.why_no_ratio or UNKNOWN
    return ratio_text(run.energy_ratio, run.energy_ratio_interval, unknown, why_none=run.why_no_interval)


def _difference(run: Compared) -> str:
    return difference_text(Metric(**run.metric), run.accuracy_delta, run.why_no_difference or UNKNOWN)


@dataclass(frozen=True)
class _Column:
    """A column: its heading, its text for a run, what it means."""

    title: str
    text: Callable[[Compared], str]
    tooltip: str


def _shared(key: str, text: Callable[[Compared], str]) -> _Column:
    """The column of a figure that other tables show, too."""
    return _Column(FIGURES[key].title, text, FIGURES[key].about)


def _memory(run: Compared) -> str:
    peak = FIGURES["memory_bytes"]
    value = None if run.memory_peak_bytes is None else peak.scale * run.memory_peak_bytes
    return marked(
        figure(value, "{:,.1f}" + peak.suffix), "emulated" if run.emulated and value is not None else "native"
    )


COLUMNS = (
    _Column(L_("Precision"), lambda r: r.precision, L_("How the run uses number formats")),
    _Column(L_("Status"), lambda r: r.outcome or r.status,
            L_("How the run ended, or that it goes on; unknown of event files")),
    _Column(L_("Metric"), lambda r: value_text(Metric(**r.metric), r.val_accuracy, UNKNOWN),
            L_("On the validation set")),
    _Column(L_("Difference"), _difference, FROM_ONE_SEED),
    _shared("train_loss", lambda r: figure(r.train_loss, "{:.4g}")),
    _shared("step_s", _step_time),
    _shared("cpu_s", lambda r: UNKNOWN if r.cpu_s_median is None else seconds_text(r.cpu_s_median)),
    _Column(L_("Speed-up"), _speedup,
            L_("Samples per second over the baseline's, above 1 is faster, with 95 % of what varied within the two "
               "runs; of slow arithmetic it says nothing about the format")),
    _shared("time_s", lambda r: figure(r.time_s, "{:.1f} s")),
    _shared("memory_bytes", _memory),
    _Column(L_("Energy"), lambda r: figure(r.energy_j, "{:.4g} J"), L_("Of all sensors, over the run")),
    _Column(L_("Energy ratio"), _energy_ratio,
           L_("Energy of a step over the baseline's, with 95 % of what varied within the runs and the sensors' error")),
    _shared("tensor_use", lambda r: figure(r.tensor_use, "{:.0%}")),
    _Column(L_("Skipped"), lambda r: figure(r.skipped_steps, "{}"), L_("Steps skipped for Inf or NaN gradients")),
    _Column(L_("Not finite"), lambda r: str(r.nonfinite_events), L_("Events of a loss or gradient that is not finite")),
)  # fmt: skip
_WITH_CAVEAT = ("Speed-up", *(FIGURES[key].title for key in ("step_s", "time_s", "memory_bytes")))


class CompareTable(QTableWidget):
    """The table of runs, as high as its rows need, up to eight of them."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(0, len(COLUMNS), parent)
        self._mixed = False  # whether the runs have different metrics
        self._rows: list[tuple[OpenRun, Compared, bool]] = []  # with whether it is the baseline
        self.all_columns = QToolButton(self)
        self.all_columns.setProperty("kind", "fold")
        self.all_columns.setCheckable(True)
        self.all_columns.hide()
        self.all_columns.toggled.connect(lambda _: self._fit())
        self.setAccessibleName(_("Comparison of the open runs"))
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setShowGrid(False)
        self.setWordWrap(False)
        let_copy(self)
        self.setCornerButtonEnabled(False)
        self.verticalHeader().setToolTip(_("Select runs to see only their curves, beside the baseline's"))
        for column, each in enumerate(COLUMNS):
            heading = QTableWidgetItem(translated(each.title))
            heading.setToolTip(plain_tip(translated(each.tooltip)))
            heading.setTextAlignment(LEFT if column < TEXTS else RIGHT)
            self.setHorizontalHeaderItem(column, heading)
        across, down = self.horizontalHeader(), self.verticalHeader()
        across.setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        across.setHighlightSections(False)
        for place, title in enumerate(FIRST):
            across.moveSection(across.visualIndex([each.title for each in COLUMNS].index(title)), place)
        down.setSectionResizeMode(QHeaderView.ResizeMode.Fixed)
        down.setDefaultSectionSize(self.fontMetrics().height() + 16)
        down.setDefaultAlignment(LEFT)
        down.setHighlightSections(False)
        down.setIconSize(SWATCH)

    def show_comparison(self, opened: list[OpenRun], comparison: RunComparison) -> None:
        """A row for each run, in the order of both; the baseline's line in the picture is the broad one."""
        self._name_metric(comparison)
        if self.rowCount() != len(opened):
            self.clearSelection()
            self.setRowCount(len(opened))
            self._take_height()
        self._rows = [
            (run, row, row.run == comparison.baseline) for run, row in zip(opened, comparison.runs, strict=True)
        ]
        for row, (run, figures, is_base) in enumerate(self._rows):
            self._name_row(row, run, figures, is_base)
            self._fill_row(row, figures, is_base=is_base)
        self._fit()

    def chosen(self) -> list[int]:
        """The selected rows."""
        return sorted(index.row() for index in self.selectionModel().selectedRows())

    def choose(self, rows: list[int]) -> None:
        """Select these rows."""
        self.blockSignals(True)
        self.clearSelection()
        for row in rows:
            for column in range(self.columnCount()):
                if (item := self.item(row, column)) is not None:
                    item.setSelected(True)
        self.blockSignals(False)
        self.itemSelectionChanged.emit()

    def mark(self, current: int) -> None:
        """Set the name of the current run in bold; -1 for none."""
        for row in range(self.rowCount()):
            if (head := self.verticalHeaderItem(row)) is not None:
                font = QFont(self.font())
                font.setBold(row == current)
                head.setFont(font)

    def sizeHint(self) -> QSize:
        return QSize(super().sizeHint().width(), self.maximumHeight())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if event.size().width() != event.oldSize().width():
            for row, (run, figures, is_base) in enumerate(self._rows[: self.rowCount()]):
                self._name_row(row, run, figures, is_base)
            self._fit()

    def _fit(self) -> None:
        """Hide columns that say nothing, and from the least important on those without room; or show all of them."""
        across, everything = self.horizontalHeader(), self.all_columns.isChecked()
        widest = NARROW_WIDEST_PX if self.width() < NARROW else WIDEST_PX
        left = self.width() - self.verticalHeader().sizeHint().width() - 2 * self.frameWidth()
        left -= self.verticalScrollBar().sizeHint().width()
        policies = Qt.ScrollBarPolicy
        self.setHorizontalScrollBarPolicy(policies.ScrollBarAsNeeded if everything else policies.ScrollBarAlwaysOff)
        hidden, margin, spare, wide = 0, self._heading_margin(), left, 0
        for place in range(len(COLUMNS)):
            column = across.logicalIndex(place)
            needed = max(self.sizeHintForColumn(column), self._heading_px(column) + margin)
            left -= 0 if self._is_silent(column) else min(needed, widest)
            fits = place == 0 or (left >= 0 and not self._is_silent(column))
            hidden += not fits
            if fits:
                spare -= min(needed, widest)
                wide += needed > widest
            self.setColumnHidden(column, not (fits or everything))
        if wide and spare > 0:  # for long cells
            widest += spare // wide
        across.setMaximumSectionSize(16777215 if everything else widest)
        self.all_columns.setVisible(hidden > 0)
        more = n_("{count} more column", "{count} more columns", hidden).format(count=hidden)
        self.all_columns.setText(_("Fewer columns") if everything else more)
        self._take_height()

    def _heading_px(self, column: int) -> int:
        heading = self.horizontalHeaderItem(column)
        return self.horizontalHeader().fontMetrics().horizontalAdvance(heading.text() if heading is not None else "")

    def _heading_margin(self) -> int:
        """Around the text of a heading. Qt says the width of those alone that are shown, as the first always is."""
        first = self.horizontalHeader().logicalIndex(0)
        return self.horizontalHeader().sectionSizeHint(first) - self._heading_px(first)

    def _is_silent(self, column: int) -> bool:
        """Whether all cells of a column say that there is nothing to say."""
        cells = [item for row in range(self.rowCount()) if (item := self.item(row, column)) is not None]
        return all(item.text() in (UNKNOWN, "0", _("completed")) for item in cells)

    def _take_height(self) -> None:
        row = self.verticalHeader().defaultSectionSize()
        remainder = self.horizontalHeader().sizeHint().height() + 2 * self.frameWidth()
        if self.all_columns.isChecked():
            remainder += self.horizontalScrollBar().sizeHint().height()
        self.setMaximumHeight(remainder + row * min(self.rowCount(), MOST_ROWS))
        self.setMinimumHeight(remainder + row * min(self.rowCount(), LEAST_ROWS))

    def _name_metric(self, comparison: RunComparison) -> None:
        """Call the metric as the task of the runs calls it, or say that they have different ones."""
        common = shared(Metric(**row.metric) for row in comparison.runs)
        self._mixed = common is None
        about = L_("On the validation set, by the task of each run")
        if common:
            about = together(common.about, way_text(common), between="; ")
        self._head(METRIC, common.title if common else L_("Metric"), about)
        lower = common is not None and not common.higher_is_better
        self._head(DIFFERENCE, L_("Difference (lower is better)") if lower else L_("Difference"), FROM_ONE_SEED)

    def _head(self, column: int, title: str, text: str) -> None:
        if (heading := self.horizontalHeaderItem(column)) is not None:
            heading.setText(translated(title))
            heading.setToolTip(plain_tip(translated(text)))

    def _name_row(self, row: int, opened: OpenRun, compared: Compared, is_base: bool) -> None:
        width = NARROW_NAME_WIDTH if self.width() < NARROW else NAME_WIDTH
        base = _("{name} (baseline)")
        if not is_base:  # the row of the baseline has room for that word
            width += self.fontMetrics().horizontalAdvance(base.format(name=""))
        name = self.fontMetrics().elidedText(opened.name, Qt.TextElideMode.ElideMiddle, width)
        bold = self.verticalHeaderItem(row)
        shown = base.format(name=name) if is_base else name
        head = QTableWidgetItem(swatch_icon(opened, 5.0 if is_base else 2.0), shown)
        place = compared.path or _("not saved")
        head.setToolTip(plain_tip(f"{opened.name}\n{place}"))
        if bold is not None:
            head.setFont(bold.font())  # of the current run
        self.setVerticalHeaderItem(row, head)

    def _fill_row(self, row: int, compared: Compared, *, is_base: bool) -> None:
        for column, each in enumerate(COLUMNS):
            text = each.text(compared)
            if column == DIFFERENCE and not is_base and compared.accuracy_delta is not None:
                text = compared.with_remark(text)
            if column == METRIC and self._mixed and text != UNKNOWN:
                text = Sentence("{metric} {value}", metric=in_text(compared.metric["title"]), value=text)
            item = QTableWidgetItem(translated(text))
            item.setToolTip(plain_tip(translated(_why(each, compared) or text)))
            if each.title == "Precision":
                item.setIcon(colour_chip(precision_colour(compared.precision)))
            item.setTextAlignment(LEFT if column < TEXTS else RIGHT)
            self.setItem(row, column, item)


def _why(column: _Column, compared: Compared) -> str:
    """Why a cell holds what it holds, where that is not plain."""
    why = compared.withheld or (compared.accuracy_withheld if column.title == "Difference" else "")
    if column.title in ("Difference", "Speed-up") and why:
        return Sentence("Not comparable with the baseline: {why}.", why=why)
    return compared.caveat if column.title in _WITH_CAVEAT else ""
