"""The picture of Compare: the losses of the runs over one another, and how far each is from the baseline's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape

from PySide6.QtCore import QTimer
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QPushButton, QVBoxLayout, QWidget

from precgui.gui.format_colours import place_colour
from precgui.gui.kit.parts import label
from precgui.gui.kit.plain_text import PlainLabel
from precgui.gui.open_run import DrawnRun, OpenRun
from precgui.gui.plots.axes import AxisChoice
from precgui.gui.plots.linked import LinkedPlots
from precgui.gui.plots.signals import BASELINE_SIGNALS, SIGNALS
from precgui.gui.plots.smoothing import SmoothingChoice
from precgui.runs.baseline import BaselineComparison, window_of
from precgui.runs.line_styles import line_styles
from precgui.words import L_, _, translated

_CAPTIONS = {  # averaged, some of the runs
    (False, False): L_("Training loss: step by step"),
    (False, True): L_("Training loss: step by step; {drawn} of {runs} runs"),
    (True, False): L_("Training loss: mean over {steps} steps"),
    (True, True): L_("Training loss: mean over {steps} steps; {drawn} of {runs} runs"),
}
TWO_COLUMNS_PX = 760
LINE_PX, BASELINE_PX = 1.5, 5.0
LEAST_HEIGHT = 200
_ONE_COLOUR = L_("Runs of one precision have its colour and a dash or shade of their own, as in the table.")


class CompareCurves(QWidget):
    """Two linked plots. The broad line is the baseline's; a run that is over ends in a dot."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.plots = LinkedPlots(
            list(BASELINE_SIGNALS), self, choices=BASELINE_SIGNALS | SIGNALS, two_columns_px=TWO_COLUMNS_PX
        )
        self.axis_choice = AxisChoice(self)
        self.smoothing = SmoothingChoice(self)
        self.whole = QPushButton(_("Reset zoom"), self)
        self.whole.setToolTip(_("Back to the whole of all runs (F, or a double click into a plot)"))
        self.all_runs = QPushButton(_("All runs"), self)
        self.all_runs.setToolTip(_("Draw all runs, not only those that are selected in the table"))
        self.caption = PlainLabel(self)
        self.caption.setProperty("kind", "muted")
        self.caption.setWordWrap(True)
        self.legend = label(kind="muted", rich=True)
        self._comparisons: dict[tuple[str, str, int], BaselineComparison] = {}
        self.setMinimumHeight(LEAST_HEIGHT)
        bar = QHBoxLayout()
        for widget in (self.axis_choice.label, self.axis_choice, self.smoothing, self.whole, self.all_runs):
            bar.addWidget(widget)
        bar.addWidget(self.caption, 1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addLayout(bar)
        layout.addWidget(self.legend)
        layout.addWidget(self.plots, 1)
        self.axis_choice.chosen.connect(self.plots.set_over)
        self.smoothing.chosen.connect(self.plots.set_smoothing)
        self.whole.clicked.connect(self.plots.follow)

    def showEvent(self, event: QShowEvent) -> None:
        """Draw once, when all parts have their sizes; each earlier picture of a hundred curves takes 50 ms."""
        super().showEvent(event)
        self.plots.setUpdatesEnabled(False)
        QTimer.singleShot(0, self, lambda: self.plots.setUpdatesEnabled(True))

    def show_runs(self, runs: Sequence[OpenRun], baseline: OpenRun, chosen: Sequence[OpenRun]) -> None:
        """Draw the runs beside the baseline; of chosen ones only these and the baseline."""
        window = window_of(baseline.run)
        requested = [run for run in runs if not chosen or run is baseline or run in chosen]
        known, self._comparisons = self._comparisons, {}
        drawn = []
        for run in requested:
            key = (run.key, baseline.key, window)
            source = self._comparisons[key] = known.get(key) or BaselineComparison(run.run, baseline.run, window)
            width_px = BASELINE_PX if run is baseline else LINE_PX
            style = run.colour_index, run.dash_index
            drawn.append(DrawnRun(repr(key), source, run.name, *style, line_px=width_px, shade=run.shade))
        self.plots.set_runs(drawn)
        self.legend.setText(legend_html(requested, [run.run.config.precision for run in requested]))
        self.all_runs.setVisible(bool(chosen))
        caption = translated(_CAPTIONS[window > 1, bool(chosen)])
        self.caption.setText(caption.format(steps=window, drawn=len(requested), runs=len(runs)))


def in_colours_of_precisions(runs: Sequence[OpenRun], precisions: Sequence[str]) -> list[OpenRun]:
    """Copies of the runs in the colours of their precisions, which stand in the same order."""
    styles = line_styles({run.key: precision for run, precision in zip(runs, precisions, strict=True)})
    return [
        replace(run, colour_index=style.colour, dash_index=style.dash, shade=style.shade)
        for run, style in zip(runs, styles.values(), strict=True)
    ]


def legend_html(drawn: Sequence[DrawnRun], precisions: Sequence[str]) -> str:
    """A square and the precisions for each colour among drawn lines; a sentence where runs share one."""
    by_colour: dict[int, list[str]] = {}
    for run, precision in zip(drawn, precisions, strict=True):
        by_colour.setdefault(run.colour_index, []).append(precision)
    squares = [
        f"<span style='color:{place_colour(place)}'>■</span>&nbsp;{escape(', '.join(dict.fromkeys(names)))}"
        for place, names in by_colour.items()
    ]
    is_shared = any(len(names) > 1 for names in by_colour.values())
    return " &nbsp; ".join([*squares, escape(translated(_ONE_COLOUR))] if is_shared else squares)
