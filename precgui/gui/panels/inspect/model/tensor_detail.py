"""One tensor of a scanned model: its exponents, its outlier columns, and any format with any scale from its counts."""

from __future__ import annotations

import math

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLineEdit, QSlider, QWidget

from precgui.errors import SentenceError
from precgui.formats.checkpoints.survey import ScaleEffect, TensorSurvey, answer
from precgui.formats.model import FloatFormat
from precgui.formats.text import grouped
from precgui.formats.weight_formats import WeightFormat, weight_format
from precgui.gui.kit.parts import column, label, named, row
from precgui.gui.plots.simple_plot import SimplePlot
from precgui.gui.theme import themes
from precgui.sanitize import visible_name
from precgui.words import _, error_text, paragraph

STEPS_AN_OCTAVE = 16
OCTAVES = 6  # below the scale of the rule; one above it
_BIAS = 127


class ExponentPlot(SimplePlot):
    """How many numbers have which power of two, and where a format with its scale begins and ends."""

    def __init__(self, parent: QWidget | None = None) -> None:
        self.survey: TensorSurvey | None = None
        self.range: tuple[float, float] | None = None
        super().__init__(_("Exponents of the tensor"), parent=parent)
        self.name_axes(_("power of two"), _("share, %"))
        self.setMinimumHeight(96)  # in a small window it must leave room for the fields below

    def show_survey(self, survey: TensorSurvey | None, limits: tuple[float, float] | None) -> None:
        """Show a tensor, and the range from the smallest to the largest value of a format."""
        self.survey, self.range = survey, limits
        self.redraw()

    def draw(self) -> str:
        if self.survey is None:
            return _("Choose a tensor.")
        theme, counts = themes().theme, self.survey.exponents[:-1].astype(np.float64)
        counts[0] = max(counts[0] - self.survey.zeros, 0)
        used = np.flatnonzero(counts)
        if not used.size:
            return _("All numbers of this tensor are zero.")
        share = 100 * counts[used] / max(self.survey.size, 1)
        bars = pg.BarGraphItem(x=used - _BIAS + 0.5, height=share, width=0.9, pen=None, brush=theme.accent)
        self.plotItem.addItem(bars)
        for edge in self.range or ():
            line = pg.InfiniteLine(edge, 90, pen=pg.mkPen(theme.error, width=2, style=Qt.PenStyle.DashLine))
            self.plotItem.addItem(line)
        return ""


class TensorDetail(QWidget):
    """The answers come from the counts, without the file of the model."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.survey: TensorSurvey | None = None
        self.heading, self.facts = label("", "heading"), label("", "muted", selectable=True)
        self.format_edit = QLineEdit("e4m3fn")
        self.format_edit.setAccessibleName(_("Format"))
        self.format_edit.setToolTip(
            _("A format with one scale for the tensor: e4m3fn, int8, int5, any eXmY; fp16/none without a scale")
        )
        self.scale = QSlider(Qt.Orientation.Horizontal)
        self.scale.setAccessibleName(_("Scale, relative to that of the largest magnitude"))
        self.scale.setRange(-OCTAVES * STEPS_AN_OCTAVE, STEPS_AN_OCTAVE)
        self.result = label("", selectable=True)
        self.plot = ExponentPlot()
        fields = (
            named(_("&Format"), self.format_edit),
            self.format_edit,
            named(_("S&cale"), self.scale),
            (self.scale, 1),
        )
        column(
            self.heading, self.facts, (self.plot, 1),
            row(*fields),
            self.result, spacing=8, on=self,
        )  # fmt: skip
        self.format_edit.textChanged.connect(lambda text: self.refresh())
        self.scale.valueChanged.connect(lambda value: self.refresh())

    def show_survey(self, survey: TensorSurvey | None) -> None:
        """Show a tensor; the format and the scale stay."""
        self.survey = survey
        self.heading.setText(visible_name(survey.name) if survey is not None else "")
        self.facts.setText(facts_text(survey) if survey is not None else "")
        self.refresh()

    def refresh(self) -> None:
        """Answer anew for the format and the scale."""
        limits = None
        text = ""
        if self.survey is not None:
            factor = 2.0 ** (self.scale.value() / STEPS_AN_OCTAVE)
            try:
                fmt = weight_format(self.format_edit.text().strip())
                effect = answer(self.survey, fmt, factor)
                limits = _range(fmt, effect.scale)
                text = _effect_text(self.survey, effect, factor)
            except (SentenceError, ValueError) as error:
                text = _("{error}.").format(error=error_text(error))
        self.result.setText(text)
        self.plot.show_survey(self.survey, limits)


def _effect_text(survey: TensorSurvey, effect: ScaleEffect, factor: float) -> str:
    sqnr = _("nothing is lost") if effect.sqnr_db == math.inf else f"{effect.sqnr_db:.2f} dB"
    text = _(
        "Scale {scale} ({factor:.2f} of the usual one): {sqnr}; became zero {zeroed} ({share:.2%}), cut off {clipped}; "
        "largest error {worst}."
    ).format(
        scale=f"{effect.scale:.4g}", factor=factor, sqnr=sqnr, zeroed=grouped(round(effect.zeroed)),
        share=effect.zeroed / max(survey.size, 1), clipped=grouped(round(effect.clipped)), worst=f"{effect.worst:.3g}",
    )  # fmt: skip
    estimated = "" if survey.is_exact else _("Estimated: the numbers are cut to BF16.")
    return paragraph(text, estimated)


def _range(fmt: WeightFormat, scale: float) -> tuple[float, float]:
    """Half of the smallest value above zero, from which numbers are kept, and the largest, as powers of two."""
    element = fmt.element
    least = element.emin - element.mantissa_bits - 1 if isinstance(element, FloatFormat) else -1.0
    return math.log2(scale) + least, math.log2(scale) + math.log2(float(element.max_finite))


def facts_text(survey: TensorSurvey) -> str:
    """Sentences on the numbers of a tensor."""
    parts = [
        _("{count} numbers, largest magnitude {largest}, rms {rms}, kurtosis {kurtosis}.").format(
            count=grouped(survey.size),
            largest=f"{survey.amax:.4g}",
            rms=f"{survey.rms:.4g}",
            kurtosis=f"{survey.kurtosis:.3g}",
        )
    ]
    if survey.zeros:
        parts.append(_("{number} zeros.").format(number=grouped(survey.zeros)))
    if survey.nonfinite:
        parts.append(_("{number} NaN or Inf, taken for zeros.").format(number=grouped(survey.nonfinite)))
    wide = [(place, peak / survey.usual_column) for place, peak in survey.columns if peak > 4 * survey.usual_column > 0]
    if wide:
        one = _("{column} ({times:.0f} times)")
        listed = _(", ").join(one.format(column=place, times=times) for place, times in wide)
        parts.append(_("Columns far wider than the usual one: {columns}.").format(columns=listed))
    return paragraph(*parts)
