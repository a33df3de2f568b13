"""Tensors: where the exponents of gradients, weights and activations lie, and what another format would do to them."""

from __future__ import annotations

import time
from math import isnan

import numpy as np
from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QLabel, QSlider, QSplitter, QStackedWidget, QVBoxLayout, QWidget

from precgui.gui.empty import EmptyState
from precgui.gui.panels.tensors_spectrogram import Histogram, Spectrogram
from precgui.gui.panels.tensors_table import CHANGED, TensorList, TensorTable, share_text
from precgui.gui.panels.tensors_view import View, read_view
from precgui.gui.plots.signals import power_label
from precgui.gui.state import State
from precgui.runs.whatif import WhatIf, format_names, range_of

KINDS = {
    "gradient": "Gradients",
    "weight": "Weights",
    "update": "Updates",
    "optimizer": "Optimizer state",
    "activation": "Activations",
    "activation_gradient": "Activation gradients",
}
SCALES = (-24, 40)  # exponents of two that the slider reaches
REFRESH_MS = 1000  # of a run that goes on
_NO_RUN = "Open a run, or start one: precgui records the exponents of its gradients, weights and activations."
_NO_TENSORS = "No tensors were recorded in the open runs; switch on record.tensors in Run."


class TensorsPanel(QWidget):
    """One run, one kind of tensor, one format and scale at a time."""

    def __init__(self, state: State, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._state = state
        self.view: View | None = None
        self._what_if: WhatIf | None = None
        self._step: float | None = None
        self._read_s = 0.0
        self.empty = EmptyState("tensors", "No tensors yet", _NO_RUN, "Choose a precision", self)
        self.run_choice, self.kind_choice, self.format_choice = QComboBox(self), QComboBox(self), QComboBox(self)
        self.slider = QSlider(Qt.Orientation.Horizontal, self)
        self.scale_text, self.verdict, self.moment = QLabel(self), QLabel(self), QLabel(self)
        self.table = TensorTable(self)
        self.list = TensorList(self.table, self)
        self.spectrogram, self.histogram = Spectrogram(), Histogram()
        self._pages = QStackedWidget(self)
        self._later = QTimer(self, singleShot=True, interval=REFRESH_MS)
        self._arrange()
        self._connect()
        self._take_runs()

    def _arrange(self) -> None:
        self.format_choice.addItems(format_names())
        self.format_choice.setCurrentText("fp16")
        self.slider.setRange(*SCALES)
        self.slider.setPageStep(4)
        self.slider.setAccessibleName("Loss scale")
        self.slider.setMinimumWidth(60)
        self.verdict.setWordWrap(True)
        self.moment.setProperty("kind", "muted")
        width = self.scale_text.fontMetrics().horizontalAdvance(f"scale {power_label(SCALES[0], 2)} ")
        self.scale_text.setFixedWidth(width)
        bar = QHBoxLayout()
        for text, widget in (
            ("&Run", self.run_choice),
            ("&Tensors", self.kind_choice),
            ("What if &format", self.format_choice),
        ):
            label = QLabel(text, self)
            label.setBuddy(widget)
            bar.addWidget(label)
            bar.addWidget(widget)
        bar.addWidget(self.slider, 1)
        bar.addWidget(self.scale_text)
        plots = QSplitter(Qt.Orientation.Vertical, self)
        below = QWidget(self)
        column = QVBoxLayout(below)
        column.setContentsMargins(0, 0, 0, 0)
        column.addWidget(self.moment)
        column.addWidget(self.histogram, 1)
        plots.addWidget(self.spectrogram)
        plots.addWidget(below)
        plots.setSizes([360, 180])
        sides = QSplitter(self)
        sides.addWidget(self.list)
        sides.addWidget(plots)
        sides.setSizes([620, 560])
        content = QWidget(self)
        layout = QVBoxLayout(content)
        layout.setContentsMargins(12, 8, 12, 8)
        layout.addLayout(bar)
        layout.addWidget(self.verdict)
        layout.addWidget(sides, 1)
        self._pages.addWidget(self.empty)
        self._pages.addWidget(content)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(self._pages)

    def _connect(self) -> None:
        state = self._state
        for signal in (state.run_added, state.run_removed, state.run_changed):
            signal.connect(self._take_runs)
        state.data_arrived.connect(self._on_data)
        self._later.timeout.connect(self._take_runs)
        self.empty.button.clicked.connect(lambda: state.panel_wanted.emit("setup"))
        self.run_choice.activated.connect(self._take_kinds)
        self.kind_choice.activated.connect(self._read)
        self.format_choice.currentIndexChanged.connect(self._predict)
        self.slider.valueChanged.connect(self._predict)
        self.list.selectionModel().selectionChanged.connect(self._draw)
        self.spectrogram.step_chosen.connect(self._choose_step)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._take_runs()

    def _on_data(self, key: str) -> None:
        """A run goes on: look again, at most once a second and only while somebody looks."""
        if self.isVisible() and not self._later.isActive() and key in (self._key(), None):
            self._later.start(max(REFRESH_MS, round(20_000 * self._read_s)))
        elif self.isVisible() and self._key() is None:
            self._take_runs()

    def _key(self) -> str | None:
        key: str | None = self.run_choice.currentData()
        return key

    def _take_runs(self) -> None:
        """The open runs that have tensors."""
        if not self.isVisible():
            return
        known = {key: opened.name for key, opened in self._state.runs.items() if opened.run.tensors()}
        chosen = self._key()
        self.run_choice.clear()
        for key, name in known.items():
            self.run_choice.addItem(name, key)
        self.run_choice.setCurrentIndex(list(known).index(chosen) if chosen in known else len(known) - 1)
        self.empty.set_text(_NO_TENSORS if self._state.runs else _NO_RUN)
        self._pages.setCurrentIndex(1 if known else 0)
        self._take_kinds()

    def _take_kinds(self) -> None:
        key = self._key()
        recorded = self._state.runs[key].run.tensors() if key is not None else {}
        chosen = self.kind_choice.currentData()
        self.kind_choice.clear()
        for kind in recorded:
            self.kind_choice.addItem(KINDS[kind], kind)
        self.kind_choice.setCurrentIndex(list(recorded).index(chosen) if chosen in recorded else 0)
        self._read()

    def _read(self) -> None:
        """Read the rows anew and show them; the tensor that was chosen stays so."""
        key, kind = self._key(), self.kind_choice.currentData()
        row = self.list.chosen()
        name = self.table.names[row] if row < len(self.table.names) else ""
        begin = time.perf_counter()
        self.view = read_view(self._state.runs[key].run, kind) if key is not None and kind else None
        self._what_if = self.view.what_if() if self.view is not None else None
        self._read_s = time.perf_counter() - begin
        self.table.show_view(self.view)
        self.list.setColumnHidden(CHANGED, kind != "update")
        self._predict()
        if self.view is not None:
            self.list.choose(self.view.names.index(name) if name in self.view.names else 0)
            self._draw()

    def _predict(self) -> None:
        """The format or the scale was moved: everything that follows from them."""
        scale, name = self.slider.value(), self.format_choice.currentText()
        self.scale_text.setText(f"scale {power_label(scale, 2)}")
        self.spectrogram.show_range(range_of(name), scale)
        if self._what_if is None:
            self.table.predict(None)
            return
        told = self._what_if.predict(name, scale)
        self.table.predict(told)
        safe = float(told.safe_scale[0])
        bound = "" if WhatIf.is_exact(scale) else " Below a scale of 1 this is a lower bound: more is lost on the way."
        limit = "" if isnan(safe) else f" The largest safe scale is {power_label(round(safe), 2)}."
        kind = self.kind_choice.currentText().lower()
        self.verdict.setText(
            f"In {name} at {power_label(scale, 2)}, {share_text(float(told.underflow[0]))} of all {kind} become zero, "
            f"{share_text(float(told.overflow[0]))} overflow.{limit}{bound}"
        )

    def _draw(self) -> None:
        """The picture of the chosen tensor."""
        view = self.view
        row = self.list.chosen()
        if view is None or row >= len(view.names):
            return
        self.spectrogram.show_rows(view.steps, view.exponents[:, row])
        place = len(view.steps) - 1 if self._step is None else int(np.abs(view.steps - self._step).argmin())
        self.spectrogram.choose(float(view.steps[place]) if self._step is not None else None)
        self.histogram.show_row(view.exponents[place, row])
        thinned = f"; one of {view.every} recorded steps is drawn" if view.every > 1 else ""
        self.moment.setText(f"{view.names[row]}, step {view.steps[place]}{thinned}")

    def _choose_step(self, step: float) -> None:
        self._step = step
        self._draw()
