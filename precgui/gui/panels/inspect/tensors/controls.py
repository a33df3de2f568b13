"""Controls of the Tensors panel: run, kind of tensors, grouping, format and loss scale."""

from __future__ import annotations

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtWidgets import QComboBox, QSlider, QVBoxLayout, QWidget

from precgui.gui.kit.choice import ignore_wheel
from precgui.gui.kit.parts import holder, named, row
from precgui.gui.kit.plain_text import PlainLabel, plain_tip
from precgui.gui.kit.wrapping_row import WrappingRow
from precgui.gui.plots.signals import power_label
from precgui.runs.tensors.confidence import WORDS
from precgui.runs.tensors.grouping import GROUPINGS
from precgui.runs.tensors.what_if import format_names
from precgui.words import L_, _, paragraph, translated

SCALES = (-24, 40)  # exponents of two that the slider reaches
PICTURES = (L_("exponents of one"), L_("losses of all"))
PACE_MS = 16  # between two answers while the slider is dragged: 60 a second
IDLE_MS = 250  # without a change until the list is sorted again
_ANSWERS = L_(
    "Zeros and the largest safe scale are counted, of the elements and steps that were recorded. The share that "
    "overflows is interpolated within one octave. The signal-to-noise ratio is an estimate: mostly within 1.7 dB, less "
    "sure where a few elements make up the sum."
)


class WhatIfBar(QWidget):
    """`asked` comes when format or scale have changed, at most once in PACE_MS; the last change is never left out.

    `idle` comes when neither has changed for IDLE_MS.
    """

    asked = Signal()
    idle = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.kind_choice, self.grouping = QComboBox(self), QComboBox(self)
        self.picture = QComboBox(self)
        self.format_choice = QComboBox(self)
        self.slider = QSlider(Qt.Orientation.Horizontal, self)
        self.scale_text, self.certainty = PlainLabel(self), PlainLabel(self)
        self._pace = QTimer(self, singleShot=True, interval=PACE_MS)
        self._pace.setObjectName("pace")
        self._idle_timer = QTimer(self, singleShot=True, interval=IDLE_MS)
        self._waits = False
        self._fill()
        self._arrange()
        self._pace.timeout.connect(self._on_pace)
        self._idle_timer.timeout.connect(self.idle)
        self.format_choice.currentIndexChanged.connect(self._on_moved)
        self.slider.valueChanged.connect(self._on_moved)
        self._tell()

    @property
    def log2_scale(self) -> int:
        return self.slider.value()

    @property
    def format(self) -> str:
        return self.format_choice.currentText()

    def _fill(self) -> None:
        for name in GROUPINGS:
            self.grouping.addItem(translated(name), name)
        self.picture.addItems(list(map(translated, PICTURES)))
        self.picture.setToolTip(_("The exponents of the chosen tensor, or which share of each tensor the format loses"))
        self.format_choice.addItems(format_names())
        self.format_choice.setCurrentText("fp16")
        self.slider.setRange(*SCALES)
        self.slider.setPageStep(4)
        self.slider.setAccessibleName(_("Loss scale"))
        self.slider.setToolTip(_("The power of two that the tensors are multiplied by before they are stored"))
        self.slider.setMinimumWidth(60)
        self.certainty.setProperty("kind", "muted")
        for choice in (self.kind_choice, self.grouping, self.picture, self.format_choice):
            ignore_wheel(choice)
            choice.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
        widest = max((SCALES[0], SCALES[1]), key=lambda scale: len(str(scale)))
        metrics = self.fontMetrics()
        self.scale_text.setFixedWidth(
            metrics.horizontalAdvance(_("scale {scale}").format(scale=power_label(widest, 2)) + " ")
        )
        longest = max(metrics.horizontalAdvance(translated(word) + " ") for word in WORDS)
        self.certainty.setFixedWidth(longest)

    def _arrange(self) -> None:
        rows = QVBoxLayout(self)
        rows.setContentsMargins(0, 0, 0, 0)
        choices = (
            (_("&Tensors"), self.kind_choice),
            (_("&Group"), self.grouping),
            (_("P&icture"), self.picture),
        )
        rows.addWidget(WrappingRow([holder(row(named(text, choice), choice)) for text, choice in choices], self))
        what_if = named(_("What if f&ormat"), self.format_choice)
        rows.addLayout(row(what_if, self.format_choice, (self.slider, 1), self.scale_text, self.certainty))

    def _on_moved(self) -> None:
        self._tell()
        self._idle_timer.start()
        if self._pace.isActive():
            self._waits = True
            return
        self._pace.start()
        self.asked.emit()

    def _on_pace(self) -> None:
        if self._waits:
            self._waits = False
            self._pace.start()
            self.asked.emit()

    def _tell(self) -> None:
        self.scale_text.setText(_("scale {scale}").format(scale=power_label(self.log2_scale, 2)))
        self.scale_text.setToolTip(plain_tip(f"{2.0**self.log2_scale:,.10g}".replace(",", " ")))

    def show_certainty(self, word: str, reasons: list[str]) -> None:
        """How far the answer can be trusted, in a word, and why."""
        self.certainty.setText(word)
        self.certainty.setToolTip(plain_tip("\n".join([*reasons, translated(_ANSWERS)])))
        self.certainty.setAccessibleDescription(paragraph(*reasons, translated(_ANSWERS)))


def fill(choice: QComboBox, items: dict[str, str], chosen: str | None, otherwise: int) -> None:
    """Offer `items`, titles by their data, and choose one; what is offered already stays, also while it is open."""
    if {choice.itemData(row): choice.itemText(row) for row in range(choice.count())} != items:
        choice.clear()
        for key, title in items.items():
            choice.addItem(title, key)
            choice.setItemData(choice.count() - 1, plain_tip(title), Qt.ItemDataRole.ToolTipRole)
        choice.setCurrentIndex(list(items).index(chosen) if chosen in items else otherwise)
    choice.setToolTip(plain_tip(choice.currentText()))
