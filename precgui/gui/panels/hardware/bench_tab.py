"""The Measured tab: run the bench in a process of its own, watch it, compare with earlier days, export."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from PySide6.QtCore import QTimer, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import (
    QComboBox,
    QGridLayout,
    QMenu,
    QProgressBar,
    QPushButton,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from precgui.gui.answer import Answer, ProgressCallback, child, computation, thread
from precgui.gui.kit.file_dialogs import ask_for_new_file
from precgui.gui.kit.icons import icon
from precgui.gui.panels.hardware.bench_result import PARTS, ResultView
from precgui.gui.panels.hardware.cards import label, scrolled
from precgui.gui.panels.hardware.model import HardwareModel
from precgui.gui.theme import themes
from precgui.hardware import measured
from precgui.hardware.figures import csv_text
from precgui.places.machine import measure_there
from precgui.places.settings import NamedPlace
from precgui.words import L_, _, translated


def as_json(result: Mapping[str, Any]) -> str:
    """The result as it is kept."""
    return json.dumps(result, indent=1)


class ExportButton(QToolButton):
    """Offers what to do with the result that `displayed` returns; `reported` takes a sentence about how it went."""

    def __init__(self, displayed: Callable[[], Mapping[str, Any] | None], reported: Callable[[str], None]) -> None:
        super().__init__()
        self._result, self._set_message = displayed, reported
        menu = QMenu(self)
        menu.addAction(_("Copy as JSON"), self.copy)
        menu.addAction(_("Save as JSON…"), lambda: self.ask("json", as_json))
        menu.addAction(_("Save as CSV…"), lambda: self.ask("csv", csv_text))
        self.setText(_("Export"))
        self.setIcon(icon("save"))
        self.setToolTip(_("Copy or save the result that is shown"))
        self.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.setMenu(menu)
        themes().follow(self, self._recolour)

    def _recolour(self) -> None:
        self.setIcon(icon("save"))

    def copy(self) -> None:
        if (result := self._result()) is not None:
            QGuiApplication.clipboard().setText(as_json(result))

    def ask(self, suffix: str, write: Callable[[Mapping[str, Any]], str]) -> None:
        """Ask for a file, then save the result that is shown now."""
        result = self._result()
        if result is None:
            return
        text = write(result)
        name = f"precgui-bench.{suffix}"
        ask_for_new_file(self, _("Save the result"), name, "", lambda path: self.save(path, text), suffix=suffix)

    def save(self, path: Path, text: str) -> None:
        """Write the text and report success or the error."""
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            self._set_message(_("{path} cannot be written: {error}").format(path=path, error=error))
        else:
            self._set_message(_("Saved {path}").format(path=path))


_NOTHING = L_("Nothing measured yet: Measure takes about a minute, and the window stays usable.")
_FAR = L_("Measuring at {place} for {seconds} s; it takes a minute or more, and the window stays usable.")
REDRAW_MS = 500  # between two parts of the view of a bench that runs
RATES, RATE_SIZES = ("fp32", "bf16"), (512, 1024)  # of the short bench of the first run
_LISTS = ("certificate", "accumulation", "gemm", "alignment", "conversions", "blocks", "energy")


class MeasuredTab(QWidget):
    """Measures a device, and shows a kept result or the bench that runs as it grows.

    `moved(done, total)` comes while it measures, `kept` when the result is kept, `over` with a problem or "".
    """

    moved = Signal(int, int)
    kept = Signal()
    over = Signal(str)

    def __init__(self, model: HardwareModel) -> None:
        super().__init__()
        self._model = model
        self._bench = Answer(self, progress=self._hear, ended=self._ended)
        self._keeping = Answer(self, answered=self._saved)
        self._far = Answer(
            self, progress=self._hear_far, failed=self._end_far, answered=self._end_far, title=_("Measuring at a place")
        )
        self._far.changed.connect(self._on_far)
        self._waits = self._asks_rates = False
        self._only: dict[str, Any] = {}  # the part of the bench that was asked for last; all of it without
        self._growing: dict[str, Any] | None = None
        self.device, self.results, self.view = QComboBox(), QComboBox(), ResultView()
        self.measure, self.stop = QPushButton(_("Measure")), QPushButton(_("Stop"))
        self.progress, self.message = QProgressBar(), label("", "muted")
        self.export = ExportButton(self._result, self.message.setText)
        self._redraw = QTimer(self, interval=REDRAW_MS, singleShot=True)
        self._redraw.timeout.connect(self._show_growth)
        self._next_part = 0
        self._lay_out()
        self.measure.clicked.connect(lambda _: self.start())
        self.stop.clicked.connect(self._ask_to_stop)
        self.results.currentIndexChanged.connect(self._show_chosen)
        model.machine_changed.connect(self._fill_devices)
        model.results_changed.connect(self._fill_results)
        model.idle.connect(self._on_idle)
        self._fill_devices()
        self._fill_results()

    def _lay_out(self) -> None:
        self.measure.setProperty("kind", "primary")
        self.stop.setEnabled(False)
        self.progress.setTextVisible(False)
        self.progress.hide()
        page = QWidget()
        column = QVBoxLayout(page)
        column.setContentsMargins(4, 12, 4, 4)
        column.setSpacing(8)
        column.addLayout(self._choices())
        column.addWidget(self.progress)
        column.addWidget(self.message)
        column.addWidget(self.view, 1)
        column.addStretch(0)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(scrolled(page))

    def _choices(self) -> QGridLayout:
        """The device with what can be done to it, and below it the result with its sizes."""
        grid = QGridLayout()
        grid.setColumnStretch(1, 1)
        for row, (title, box) in enumerate(((_("Device"), self.device), (_("Result"), self.results))):
            box.setAccessibleName(title)
            box.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
            box.setMinimumContentsLength(16)
            grid.addWidget(label(title, "muted"), row, 0)
            grid.addWidget(box, row, 1)
        self.results.setPlaceholderText(_("nothing measured yet"))
        for column, widget in enumerate((self.measure, self.stop), 2):
            grid.addWidget(widget, 0, column)
        grid.addWidget(self.view.size_box, 1, 2)
        grid.addWidget(self.export, 1, 3)
        return grid

    def _fill_devices(self) -> None:
        chosen = self.device.currentData()
        self.device.clear()
        for device in self._model.devices:
            if device.id == "cpu" or device.id.startswith(("cuda", "xpu", "mps")):
                self.device.addItem(device.name, device.id)
        best = self._model.best()
        requested = chosen or (best.id if best else None)
        self.device.setCurrentIndex(max(0, self.device.findData(requested)))
        self.measure.setEnabled(self.device.count() > 0 and not self._is_measuring)
        if self._asks_rates:
            self.start_rates()

    def _fill_results(self) -> None:
        self.results.blockSignals(True)
        self.results.clear()
        for result in self._model.results:
            when = str(result["started"])[:16].replace("T", " ")
            self.results.addItem(f"{when}  {result['device']['name']}")
        self.results.setCurrentIndex(min(0, self.results.count() - 1))  # a placeholder stops Qt from choosing it
        self.results.blockSignals(False)
        if self._growing is None:
            self._show_chosen()

    # Measuring

    def start_rates(self) -> None:
        """Measure the products in FP32 and BF16 alone, which takes some seconds; once the machine is known."""
        self._asks_rates = self.device.currentData() is None
        if not self._asks_rates:
            self.start({"formats": RATES, "sizes": RATE_SIZES, "parts": ("gemm",)})

    def start(self, only: Mapping[str, Any] | None = None) -> None:
        """Measure the chosen device in a process of its own; while a run trains, wait until it has ended.

        `only` are the fields of a BenchPlan that differ from a whole bench.
        """
        device = self.device.currentData()
        if device is None or self._is_measuring:
            return
        self._only = dict(only or {})
        self._set_waiting(self._model.is_busy)
        if self._waits:
            return
        if (place := self._model.place) is not None:
            self.message.setText(translated(_FAR).format(place=place.name, seconds=0))
            self._far.ask(computation(partial(_measured_there, place, device)))
            return
        self._model.holding.emit(True)
        self._model.measuring.emit(True)
        name = self.device.currentText()
        self._growing = {part: [] for part in _LISTS} | {"copy": None, "device": {"name": name, "id": device}}
        self._bench.ask(child("precgui.engine.bench.run:serve", {"device": device, **self._only}))
        self.measure.setEnabled(False)
        self.stop.setEnabled(True)
        self.progress.setRange(0, 0)
        self.progress.show()
        self.message.setText(_("Starting the engine…"))

    def _set_waiting(self, waits: bool) -> None:
        self._waits = waits
        self.measure.setEnabled(not waits)
        self.stop.setEnabled(waits)
        if waits:
            self.message.setText(_("A run is active: the measurement starts when it has ended. Stop cancels it."))

    def _on_idle(self) -> None:
        if self._waits:
            self._set_waiting(False)
            self.start(self._only)

    def _ask_to_stop(self) -> None:
        if self._waits:
            self._set_waiting(False)
            self.message.setText(_("The measurement was cancelled."))
        if self._bench.busy:
            self.message.setText(_("Stopping…"))
            self._bench.cancel()
        if self._far.busy:
            self.message.setText(_("The measurement was stopped; nothing of it is kept."))
            self._far.cancel()

    @property
    def is_waiting(self) -> bool:
        """Whether it starts to measure when the run that trains has ended."""
        return self._waits

    @property
    def _is_measuring(self) -> bool:
        return self._bench.busy or self._far.busy

    def _on_far(self) -> None:
        """A measurement at a place begins or ends; it does not tell how far it is."""
        busy = self._far.busy
        self._model.holding.emit(busy)
        self.measure.setEnabled(not busy and self.device.count() > 0)
        self.stop.setEnabled(busy)
        self.progress.setRange(0, 0)
        self.progress.setVisible(busy)

    def _hear_far(self, seconds: int) -> None:
        self.message.setText(translated(_FAR).format(place=self._model.place_name, seconds=seconds))

    def _end_far(self, problem: str) -> None:
        self.message.setText(problem)
        if not problem:
            self._model.read_results()

    def _hear(self, event: Mapping[str, Any]) -> None:
        assert self._growing is not None
        if event["kind"] == "progress":
            self.progress.setRange(0, event["total"])
            self.progress.setValue(event["done"])
            self.moved.emit(event["done"], event["total"])
            self.message.setText(translated(event["text"]))
        elif event["kind"] == "row":
            part = event["part"]
            if part == "copy":
                self._growing["copy"] = event["row"]
            else:
                self._growing[part].append(event["row"])
            if not self._redraw.isActive():
                self._redraw.start()
        elif event["result"]["complete"]:
            self._keep(event["result"])

    def _keep(self, result: dict[str, Any]) -> None:
        self._keeping.ask(thread(_kept, result))

    def _saved(self, problem: str) -> None:
        if problem:
            self.message.setText(problem)
        self._model.read_results()
        self.kept.emit()

    def _ended(self, problem: str) -> None:
        self._redraw.stop()
        self._show(self._growing)
        complete = self.progress.maximum() > 0 and self.progress.value() >= self.progress.maximum() - 1
        self._growing = None
        self._model.measuring.emit(False)
        self._model.holding.emit(False)
        self.progress.hide()
        self.measure.setEnabled(True)
        self.stop.setEnabled(False)
        self.message.setText(
            problem or ("" if complete else _("Stopped: an incomplete result is shown, but not kept."))
        )
        self.over.emit(self.message.text())

    # Showing

    def _show_chosen(self) -> None:
        result = self._chosen()
        self.results.setEnabled(self.results.count() > 0)
        if result is None:
            fault = self._model.waiting_text if self._model.machine is None else ""
            self.message.setText(translated(fault) or translated(_NOTHING))
        else:
            self.message.setText(_about(result))
        self._show(result)

    def _result(self) -> Mapping[str, Any] | None:
        return self._growing or self._chosen()

    def _show_growth(self) -> None:
        """One part of the view, then the next, until all show what has come."""
        if self._growing is None:
            return
        self._show_view(True)
        self.view.show_part(self._next_part, self._growing, self._earlier(self._growing))
        self._next_part = (self._next_part + 1) % PARTS
        if self._next_part:
            self._redraw.start()

    def _chosen(self) -> Mapping[str, Any] | None:
        index = self.results.currentIndex()
        return self._model.results[index] if 0 <= index < len(self._model.results) else None

    def _show(self, result: Mapping[str, Any] | None) -> None:
        self._show_view(result is not None)
        self.view.show_result(result, self._earlier(result) if result else None)

    def _show_view(self, visible: bool) -> None:
        """Show or hide the controls that need a result."""
        for widget in (self.view, self.view.size_box, self.export):
            widget.setVisible(visible)

    def _earlier(self, result: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return measured.earlier_than(result, self._model.results)


def _about(result: Mapping[str, Any]) -> str:
    device = result["device"]["name"]
    if result["device"]["kind"] == "cpu":
        device = f"{device}, {translated(measured.threads_text(result['threads']))}"
    return _(
        "{device}, torch {version}. Rates in 10¹² operations a second; dashed frame: theoretical peak where it is "
        "known; tick: the result before."
    ).format(device=device, version=result["torch"])


def _kept(result: dict[str, Any]) -> str:
    """Keep the result; the sentence to show when that fails."""
    try:
        measured.keep(result)
    except OSError as error:
        return _("The result cannot be kept in {folder}: {error}").format(folder=measured.folder(), error=error)
    return ""


def _measured_there(place: NamedPlace, device: str, progress: ProgressCallback) -> str:
    """Measure a device of a place, which keeps the result; empty, since faults are raised."""
    begin_s = time.monotonic()

    def look() -> None:
        progress(0.0)
        progress.partly(int(time.monotonic() - begin_s))

    measure_there(place, device, look)
    return ""
