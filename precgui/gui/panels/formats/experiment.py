"""The frame of one experiment: controls at the left, a plot at the right, and a sentence that describes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from PySide6.QtCore import QEvent, Qt, QTimer
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QComboBox, QSlider, QSplitter, QVBoxLayout, QWidget

from precgui.gui.answer import Answer, Computation, computation
from precgui.gui.kit.busy import Busy
from precgui.gui.kit.plain_text import PlainLabel
from precgui.gui.panels.formats.choose import FormatChoice
from precgui.gui.panels.formats.control_grid import ControlGrid
from precgui.gui.panels.formats.plotting import Plot, brush
from precgui.gui.panels.formats.reading import scrolled, set_kind, with_result, wrapped_label
from precgui.gui.theme import themes
from precgui.words import translated

WAIT_MS = 40
NARROW = 720
LOW_PX = 260  # a plot in which a legend of one column would cover the curves


class Experiment(QWidget):
    """Subclasses add controls in their constructor and fill `work` and `show`, which run soon after any change."""

    title = ""
    lesson = ""
    legend_offset = (14, 12)

    def __init__(self, bottom: str, left: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._later = QTimer(self, singleShot=True, interval=WAIT_MS)
        self._later.timeout.connect(self.refresh)
        self.computing = Answer(self, answered=self._show, failed=lambda words: self._say(words, fault=True))
        self.controls = ControlGrid()
        self.result = wrapped_label()
        lesson = wrapped_label("muted")
        lesson.setText(translated(self.lesson))
        side = QWidget()
        column = QVBoxLayout(side)
        column.setContentsMargins(8, 8, 12, 8)
        column.setSpacing(12)
        column.addWidget(lesson)
        column.addWidget(self.controls)
        column.addStretch(1)
        self.plot = Plot(bottom=bottom, left=left)
        self.plot.setAccessibleName(translated(self.title))
        self.legend = self.plot.addLegend(offset=self.legend_offset)
        self._split = QSplitter(Qt.Orientation.Horizontal)
        self._split.setChildrenCollapsible(False)
        self._split.addWidget(with_result(scrolled(side, 220, 90), Busy(self.computing), self.result))
        self._split.addWidget(self.plot)
        self._split.setSizes([280, 760])
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(self._split)
        themes().follow(self, self.change)

    def slider(self, label: str, low: int, high: int, value: int, words: Callable[[int], str]) -> QSlider:
        """A slider whose label says its value; `words` turns the number into text."""
        created = QSlider(Qt.Orientation.Horizontal)
        created.setRange(low, high)
        created.setValue(value)
        created.setAccessibleName(label)
        caption = PlainLabel()

        def show(number: int) -> None:
            caption.setText(f"{label}: {words(number)}")
            self.change()

        created.valueChanged.connect(show)
        self.controls.add(caption, created)
        show(value)
        return created

    def choice(self, label: str, names: Sequence[str], chosen: str) -> QComboBox:
        """A list of marked names, which are the data of its entries."""
        box = QComboBox()
        for name in names:
            box.addItem(translated(name), name)
        box.setCurrentIndex(box.findData(chosen))
        box.setAccessibleName(label)
        box.currentTextChanged.connect(lambda _: self.change())
        self.controls.add(PlainLabel(label), box)
        return box

    def format_choice(self, label: str, chosen: str) -> FormatChoice:
        """Any format: from the list, or typed."""
        choice = FormatChoice(chosen)
        choice.setAccessibleName(label)
        choice.changed.connect(self.change)
        choice.failed.connect(lambda words: self._say(words, fault=True))
        self.controls.add(PlainLabel(label), choice)
        return choice

    def change(self) -> None:
        """Draw again, once for many changes in a row."""
        if self.isVisible():
            self._later.start()

    def showEvent(self, event: QShowEvent) -> None:
        self._later.start()

    def resizeEvent(self, event: QEvent) -> None:
        narrow = self.width() < NARROW
        requested = Qt.Orientation.Vertical if narrow else Qt.Orientation.Horizontal
        if self._split.orientation() != requested:
            self._split.setOrientation(requested)
            self._split.setSizes([450, 550] if narrow else [280, 760])

    def refresh(self) -> None:
        """Compute now; the picture follows as soon as it is done."""
        self._later.stop()
        self.computing.ask(computation(self.work()), latest_only=True)

    def _show(self, result: Any) -> None:
        self.plot.getPlotItem().clear()
        self.legend.clear()
        self.legend.setLabelTextColor(themes().theme.text)
        self.legend.setBrush(brush(themes().theme.base, 0.8))
        self._say(self.show_result(result), fault=False)
        self.legend.setColumnCount(3 if self.plot.height() < LOW_PX else 1)

    def _say(self, words: str, *, fault: bool) -> None:
        self.result.setText(words)
        set_kind(self.result, "error" if fault else "")

    def work(self) -> Computation:
        """Read the controls, and give back what is to be computed in a thread."""
        raise NotImplementedError

    def show_result(self, result: Any) -> str:
        """Draw what was computed into `plot` and describe it in a sentence or two."""
        raise NotImplementedError


def percent(share: float) -> str:
    return f"{100 * share:.3g} %"
