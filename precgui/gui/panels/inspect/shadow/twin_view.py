"""Twins: branches of the run in a precision beside FP32 and rounding twins, and the verdict on its bias."""

from __future__ import annotations

from typing import Any

import pyqtgraph as pg
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor
from PySide6.QtWidgets import (
    QAbstractItemView,
    QComboBox,
    QHeaderView,
    QSplitter,
    QTreeWidget,
    QTreeWidgetItem,
    QVBoxLayout,
    QWidget,
)

from precgui.config import PRECISIONS
from precgui.config.precision_traits import traits
from precgui.gui.kit.choice import ignore_wheel
from precgui.gui.kit.copied_rows import let_copy
from precgui.gui.kit.editors import SuggestionEditor, whole_number
from precgui.gui.kit.parts import named
from precgui.gui.kit.plain_text import PlainLabel
from precgui.gui.plots.axes import colour_axes
from precgui.gui.plots.menus import own_menu
from precgui.gui.run_task import Refusals, RunTaskBar
from precgui.gui.session import Session
from precgui.gui.theme import themes
from precgui.places.tasks import TASKS
from precgui.runs.run import Run
from precgui.runs.twins import TWINS, DistanceBand, TwinResult, p_text
from precgui.runs.verdict.branches import Drift
from precgui.words import L_, _, translated

NONE_YET = L_(
    "No branches of this run are kept. Branching trains it again in FP32; at each branch point the next steps are made "
    "in FP32, in the precision, and in FP32 from weights that moved by one ulp. The differences tell bias from noise."
)
_COLUMNS = (
    L_("Tensor"), L_("Outside from step"), L_("Distance"), L_("Largest of the twins"), L_("Times"),
)  # fmt: skip
_BAD = ("bias", "broken")
BRANCHES, STEPS = 16, 12
MAKE = L_("Branch this run")
_REFERENCE = "fp32"
_USUAL = "bf16-amp"  # suggested for a run in FP32
_BAND_ALPHA = 50  # of 255


class TwinView(QWidget):
    """Shows the results that are kept beside the run, and makes new ones."""

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._session = session
        self._key: str | None = None
        self._results: list[TwinResult] = []
        self.bar = TwinBar(session, self)
        self.choice = QComboBox(self)
        self.verdict = PlainLabel(self)
        self.numbers = PlainLabel(self)
        self.plot = BranchPlot()
        self.tree = QTreeWidget(self)
        let_copy(self.tree)
        self.notes = PlainLabel(self)
        self._body = QSplitter(Qt.Orientation.Vertical, self)
        self._lay_out()
        self.bar.kept.connect(self._take_new)
        self.choice.currentIndexChanged.connect(self._show)
        themes().follow(self, self._recolour)

    def _lay_out(self) -> None:
        self.choice.setAccessibleName(_("Precision whose branches are shown"))
        ignore_wheel(self.choice)
        self.tree.setHeaderLabels(list(map(translated, _COLUMNS)))
        self.tree.setAccessibleName(_("Tensors outside the band of the rounding twins"))
        self.tree.setProperty("kind", "facts")
        self.tree.setRootIsDecorated(False)
        self.tree.setUniformRowHeights(True)
        self.tree.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.tree.header().setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        for label in (self.verdict, self.numbers, self.notes):
            label.setWordWrap(True)
        for label in (self.numbers, self.notes):
            label.setProperty("kind", "muted")
        self._body.addWidget(self.plot)
        self._body.addWidget(self.tree)
        self._body.setStretchFactor(0, 2)
        self._body.setStretchFactor(1, 1)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(8)
        for part in (self.bar, self.choice, self.verdict, self.numbers):
            column.addWidget(part)
        column.addWidget(self._body, 1)
        column.addWidget(self.notes)
        column.addStretch(0)

    def show_run(self, key: str | None) -> None:
        self._key = key
        self.refresh()

    def refresh(self) -> None:
        """Read the side files of the run again; the chosen precision stays if it is still there."""
        opened = self._session.runs.get(self._key or "")
        self.bar.show_run(opened.run if opened is not None else None)
        path = opened.run.path if opened is not None else None
        results = TWINS.all(path) if path is not None else []
        before = self.choice.currentText()
        self._results = results
        self.choice.blockSignals(True)
        self.choice.clear()
        self.choice.addItems([result.precision for result in results])
        self.choice.setCurrentIndex(max(0, self.choice.findText(before)) if results else -1)
        self.choice.blockSignals(False)
        self._show()

    @property
    def result(self) -> TwinResult | None:
        """The result that is shown."""
        index = self.choice.currentIndex()
        return self._results[index] if 0 <= index < len(self._results) else None

    def _take_new(self) -> None:
        self.refresh()
        self.choice.setCurrentIndex(max(0, self.choice.findText(str(self.bar.precision.get()))))

    def _show(self) -> None:
        result = self.result
        for part in (self.choice, self.numbers, self._body, self.notes):
            part.setVisible(result is not None)
        self.verdict.setHidden(result is None and self.bar.is_own_loop)
        if result is None:
            self.verdict.setText(translated(NONE_YET))
            self._recolour()
            return
        self.verdict.setText(translated(result.verdict_text))
        self.numbers.setText(
            "\n".join(
                (
                    drift_text(result.precision, result.drift), drift_text(_("The rounding twins"), result.twin),
                    _outside_text(result),
                )
            )
        )  # fmt: skip
        self.notes.setText("\n".join(map(translated, result.notes)))
        self.plot.show_result(result)
        self.tree.clear()
        for band in result.tensors_outside():
            self.tree.addTopLevelItem(_row(band))
        self._recolour()

    def _recolour(self) -> None:
        result, theme = self.result, themes().theme
        colour = theme.text
        if result is not None:
            colour = (
                theme.error if result.verdict in _BAD else theme.warning if result.verdict == "undecided" else theme.ok
            )
        self.verdict.setStyleSheet(f"color: {colour}; font-weight: {600 if result is not None else 400}")


