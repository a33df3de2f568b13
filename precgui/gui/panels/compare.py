"""Compare: the open runs side by side, each figure beside that of a baseline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QColor, QIcon, QPixmap, QShowEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QComboBox,
    QHBoxLayout,
    QHeaderView,
    QLabel,
    QStackedWidget,
    QTableWidget,
    QTableWidgetItem,
    QVBoxLayout,
    QWidget,
)

from precgui.events import Metric
from precgui.gui.editors import ignore_wheel
from precgui.gui.empty import EmptyState
from precgui.gui.state import State
from precgui.gui.theme import themes
from precgui.runs.compare import Compared, Comparison, compare, names
from precgui.runs.metric import difference_text, in_text, shared, value_text, way_text

REFRESH_MS = 1000
UNKNOWN = "–"
NAME_WIDTH = 180
METRIC, DIFFERENCE = 2, 3  # columns
TEXTS = 2  # the first columns hold words, the others numbers
LEFT = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter


def figure(value: float | None, form: str) -> str:
    """A number in a format such as `{:.3g} s`; a dash when it was not measured."""
    return UNKNOWN if value is None else form.format(value)


def _mib(value: int | None) -> float | None:
    return None if value is None else value / 2**20


@dataclass(frozen=True)
class Figure:
    """A column: its heading, its text for a run, what it means."""

    title: str
    text: Callable[[Compared], str]
    told: str


FIGURES = (
    Figure("Precision", lambda r: r.precision, "How the run uses number formats"),
    Figure("Status", lambda r: r.status, "How the run ended, or that it goes on"),
    Figure("Metric", lambda r: value_text(Metric(**r.metric), r.val_accuracy, UNKNOWN), "On the validation set"),
    Figure("Difference", lambda r: difference_text(Metric(**r.metric), r.accuracy_delta, UNKNOWN), "To the baseline"),
    Figure("Final loss", lambda r: figure(r.train_loss, "{:.4g}"), "Mean training loss of the last epoch"),
    Figure("Step time", lambda r: figure(r.step_s_median and 1e3 * r.step_s_median, "{:.3g} ms"), "Median of a step"),
    Figure("Speed-up", lambda r: figure(r.speedup, "{:.2f}x" + " (emulated)" * r.emulated),
           "Samples per second over the baseline's; of emulated arithmetic it says nothing about hardware"),
    Figure("Time", lambda r: figure(r.time_s, "{:.1f} s"), "From the start to the last step"),
    Figure("Peak memory", lambda r: figure(_mib(r.memory_peak_bytes), "{:,.1f} MiB"),
           "Of the device's allocator; on a CPU of all tensors in one step"),
    Figure("Energy", lambda r: figure(r.energy_j, "{:.4g} J"), "Of all sensors, over the run"),
    Figure("Tensor cores", lambda r: figure(r.tensor_use, "{:.0%}"), "Share of the time in which they worked, by GPM"),
    Figure("Skipped", lambda r: figure(r.skipped_steps, "{}"), "Steps skipped for Inf or NaN gradients"),
    Figure("Not finite", lambda r: str(r.nonfinite_events), "Events of a loss or gradient that is not finite"),
)  # fmt: skip


class ComparePanel(QWidget):
    """A row a run; the baseline is the first FP32 run unless another is chosen. Follows a run that goes on."""

    def __init__(self, state: State, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._state = state
        self.baseline = QComboBox(self)
        self.baseline.setAccessibleName("Baseline")
        self.baseline.setMinimumContentsLength(24)
        self.baseline.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        ignore_wheel(self.baseline)
        self.note = QLabel(self)
        self.note.setProperty("kind", "muted")
        self.note.setWordWrap(True)
        self.table = self._make_table()
        self.empty = EmptyState(
            "compare",
            "No runs are open",
            "Open two or more runs, or train the same recipe in another precision, and their accuracy, time, memory "
            "and energy stand here side by side.",
            "Choose runs",
            self,
        )
        self._mixed = False  # whether the runs have different metrics
        self._timer = QTimer(self, singleShot=True, interval=REFRESH_MS)
        self._lay_out()
        self._timer.timeout.connect(self.refresh)
        self.baseline.activated.connect(lambda _: self.refresh())
        self.empty.button.clicked.connect(lambda: state.panel_wanted.emit("library"))
        for signal in (state.run_added, state.run_removed, state.run_changed):
            signal.connect(lambda _: self.refresh())
        state.data_arrived.connect(lambda _: self._timer.isActive() or self._timer.start())
        themes().changed.connect(self.refresh)
        self.refresh()

    def _make_table(self) -> QTableWidget:
        table = QTableWidget(0, len(FIGURES), self)
        table.setAccessibleName("Comparison of the open runs")
        table.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        table.setShowGrid(False)
        table.setTabKeyNavigation(False)
        for column, each in enumerate(FIGURES):
            heading = QTableWidgetItem(each.title)
            heading.setToolTip(each.told)
            heading.setTextAlignment(LEFT if column < TEXTS else RIGHT)
            table.setHorizontalHeaderItem(column, heading)
        table.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        table.horizontalHeader().setHighlightSections(False)
        table.verticalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Fixed)
        table.verticalHeader().setDefaultSectionSize(self.fontMetrics().height() + 16)
        table.verticalHeader().setDefaultAlignment(LEFT)
        table.verticalHeader().setHighlightSections(False)
        table.setCornerButtonEnabled(False)
        return table

    def _lay_out(self) -> None:
        title = QLabel("Compare", self)
        title.setProperty("kind", "title")
        label = QLabel("Baseline", self)
        label.setBuddy(self.baseline)
        header = QHBoxLayout()
        header.setSpacing(8)
        header.addWidget(title)
        header.addStretch(1)
        header.addWidget(label)
        header.addWidget(self.baseline)
        page = QWidget(self)
        column = QVBoxLayout(page)
        column.setContentsMargins(24, 16, 24, 24)
        column.setSpacing(12)
        column.addLayout(header)
        column.addWidget(self.note)
        column.addWidget(self.table, 1)
        self.pages = QStackedWidget(self)
        self.pages.addWidget(page)
        self.pages.addWidget(self.empty)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self.pages)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.refresh()

    def refresh(self) -> None:
        """Compare anew; nothing is computed while the panel is not seen."""
        opened = self._state.runs
        self.pages.setCurrentIndex(0 if opened else 1)
        if not self.isVisible() or not opened:
            return
        wanted = self.baseline.currentData() if self.baseline.currentIndex() > 0 else None
        keys, runs = list(opened), [opened[key].run for key in opened]
        found = compare(runs, names(runs)[keys.index(wanted)] if wanted in opened else None)
        rows = dict(zip(keys, found.runs, strict=True))
        self._fill_baseline(keys, wanted)
        self._name_metric(found)
        self.table.setRowCount(len(keys))
        for row, key in enumerate(keys):
            self._fill_row(row, key, rows[key], is_base=rows[key].run == found.baseline)

    def _name_metric(self, found: Comparison) -> None:
        """Call the metric as the task of the runs calls it, or say that they have different ones."""
        common = shared(Metric(**row.metric) for row in found.runs)
        self._mixed = common is None
        self.note.setText("".join(f"{note[:1].upper()}{note[1:]}." for note in found.notes))
        self.note.setVisible(bool(found.notes))
        told = f"{common.about}; {way_text(common)}" if common else "On the validation set, by the task of each run"
        self._head(METRIC, common.title if common else "Metric", told)
        lower = common is not None and not common.higher_is_better
        self._head(DIFFERENCE, "Difference (lower is better)" if lower else "Difference", "To the baseline")

    def _head(self, column: int, title: str, told: str) -> None:
        if (heading := self.table.horizontalHeaderItem(column)) is not None:
            heading.setText(title)
            heading.setToolTip(told)

    def _fill_baseline(self, keys: list[str], wanted: str | None) -> None:
        entries = [("first FP32 run", None), *((self._state.runs[key].name, key) for key in keys)]
        if entries != [(self.baseline.itemText(n), self.baseline.itemData(n)) for n in range(self.baseline.count())]:
            self.baseline.clear()
            for name, key in entries:
                self.baseline.addItem(name, key)
        self.baseline.setCurrentIndex(max(0, self.baseline.findData(wanted)) if wanted else 0)

    def _fill_row(self, row: int, key: str, found: Compared, *, is_base: bool) -> None:
        shown = self._state.runs[key]
        swatch = QPixmap(12, 12)
        swatch.fill(QColor(themes().theme.runs[shown.colour_index]))
        name = self.fontMetrics().elidedText(shown.name, Qt.TextElideMode.ElideMiddle, NAME_WIDTH)
        head = QTableWidgetItem(QIcon(swatch), f"{name} (baseline)" if is_base else name)
        head.setToolTip(f"{shown.name}\n{found.path or 'not saved'}")
        self.table.setVerticalHeaderItem(row, head)
        for column, each in enumerate(FIGURES):
            text = each.text(found)
            if column == METRIC and self._mixed and text != UNKNOWN:
                text = f"{in_text(found.metric['title'])} {text}"
            item = QTableWidgetItem(text)
            item.setTextAlignment(LEFT if column < TEXTS else RIGHT)
            self.table.setItem(row, column, item)
