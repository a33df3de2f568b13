"""The loss of each group of a study over its seeds, as mean and range, over steps, time or energy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyqtgraph as pg
from numpy.typing import NDArray
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QCheckBox, QWidget

from precgui.gui.colours import DASHES
from precgui.gui.format_colours import style_colour
from precgui.gui.kit.choice import Choice
from precgui.gui.kit.parts import column, label, named, row
from precgui.gui.plots.simple_plot import SimplePlot
from precgui.gui.theme import themes
from precgui.runs.line_styles import LineStyle, line_styles
from precgui.runs.report.content import ReportContent
from precgui.runs.study.bands import BandAxis, BandLoss, LossBand, loss_bands
from precgui.words import L_, _, n_, paragraph, translated

_LOSSES: dict[BandLoss, str] = {"training": L_("Training loss"), "validation": L_("Validation loss")}
_AXES: dict[BandAxis, str] = {
    "steps": L_("Steps"), "cpu_s": L_("CPU time (s)"), "time_s": L_("Time by the clock (s)"),
    "joules": L_("Energy (J)"),
}  # fmt: skip
_ABSENT: dict[BandAxis, str] = {
    "steps": L_("No group has a curve over this: steps were not measured."),
    "cpu_s": L_("No group has a curve over this: CPU time was not measured."),
    "time_s": L_("No group has a curve over this: time by the clock was not measured."),
    "joules": L_("No group has a curve over this: energy was not measured."),
}
_NONE_ENDED = L_("No run of this study has ended.")
_BAND_ALPHA, _SEED_ALPHA = 40, 110


class BandsPlot(SimplePlot):
    """A logarithmic loss; the line is the mean over the seeds, the band reaches from the least to the largest run."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(_("Loss of the groups"), "log10", parent=parent)
        self.bands: list[LossBand] = []
        self.styles: dict[str, LineStyle] = {}
        self.each_seed = False
        self.sentence = ""
        self.legend = self.plotItem.addLegend(offset=(-8, 8), labelTextColor=themes().theme.text)

    def show_bands(
        self, bands: list[LossBand], styles: dict[str, LineStyle], names: tuple[str, str], sentence: str
    ) -> None:
        """`styles` has the line of each group; the sentence is shown where there is no band."""
        self.bands, self.styles, self.sentence = bands, styles, sentence
        self.name_axes(*names)
        self.redraw()
        self.show_all()

    def show_all(self) -> None:
        """Let the axes hold the curves, and begin where these begin, also in a plot that has no size yet."""
        super().show_all()
        if self.bands:
            first, last = min(band.x[0] for band in self.bands), max(band.x[-1] for band in self.bands)
            self.plotItem.vb.setXRange(float(first), float(last), padding=0.02)

    def draw(self) -> str:
        self.legend.clear()
        self.legend.setLabelTextColor(themes().theme.text)
        for band in self.bands:
            self._add(band, self.styles[band.group])
        return "" if self.bands else self.sentence

    def _add(self, band: LossBand, style: LineStyle) -> None:
        colour = QColor(style_colour(style))
        pale = QColor(colour)
        pale.setAlpha(_BAND_ALPHA)
        low, high = _curve(band.x, band.low), _curve(band.x, band.high)
        self.addItem(pg.FillBetweenItem(low, high, brush=pg.mkBrush(pale)))
        if self.each_seed:
            thin = QColor(colour)
            thin.setAlpha(_SEED_ALPHA)
            for losses in band.runs:
                self.addItem(_curve(band.x, losses, pg.mkPen(thin, width=1)))
        pen = pg.mkPen(colour, width=2)
        if dash := DASHES[style.dash]:
            pen.setDashPattern(dash)
        mean = _curve(band.x, band.mean, pen)
        self.addItem(mean)
        seeds = len(band.runs)
        name = n_("{group} ({count} seed)", "{group} ({count} seeds)", seeds)
        self.legend.addItem(mean, name.format(group=band.group, count=seeds))


def _curve(x: NDArray[np.float64], loss: NDArray[np.float64], pen: Any = None) -> Any:
    return pg.PlotCurveItem(x, np.log10(loss), pen=pen, antialias=True)


class BandsView(QWidget):
    """The plot with the choice of the loss and of what it is drawn over."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._content: ReportContent | None = None
        self._waits = ""
        self.loss, self.over = Choice(_("Loss")), Choice(_("Drawn over"))
        self.each_seed = QCheckBox(_("&Each seed"))
        self.plot = BandsPlot()
        self.note = label(kind="muted")
        for box, choices in ((self.loss, _LOSSES), (self.over, _AXES)):
            box.offer([(translated(title), key) for key, title in choices.items()])
            box.currentIndexChanged.connect(lambda place: self._show())
        self.each_seed.toggled.connect(lambda on: self._show())
        bar = named(_("&Loss"), self.loss), self.loss, named(_("&Over"), self.over), self.over, self.each_seed
        column(row(*bar, 1), (self.plot, 1), self.note, on=self, spacing=-1)

    def show_content(self, content: ReportContent | None, waits: str = _NONE_ENDED) -> None:
        """`waits` is said while there is no content."""
        self._content, self._waits = content, waits
        self._show()

    def _show(self) -> None:
        content, loss, over = self._content, self.loss.currentData(), self.over.currentData()
        styles = line_styles(content.study.precisions) if content is not None else {}
        bands = loss_bands(content.study, content.runs, loss, over) if content is not None else []
        self.plot.each_seed = self.each_seed.isChecked()
        why = translated(_ABSENT[over] if content is not None else self._waits)
        self.plot.show_bands(bands, styles, (self.over.currentText(), self.loss.currentText()), why)
        missing = [name for name in styles if name not in {band.group for band in bands}] if bands else []
        parts = [
            _("Lines are means over the seeds, bands reach from the least to the largest run. A colour is a precision.")
        ]
        parts += [_("The cost of a step is the mean over the runs of its group.")] if over != "steps" else []
        parts += [_("Not measurable here: {names}.").format(names=_(", ").join(missing))] if missing else []
        self.note.setText(paragraph(*parts))
