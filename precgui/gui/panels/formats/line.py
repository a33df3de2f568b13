"""The number line: the values of several formats side by side, and where the numbers of a tensor lie among them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import QEvent, QTimer
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QLineEdit, QPushButton, QSizePolicy, QVBoxLayout, QWidget

from precgui.formats.arrays import Floats
from precgui.formats.parse import InputError, parse
from precgui.formats.registry import get
from precgui.formats.sorted_values import SortedValues
from precgui.formats.text import grouped
from precgui.gui.answer import Answer, ProgressCallback, computation
from precgui.gui.kit.busy import Busy
from precgui.gui.kit.plain_text import PlainLabel, plain_tip
from precgui.gui.panels.formats.choose import FormatMenu
from precgui.gui.panels.formats.line_view import BINADES, LINEAR, LineView
from precgui.gui.panels.formats.plotting import Plot, brush
from precgui.gui.panels.formats.recorded import Recorded
from precgui.gui.panels.formats.run_source import RunSource
from precgui.gui.panels.formats.tensor_source import TensorSource
from precgui.gui.theme import themes
from precgui.words import _, error_text, translated

FORMATS = ("fp32", "bf16", "fp16", "e4m3fn", "e5m2", "e2m1")
BARS = 160
WIDE_BINADES = 40  # from which width on a bar of the histogram is one binade
Losses = tuple[float, float, float]


def _sorted(values: Floats, names: list[str], progress: ProgressCallback) -> tuple[SortedValues, dict[str, Losses]]:
    progress(0.05)
    result = SortedValues(values)
    progress(0.9)
    return result, _losses(result, names, progress)


def _losses(values: SortedValues, names: list[str], progress: ProgressCallback) -> dict[str, Losses]:
    results = {}
    for name in names:
        progress(0.95)
        shares = values.shares(get(name))
        results[name] = (shares.underflow, shares.subnormal, shares.saturated)
    return results


class LineTab(QWidget):
    """Controls, the histogram of a tensor, and the line below it."""

    def __init__(self, session: object, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._names: list[str] = list(FORMATS)
        self._title = ""
        self._tensor: SortedValues | None = None
        self._recorded: Recorded | None = None
        self._losses: dict[str, Losses | None] = {}
        self._later = QTimer(self, singleShot=True, interval=0)
        self._later.setObjectName("later")
        self._later.timeout.connect(self._draw)
        self.sorting = Answer(self, answered=self._show_sorted, failed=self._say)
        self.counting = Answer(self, answered=self._show_losses, failed=self._say)
        column = QVBoxLayout(self)
        column.setContentsMargins(4, 12, 4, 4)
        column.addLayout(self._make_controls())
        column.addLayout(self._make_second_row(session))
        column.addWidget(Busy(self.source.work, self.sorting, self.counting))
        self._make_plots(column)
        themes().follow(self, self._later.start)
        self._typed(self.edit.text())
        self.show_all()

    # Making

    def _make_controls(self) -> QHBoxLayout:
        self.mode = QComboBox()
        for axis in (BINADES, LINEAR):
            self.mode.addItem(translated(axis), axis)
        self.mode.setAccessibleName(_("Axis"))
        self.mode.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.mode.setMinimumContentsLength(12)
        self.mode.currentTextChanged.connect(self.show_all)
        self.edit = QLineEdit("0.1")
        self.edit.setMinimumWidth(70)
        self.edit.setMaximumWidth(220)
        self.edit.setAccessibleName(_("Number on the line"))
        self.edit.textEdited.connect(self._typed)
        self.view = LineView()
        row = QHBoxLayout()
        label = PlainLabel(_("&Number"))
        label.setBuddy(self.edit)
        for widget in (label, self.edit, self.mode):
            row.addWidget(widget)
        for words, tip, slot in (
            ("−", _("zoom out (minus)"), partial(self.view.zoom, 2.0)),
            ("+", _("zoom in (plus)"), partial(self.view.zoom, 0.5)),
            (_("Number"), _("until its neighbours are apart"), self.view.show_number),
            (_("Tensor"), _("all values of the tensor"), self.show_values),
            (_("All"), _("the whole line (Home)"), self.show_all),
        ):
            button = QPushButton(words)
            button.setToolTip(plain_tip(tip))
            button.setAccessibleName(tip)
            button.clicked.connect(lambda _on=False, slot=slot: slot())
            row.addWidget(button)
            if slot == self.show_values:
                self._values_button = button
                button.hide()
        row.addStretch(1)
        return row

    def _make_second_row(self, session: object) -> QHBoxLayout:
        self.message = PlainLabel()
        self.message.setProperty("kind", "muted")
        self.message.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.menu = FormatMenu(FORMATS, self)
        self.menu.changed.connect(self._choose)
        self.source = TensorSource()
        self.source.loaded.connect(self.show_tensor)
        self.source.failed.connect(self._say)
        self.runs = RunSource(session)
        self.runs.loaded.connect(self.show_recorded)
        self.runs.failed.connect(self._say)
        row = QHBoxLayout()
        row.addWidget(self.source)
        row.addWidget(self.runs)
        row.addWidget(self.message, 1)
        row.addWidget(self.menu)
        return row

    def _make_plots(self, column: QVBoxLayout) -> None:
        self.histogram = Plot(left=_("share of values"))
        self.histogram.hide()
        self.histogram.getPlotItem().getAxis("left").setWidth(84)
        self.histogram.setMouseEnabled(x=True, y=False)
        self.histogram.setXLink(self.view)
        self.histogram.setAccessibleName(_("Histogram of the tensor"))
        self.view.sigXRangeChanged.connect(lambda *_: self._later.start())
        column.addWidget(self.histogram)
        column.addWidget(self.view, 1)

    # Changes

    def _choose(self, names: list[str]) -> None:
        self._names = names
        self._count_losses()
        self._later.start()

    def _typed(self, words: str) -> None:
        try:
            self.view.real = parse(words)
        except InputError as error:
            self._say(error_text(error))
            return
        self._say(self._title)
        self._later.start()

    def _say(self, words: str) -> None:
        self.message.setText(words)
        self.message.setToolTip(plain_tip(words))

    def show_tensor(self, values: Floats, name: str) -> None:
        """Lay the histogram of a tensor over the line and count what each format loses of it."""
        self.runs.show_steps(False)
        self._title = _("{name}: {count} values").format(name=name, count=grouped(values.size))
        self._say(_("{title}, sorting …").format(title=self._title))
        names = list(self._names)
        self.sorting.ask(computation(lambda progress: _sorted(values, names, progress)), latest_only=True)

    def _show_sorted(self, answer: tuple[SortedValues, dict[str, Losses]]) -> None:
        self._tensor, self._recorded = answer[0], None
        self._losses = dict(answer[1])
        self._count_losses()
        self._show_source()

    def show_recorded(self, recorded: Recorded) -> None:
        """The same from the exponent histogram that a run has recorded."""
        self.sorting.cancel()
        moved = self._recorded is not None and self._recorded.title == recorded.title
        self._tensor, self._recorded, self._losses = None, recorded, {}
        self._title = _("{title}, step {step}").format(title=recorded.title, step=recorded.step)
        self._count_losses()
        if moved:  # along its steps: the view stays
            self._say(self._title)
            self._later.start()
        else:
            self.mode.setCurrentIndex(self.mode.findData(BINADES))
            self._show_source()

    def _show_source(self) -> None:
        self._say(self._title)
        self._values_button.show()
        self.show_values()
        self._later.start()

    def _count_losses(self) -> None:
        missing = [name for name in self._names if name not in self._losses]
        if self._recorded is not None:
            self._losses |= {name: _recorded_losses(self._recorded, name) for name in missing}
        elif (values := self._tensor) is not None and missing:
            self.counting.ask(computation(lambda progress: _losses(values, missing, progress)), latest_only=True)

    def _show_losses(self, losses: dict[str, Losses]) -> None:
        if self._tensor is not None:
            self._losses |= losses
            self._later.start()

    @property
    def loss_texts(self) -> dict[str, str]:
        """A sentence on the part of the tensor that each format loses."""
        return {name: _loss_text(losses) for name, losses in self._losses.items()}

    def show_all(self) -> None:
        self.view.mode = self.mode.currentData()
        self.view.show_all()
        self._later.start()

    def show_values(self) -> None:
        """Zoom to the values of the tensor."""
        exponents = self._binades()[0]
        if not exponents.size:
            return
        if self.view.logarithmic:
            self.view.show_span(float(exponents[0]) - 4, float(exponents[-1]) + 5)
        else:
            reach = 2.0 ** min(float(exponents[-1]) + 1, 1023)
            self.view.show_span(-reach, reach)

    # Drawing

    def resizeEvent(self, event: QEvent) -> None:
        self.histogram.setMaximumHeight(min(160, self.height() // 4))
        self._later.start()

    def _draw(self) -> None:
        self.view.draw(self._names, self.loss_texts)
        self._draw_histogram()

    def _binades(self) -> tuple[np.ndarray, Floats]:
        if self._recorded is not None:
            return self._recorded.binades()
        if self._tensor is None:
            return np.zeros(0, np.int_), np.zeros(0)
        exponents, counts = self._tensor.binades()
        return exponents, counts / max(self._tensor.size, 1)

    def _bars(self) -> tuple[Floats, Floats]:
        """Edges on the axis and the share between them: one binade each, or finer where the view is narrow."""
        low, high = self.view.viewRange()[0]
        if self._tensor is None or (self.view.logarithmic and high - low > WIDE_BINADES):
            exponents, share = self._binades()
            return np.append(exponents, exponents[-1:] + 1).astype(np.float64), share
        edges = np.linspace(low, high, BARS + 1)
        if self.view.logarithmic:
            counts = self._tensor.magnitudes(2.0 ** np.clip(edges, -1074, 1023.99))
        else:
            counts = self._tensor.counts(edges)
        return edges, counts / max(self._tensor.size, 1)

    def _draw_histogram(self) -> None:
        self.histogram.getPlotItem().clear()
        displayed = self._tensor is not None or (self._recorded is not None and self.view.logarithmic)
        self.histogram.setVisible(displayed)
        if not displayed:
            return
        edges, share = self._bars()
        if share.size:
            bars = pg.BarGraphItem(x0=edges[:-1], x1=edges[1:], height=share, pen=None,
                                   brush=brush(themes().theme.accent, 0.6))  # fmt: skip
            self.histogram.addItem(bars)

    def open_file(self, path: Path) -> None:
        """Show the first tensor of a file."""
        self.source.open_file(path)


def _recorded_losses(recorded: Recorded, name: str) -> Losses | None:
    try:
        return recorded.losses(name)
    except ValueError:  # integers and code books: exponents do not say what becomes of them
        return None


def _loss_text(losses: Losses | None) -> str:
    if losses is None:
        return ""
    named = zip((_("underflow"), _("subnormal"), _("saturate")), losses, strict=True)
    return ", ".join(f"{100 * share:.3g} % {words}" for words, share in named if share) or _("all kept in normal range")