def drift_text(name: str, drift: Drift) -> str:
    """The numbers of a drift as a sentence."""
    if drift.mean is None or drift.p_t is None or drift.p_sign_flip is None:
        text = _("{name}: {broken} of {count} branches are not finite.")
        return text.format(name=name, broken=drift.broken, count=drift.n)
    text = _(
        "{name}: {count} branches, mean {mean}, standard deviation {sd}, paired t test p {p_t}, sign flips p {p_flips}."
    )
    return text.format(
        name=name, count=drift.n, mean=f"{drift.mean:+.2e}", sd=f"{drift.sd:.1e}", p_t=p_text(drift.p_t),
        p_flips=p_text(drift.p_sign_flip),
    )  # fmt: skip


def _outside_text(result: TwinResult) -> str:
    step = result.first_step_outside
    if step is None:
        text = _("Within {steps} steps neither the loss nor a tensor leaves the band of the rounding twins.")
        return text.format(steps=result.steps)
    tensors = result.tensors_outside()
    text = _("Step {step} of a branch is the first outside the band of the rounding twins.").format(step=step)
    farthest = _("The farthest tensor is {tensor}.")
    return f"{text} {farthest.format(tensor=tensors[0].name)}" if tensors else text


def _row(band: DistanceBand) -> QTreeWidgetItem:
    step = band.leaves_at or 1
    low, twin = band.low[step - 1], band.twin[step - 1]
    times = "" if low is None or not twin else f"{low / twin:.3g}"
    far = _("not finite") if low is None else f"{low:.2e}"
    return QTreeWidgetItem([band.name, str(step), far, "" if twin is None else f"{twin:.2e}", times])


