"""The frame around a plot: which signal, how it is drawn, logarithmic or not, save; or why it is empty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import QPoint, Qt, QTimer
from PySide6.QtCore import Signal as QtSignal
from PySide6.QtGui import QFontMetrics
from PySide6.QtWidgets import (
    QComboBox,
    QFrame,
    QHBoxLayout,
    QMenu,
    QStackedWidget,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from precgui.gui.kit.plain_text import ElidedLabel, PlainLabel
from precgui.gui.plots import export
from precgui.gui.plots.chart import Chart
from precgui.gui.plots.curve_chart import CurveChart
from precgui.gui.plots.event_chart import EventChart
from precgui.gui.plots.saving import FORMS, ChartExport
from precgui.gui.plots.signals import EVENTS, METRIC, SIGNALS, Signal, suited
from precgui.words import _, translated

if TYPE_CHECKING:
    from precgui.gui.open_run import DrawnRun

_MESSAGE_MS = 4000


class PlotFrame(QFrame):
    """One of the linked plots. `chart_replaced`: another signal was chosen; `scale_changed`: linear or logarithmic."""

    chart_replaced = QtSignal()
    scale_changed = QtSignal()
    failed = QtSignal(str)

    def __init__(self, key: str, parent: QWidget | None = None, choices: Mapping[str, Signal] = SIGNALS) -> None:
        super().__init__(parent)
        self._choices = choices
        self.setProperty("kind", "card")
        self.chooser = QComboBox(self)
        self.note = ElidedLabel(self)
        self.log_button = QToolButton(self)
        self.save_button = QToolButton(self)
        self.message = PlainLabel(self)
        self.body = QStackedWidget(self)
        self.saver = ChartExport(self)
        self._message_timer = QTimer(self, interval=_MESSAGE_MS, singleShot=True)
        self._arrange()
        self._fill(key)
        self.chart = self._make_chart(key)
        self._connect()

    def _arrange(self) -> None:
        head = QHBoxLayout()
        head.setContentsMargins(8, 8, 8, 0)
        head.setSpacing(8)
        head.addWidget(self.chooser)
        head.addWidget(self.note, 1)
        head.addWidget(self.log_button)
        head.addWidget(self.save_button)
        self.note.setProperty("kind", "muted")
        self.message.setProperty("kind", "muted")
        self.message.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.message.setWordWrap(True)
        self.message.setContentsMargins(24, 8, 24, 8)
        self.message.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.body.addWidget(self.message)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(1, 1, 1, 4)
        layout.setSpacing(0)
        layout.addLayout(head)
        layout.addWidget(self.body, 1)

    def _fill(self, key: str) -> None:
        for signal in self._choices.values():
            self.chooser.addItem(translated(signal.title), signal.key)
        self.chooser.setCurrentIndex(self.chooser.findData(key))
        self.chooser.setAccessibleName(_("Signal of this plot"))
        self.chooser.setToolTip(_("Choose what this plot shows"))
        self.log_button.setText(_("log"))
        self.log_button.setCheckable(True)
        self.log_button.setToolTip(_("Logarithmic value axis"))
        self.log_button.setAccessibleName(_("Logarithmic value axis"))
        self.save_button.setText(_("Save ▾"))
        self.save_button.setStyleSheet("QToolButton::menu-indicator { image: none; }")
        self.save_button.setToolTip(_("Save or copy this plot or its recorded values"))
        self.save_button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.save_button.setMenu(self._save_menu())
        for button in (self.log_button, self.save_button):
            button.setFocusPolicy(Qt.FocusPolicy.StrongFocus)

    def _save_menu(self) -> QMenu:
        menu = QMenu(self)
        for form, requested in FORMS.items():
            menu.addAction(translated(requested.text), partial(self._ask, form))
        menu.addSeparator()
        menu.addAction(_("Copy picture"), self.copy_image)
        return menu

    def _ask(self, form: str) -> None:
        self.saver.ask(self.chart, form)

    def _connect(self) -> None:
        self.chooser.currentIndexChanged.connect(self._on_chosen)
        self.log_button.toggled.connect(self._on_log)
        self.saver.reported.connect(self.tell)
        self.saver.failed.connect(self.failed)
        self._message_timer.timeout.connect(self.show_note)
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        self.customContextMenuRequested.connect(self._on_context_menu)

    def _on_context_menu(self, place: QPoint) -> None:
        self.save_button.menu().popup(self.mapToGlobal(place))

    def _make_chart(self, key: str) -> Chart:
        signal = self._choices[key]
        chart: Chart = EventChart(signal) if key == EVENTS else CurveChart(signal)
        chart.restyle()
        self.body.addWidget(chart)
        self.body.setCurrentWidget(chart)
        self.log_button.setVisible(signal.log is not None)
        self.log_button.blockSignals(True)
        self.log_button.setChecked(signal.scale != "linear")
        self.log_button.blockSignals(False)
        return chart

    def _on_chosen(self) -> None:
        self.show_signal(self.chooser.currentData())

    def show_signal(self, key: str) -> None:
        """Show another signal, in a chart of its own."""
        if key == self.chart.signal.key:
            return
        self.chooser.setCurrentIndex(self.chooser.findData(key))
        if key == self.chart.signal.key:
            return
        old = self.chart
        self.chart = self._make_chart(key)
        self.body.removeWidget(old)
        old.close()
        old.deleteLater()
        self.chart_replaced.emit()

    def _on_log(self, requested: bool) -> None:
        self.chart.set_scale(self.chart.signal.log if requested and self.chart.signal.log else "linear")
        self.scale_changed.emit()

    def set_runs(self, runs: Sequence[DrawnRun]) -> None:
        self.chart.set_runs(runs)
        metric = suited(SIGNALS[METRIC], [opened.run for opened in runs if opened.visible])
        self.chooser.setItemText(self.chooser.findData(METRIC), translated(metric.title))

    def pull(self) -> None:
        """Take over new data; the metric of a run is not known before its first step."""
        runs = self.chart.runs
        if suited(self.chart.signal, [opened.run for opened in runs if opened.visible]) != self.chart.signal:
            self.set_runs(runs)
        self.chart.pull()

    def draw(self) -> None:
        """Draw what the chart has, or say why there is nothing."""
        empty = self.chart.is_empty()
        if empty:
            self.message.setText(self.chart.empty_sentence())
        else:
            self.chart.draw()
        for button in (self.log_button, self.save_button):
            button.setEnabled(not empty)
        widget: QWidget = self.message if empty else self.chart
        if self.body.currentWidget() is not widget:
            self.body.setCurrentWidget(widget)
        self.show_note()

    def show_note(self) -> None:
        """Describe how the plot is drawn, unless a message is shown."""
        if self._message_timer.isActive() or self.saver.is_busy:
            return
        text = "" if self.body.currentWidget() is self.message else self.chart.note
        if text != self.note.text():
            self.note.setText(text)

    def tell(self, text: str) -> None:
        """Say something beside the chooser for a few seconds."""
        self.note.setText(QFontMetrics(self.note.font()).elidedText(text, Qt.TextElideMode.ElideMiddle, 400))
        self._message_timer.start()

    def copy_image(self) -> None:
        export.copy_image(self.chart)
        self.tell(_("Copied"))
