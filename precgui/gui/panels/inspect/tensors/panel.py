"""Tensors: where the exponents of gradients, weights and activations lie, and what another format would do to them."""

from __future__ import annotations

import time
from math import ldexp

import numpy as np
from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QLineEdit, QSplitter, QVBoxLayout, QWidget

from precgui.config.precision_traits import TRAITS
from precgui.gui.kit.empty_state import EmptyState, Pages
from precgui.gui.kit.pages import PageStack
from precgui.gui.kit.plain_text import ElidedLabel, PlainLabel
from precgui.gui.panels.inspect.tensors import summary_text as verdict
from precgui.gui.panels.inspect.tensors.controls import WhatIfBar, fill
from precgui.gui.panels.inspect.tensors.incremental_reader import IncrementalReader
from precgui.gui.panels.inspect.tensors.list import TensorList
from precgui.gui.panels.inspect.tensors.model import TensorTable
from precgui.gui.panels.inspect.tensors.spectrogram import Spectrogram
from precgui.gui.panels.inspect.tensors.step_view import StepView
from precgui.gui.plots.heat_map import HeatMap
from precgui.gui.requests import TensorPlace
from precgui.gui.session import Session
from precgui.runs.tensors.confidence import Provenance, basis_of
from precgui.runs.tensors.grouping import Rows, View, grouped
from precgui.runs.tensors.lost import lost_shares
from precgui.runs.tensors.what_if import Prediction, WhatIf, range_of
from precgui.words import L_, _, translated

STORED_LOW = tuple(name for name, row in TRAITS.items() if row.is_stored_low)
KINDS = {
    "gradient": L_("Gradients"),
    "weight": L_("Weights"),
    "update": L_("Updates"),
    "optimizer": L_("Optimizer state"),
    "activation": L_("Activations"),
    "activation_gradient": L_("Activation gradients"),
    "buffer": L_("Buffers"),
    "ema": L_("Averaged weights"),
}
REFRESH_MS = 1000  # of a run that goes on
SLICE_S, PAUSE_MS = 0.01, 5  # of reading a long record, and between two of them
_NO_RUN = L_("Open a run, or start one: precgui records the exponents of its gradients, weights and activations.")
_NO_TENSORS = L_("This run holds no tensors: event files never do, run files do with record.tensors (in Run).")


_MAP_PX = 160
_MAP_TITLE = L_("Share lost, all tensors over the steps")
_MAP_ABOUT = L_(
    "One row for each tensor, steps from left to right; the colour is the share that the chosen format loses. Click or "
    "use the arrow keys for a tensor and a step."
)
_CELL_TEXT = L_("{name}\nstep {step}: {share} lost")