class TwinBar(RunTaskBar):
    """Emits `kept` when a new result lies beside the run."""

    task = TASKS["twin"]
    title = L_("Branches of a run")
    first_text = L_("Training in FP32 up to the first branch ...")
    refusals = Refusals(
        L_("Branches are kept beside a run file; this run has none."),
        L_("The run is still going on; branch it when it has ended."),
        L_(
            "Branches train the run again in FP32, which needs a loop that precgui can start: write this one as a task "
            "of your own (docs/own-task.md) and train it from Run."
        ),
    )

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(session, parent)
        names = [name for name in PRECISIONS if name != _REFERENCE and traits(name).weight_bits is None]
        self.precision = SuggestionEditor(names, self)
        self.branches = whole_number(BRANCHES, 10, 1000, _("Branches"), self)
        self.steps = whole_number(STEPS, 1, 1000, _("Steps of each branch"), self)
        self.precision.setAccessibleName(_("Precision of the branches"))
        self.text.setProperty("kind", "muted")
        for text, part in (
            (_("&Precision"), self.precision), (_("&Branches"), self.branches), (_("Steps of &each"), self.steps),
        ):  # fmt: skip
            self.line.addWidget(named(text, part))
            self.line.addWidget(part)
        self.line.addWidget(self.button)
        self.line.addWidget(self.text, 1)
        self.button.setText(translated(MAKE))

    def show_run(self, run: Run | None) -> None:
        """Offer branches of this run, in its own precision at first."""
        if run is not self._run:
            self._fault = ""
            if run is not None:
                own = run.config.precision
                self.precision.set(_USUAL if own == _REFERENCE or traits(own).weight_bits is not None else own)
        self._run = run
        if not self._work.busy:
            self.say()

    def arguments(self, run: Run) -> dict[str, Any]:
        return {
            "path": str(run.path), "precision": self.precision.get(), "branches": self.branches.value(),
            "steps": self.steps.value(),
        }  # fmt: skip

    def start_label(self) -> str:
        return translated(MAKE)


class BranchPlot(pg.PlotWidget):  # type: ignore[misc]  # pyqtgraph is untyped
    """Differences of branches from FP32 over the steps at which they begin, with the mean and its interval.

    One dot a branch: filled for the precision, hollow for the rounding twins; branches that broke have none."""

    def __init__(self) -> None:
        super().__init__(enableMenu=False)
        own_menu(self)
        self.setMouseEnabled(x=False, y=False)
        self.hideButtons()
        self.setMinimumHeight(160)
        self.low = pg.ScatterPlotItem(size=9, pen=None)
        self.twins = pg.ScatterPlotItem(size=8, symbol="o", brush=None)
        self.mean = pg.InfiniteLine(angle=0)
        self.zero = pg.InfiniteLine(pos=0, angle=0)
        self.interval = pg.LinearRegionItem(orientation="horizontal", movable=False)
        for item in (self.interval, self.zero, self.mean, self.twins, self.low):
            self.addItem(item, ignoreBounds=item in (self.zero, self.mean))
        self.getAxis("bottom").setLabel(_("step at which the branch begins"))
        self.getAxis("left").setLabel(_("held-out loss minus that of FP32"))
        self.getAxis("left").enableAutoSIPrefix(False)
        self.setAccessibleName(_("Differences of the branches from FP32"))
        themes().follow(self, self._recolour)
        self._recolour()

    def show_result(self, result: TwinResult) -> None:
        """Draw the branches of a result."""
        low = [(p.step, p.low - p.reference) for p in result.branches if p.low is not None]
        twins = [(p.step, v - p.reference) for p in result.branches for v in p.twins if v is not None]
        self.low.setData([x for x, _ in low], [y for _, y in low])
        self.twins.setData([x for x, _ in twins], [y for _, y in twins])
        drift = result.drift
        for item in (self.mean, self.interval):
            item.setVisible(drift.mean is not None)
        if drift.mean is not None and drift.low is not None and drift.high is not None:
            self.mean.setPos(drift.mean)
            self.interval.setRegion((drift.low, drift.high))
        self.autoRange()

    def _recolour(self) -> None:
        theme = themes().theme
        colour_axes(self)
        self.low.setBrush(theme.accent)
        self.twins.setPen(pg.mkPen(theme.text, width=1))
        self.zero.setPen(pg.mkPen(theme.muted, width=1))
        self.mean.setPen(pg.mkPen(theme.accent, width=1, style=Qt.PenStyle.DashLine))
        band = QColor(theme.accent)
        band.setAlpha(_BAND_ALPHA)
        self.interval.setBrush(band)
        for line in self.interval.lines:
            line.setPen(pg.mkPen(None))