class TensorsPanel(Pages):
    """One run, one kind of tensor, one format and scale at a time."""

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(EmptyState("tensors", _("No tensors yet"), translated(_NO_RUN)), parent)
        self._session = session
        self.view: View | None = None
        self._rows: Rows | None = None
        self._reading: IncrementalReader | None = None
        self._run_key: str | None = None
        self._requested: TensorPlace | None = None
        self._reading_key: tuple[str | None, str | None] = (None, None)
        self._what_if: WhatIf | None = None
        self._prediction: Prediction | None = None
        self._basis: Provenance | None = None
        self._step: float | None = None
        self._read_s = 0.0
        self.bar = WhatIfBar(self)
        self.verdict = PlainLabel(self)
        self.table = TensorTable(self)
        self.list = TensorList(self.table, self)
        self.filter = QLineEdit(self)
        self.caption = ElidedLabel(self)
        self.spectrogram, self.moment = Spectrogram(), StepView(self)
        self.heat_map = HeatMap(translated(_MAP_TITLE), translated(_MAP_ABOUT), translated(_CELL_TEXT), self)
        self.heat_map.setMinimumHeight(_MAP_PX)
        self._pictures = PageStack(self)
        self._sides = QSplitter(self)
        self._later = QTimer(self, singleShot=True, interval=REFRESH_MS)
        self._later.setObjectName("later")
        self._slice_timer = QTimer(self, singleShot=True, interval=PAUSE_MS)
        self._arrange()
        self._connect()
        self.show_run(None)

    def _arrange(self) -> None:
        self.verdict.setWordWrap(True)
        self.verdict.setMinimumHeight(2 * self.verdict.fontMetrics().lineSpacing())  # so that nothing jumps below it
        self.verdict.setAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignTop)
        self.verdict.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.filter.setPlaceholderText(_("Filter by any part of a name"))
        self.filter.setAccessibleName(_("Filter the tensors"))
        self.filter.setClearButtonEnabled(True)
        self.caption.setProperty("kind", "muted")
        self.caption.setIndent(6)
        plots = QSplitter(Qt.Orientation.Vertical, self)
        for picture in (self.spectrogram, self.heat_map):
            self._pictures.addWidget(picture)
        plots.addWidget(_column(self, self.caption, self._pictures))
        plots.addWidget(self.moment)
        plots.setSizes([360, 180])
        self._sides.addWidget(_column(self, self.filter, self.list))
        self._sides.addWidget(plots)
        self._sides.setSizes([660, 500])
        layout = QVBoxLayout(self.content)
        layout.setContentsMargins(12, 8, 12, 8)
        layout.addWidget(self.bar)
        layout.addWidget(self.verdict)
        layout.addWidget(self._sides, 1)

    def _connect(self) -> None:
        session = self._session
        session.runs.changed.connect(self._on_changed)
        session.runs.data_arrived.connect(self._on_data)
        self._later.timeout.connect(self._take_run)
        self._slice_timer.timeout.connect(self._read_on)
        self.bar.kind_choice.activated.connect(self._read)
        self.bar.grouping.activated.connect(self._group)
        self.bar.picture.currentIndexChanged.connect(self._choose_picture)
        self.bar.asked.connect(self._predict)
        self.heat_map.cell_chosen.connect(self._choose_cell)
        self.bar.idle.connect(self.list.order.sort_again)
        self.filter.textChanged.connect(self.list.order.set_words)
        self.list.selectionModel().selectionChanged.connect(self._draw)
        self.spectrogram.step_chosen.connect(self._choose_step)
        self.moment.number_requested.connect(self._show_bits)

    def show_run(self, key: str | None) -> None:
        """Show the tensors of another run; None shows none."""
        self._run_key = key
        self._take_run()

    def show_tensor(self, place: TensorPlace) -> None:
        """Show a step of a tensor, as soon as the run is shown."""
        self._requested = place
        self._take_run()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._take_run()

    def _on_changed(self, key: str) -> None:
        if key == self._run_key:
            self._take_run()

    def _on_data(self, key: str) -> None:
        """Read new rows of a running run, at most once a second and only while the panel is visible."""
        if key == self._run_key and self.isVisible() and not self._later.isActive():
            self._later.start(0 if self.is_empty else max(REFRESH_MS, round(20_000 * self._read_s)))

    def _key(self) -> str | None:
        """The key of the run while it is open and holds tensors."""
        opened = self._session.runs.get(self._run_key or "")
        return self._run_key if opened is not None and opened.run.tensors() else None

    def _take_run(self) -> None:
        self.empty.set_text(translated(_NO_TENSORS if self._run_key in self._session.runs else _NO_RUN))
        if not self.isVisible():
            return
        self.show_content(self._key() is not None)
        self._take_kinds()
        self._go_to_requested()

    def _go_to_requested(self) -> None:
        """Choose the kind, the tensor and the step that another panel asked for."""
        place, self._requested = self._requested, None
        if place is None or self._key() is None:
            return
        kind, name, self._step = place
        self.bar.kind_choice.setCurrentIndex(self.bar.kind_choice.findData(kind))
        self.bar.grouping.setCurrentIndex(0)
        self._read()
        if self.view is not None and name in self.view.names:
            self.list.choose(self.view.names.index(name))
        self._draw()

    def _take_kinds(self) -> None:
        key, choice = self._key(), self.bar.kind_choice
        recorded = self._session.runs[key].run.tensors() if key is not None else {}
        fill(choice, {kind: translated(KINDS[kind]) for kind in recorded}, choice.currentData(), 0)
        self._read()

    def _read(self) -> None:
        """Read what is new, of much a part, and show it; the rest comes piece by piece."""
        key, kind = self._key(), self.bar.kind_choice.currentData()
        begin = time.perf_counter()
        if (key, kind) != self._reading_key or self._reading is None:
            self._reading_key = key, kind
            self._reading = IncrementalReader(self._session.runs[key].run, kind) if key is not None and kind else None
        if self._reading is not None:
            self._reading.read_new()
            self._slice_timer.start()
        self._show_rows()
        self._read_s = time.perf_counter() - begin

    def _show_rows(self) -> None:
        self._rows = self._reading.rows() if self._reading is not None else None
        self._group()

    def _read_on(self) -> None:
        """A slice of what is left of a long record; it is shown when all of it has come."""
        reading = self._reading
        if reading is None or not self.isVisible() or reading.done >= reading.total:
            return
        if reading.go_on(SLICE_S):
            self._slice_timer.start()
            self._tell()
        else:
            self._show_rows()

    def _group(self) -> None:
        """Group the tensors as chosen; the selection in the list stays."""
        row = self.list.chosen()
        name = self.table.names[row] if row < len(self.table.names) else ""
        self.view = grouped(self._rows, self.bar.grouping.currentData()) if self._rows is not None else None
        self._what_if = self.view.what_if if self.view is not None else None
        self._basis = self._basis_of(self.view) if self.view is not None else None
        others = self.table.show_view(self.view)
        self.list.show_columns(updates=self.bar.kind_choice.currentData() == "update")
        self._predict()
        if self.view is not None:
            if others:
                self.list.choose(self.view.names.index(name) if name in self.view.names else 0)
            self._draw()

    def _predict(self) -> None:
        """The format or the scale was moved: everything that follows from them."""
        for plot in (self.spectrogram, self.moment.histogram):
            plot.show_range(range_of(self.bar.format), self.bar.log2_scale)
        self._prediction = (
            self._what_if.predict(self.bar.format, self.bar.log2_scale) if self._what_if is not None else None
        )
        self.table.predict(self._prediction)
        self._mark_overflows()
        self._show_losses()
        self._tell()

    def _choose_picture(self, place: int) -> None:
        self._pictures.setCurrentIndex(place)
        self._show_losses()
        self._draw()

    def _show_losses(self) -> None:
        """Draw the heat map, while it is visible."""
        if self._pictures.currentWidget() is self.heat_map:
            view = self.view
            key, scale = self._key(), self.bar.log2_scale
            precision = self._session.runs[key].run.config.precision if key is not None else ""
            stored = precision.partition("-")[0] if precision in STORED_LOW else ""
            lost = lost_shares(view, self.bar.format, scale, stored) if view is not None else None
            self.heat_map.show_shares(lost)
            self.caption.setText(verdict.losses_caption(lost, self.bar.format) if lost is not None else "")

    def _choose_cell(self, entry: int, step: float) -> None:
        """A cell of the heat map leads to its tensor in the list and to its step."""
        self._step = step
        self.list.choose(entry)
        self._draw()

    def _mark_overflows(self) -> None:
        view, row = self.view, self.list.chosen()
        if view is not None and row < len(view.names):
            amax = view.amax[:, row]
            with np.errstate(over="ignore"):
                over = np.ldexp(amax, self.bar.log2_scale) >= range_of(self.bar.format).overflow
            self.spectrogram.show_over(view.steps[over].astype(np.float64))

    def _basis_of(self, view: View) -> Provenance | None:
        key = self._key()
        if key is None:
            return None
        return basis_of(self._session.runs[key].run, view.rows.kind, sampled=bool(view.rows.sampled.any()))

    def _tell(self) -> None:
        """Updates the sentences: the effect of the format, NaN and Inf, and the share of a long record read so far."""
        view, reading, basis, key = self.view, self._reading, self._basis, self._key()
        if self._prediction is None or view is None or reading is None or basis is None or key is None:
            return
        scale = self.bar.log2_scale
        self.bar.show_certainty(translated(basis.word(scale)), list(map(translated, basis.reasons(scale))))
        question = self.bar.format, scale, self.bar.kind_choice.currentText().lower()
        answered = verdict.answer(self._prediction, view, basis, question)
        self.verdict.setText(
            answered
            + verdict.what_broke(view, self._session.runs[key].run)
            + verdict.how_much(reading.done, reading.total)
        )

    def _draw(self) -> None:
        """The picture of the chosen tensor."""
        view = self.view
        row = self.list.chosen()
        if view is None or row >= len(view.names):
            return
        done = self._reading.done if self._reading is not None else 0
        if self._pictures.currentWidget() is self.spectrogram:
            self.caption.setText(verdict.caption(view, row, done))
        self.heat_map.choose(row, self._step)
        self.spectrogram.show_rows(view.steps, view.histograms(row))
        self.spectrogram.show_bad(view.bad_steps(row))
        self._mark_overflows()
        one = self._reading.row_at(view.rows, self._step) if self._reading is not None else None
        if one is not None:
            self.spectrogram.choose(float(one.steps[0]) if self._step is not None else None)
            self.moment.show_moment(grouped(one, self.bar.grouping.currentData()), row)

    def _choose_step(self, step: float) -> None:
        self._step = step
        self._draw()

    def _show_bits(self, value: float) -> None:
        """The number as it would be stored, times the scale, in the format asked about and in those that are usual."""
        names = list(dict.fromkeys([self.bar.format, "fp32", "bf16", "fp16"]))
        self._session.requests.show_number(repr(ldexp(value, self.bar.log2_scale)), names)


def _column(parent: QWidget, *parts: QWidget) -> QWidget:
    """Parts below one another; the last one takes the room."""
    column = QWidget(parent)
    layout = QVBoxLayout(column)
    layout.setContentsMargins(0, 0, 0, 0)
    layout.setSpacing(4)
    for part in parts:
        layout.addWidget(part, 1 if part is parts[-1] else 0)
    return column
