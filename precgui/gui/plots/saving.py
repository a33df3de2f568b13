"""Saving a plot: the file dialog, the chosen form, and progress while a long record is written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from PySide6.QtCore import QObject, QTimer, Signal
from PySide6.QtWidgets import QFileDialog, QWidget

from precgui.gui.kit.file_dialogs import ask_for_new_file
from precgui.gui.plots import export
from precgui.gui.plots.chart import Chart
from precgui.gui.plots.signals import grouped
from precgui.words import L_, _, error_text, n_, translated


@dataclass(frozen=True, slots=True)
class SaveFormat:
    """One way to save a plot."""

    text: str
    suffix: str
    filter: str


FORMS: Mapping[str, SaveFormat] = {
    "png": SaveFormat(L_("Save as PNG..."), ".png", L_("PNG picture (*.png)")),
    "svg": SaveFormat(L_("Save as SVG..."), ".svg", L_("SVG drawing (*.svg)")),
    "csv": SaveFormat(L_("Save values as CSV..."), ".csv", L_("Comma-separated values (*.csv)")),
}


class ChartExport(QObject):
    """Saves one chart at a time. `reported`: progress and success; `failed`: one sentence that says what to do."""

    reported = Signal(str)
    failed = Signal(str)
    folder = Path.home()  # where the last plot went; the next dialog starts there

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self._widget = parent
        self._chunks: Iterator[int] | None = None
        self._path = Path()
        self._timer = QTimer(self, interval=0)
        self._timer.timeout.connect(self._next_chunk)

    def ask(self, chart: Chart, form: str) -> QFileDialog:
        """Open the dialog for a form; the file is written when a person accepts it."""
        requested = FORMS[form]
        title, kinds = translated(requested.text).rstrip("."), translated(requested.filter)
        return ask_for_new_file(
            self._widget, title, ChartExport.folder, kinds, lambda path: self.save(chart, form, path),
            suffix=requested.suffix, name=_file_name(chart) + requested.suffix,
        )  # fmt: skip

    def save(self, chart: Chart, form: str, path: Path) -> None:
        """Write the file; a long record is written bit by bit while the window goes on."""
        if self.is_busy:
            waits = _("{file} was not saved: {other} is still being written; wait for it.")
            self.failed.emit(waits.format(file=path.name, other=self._path.name))
            return
        ChartExport.folder = path.parent
        if form == "csv":
            self._chunks = export.write_csv(chart, path)
            self._path = path
            self._timer.start()
            return
        write: Callable[[Chart, Path], None] = export.save_png if form == "png" else export.save_svg
        try:
            write(chart, path)
        except OSError as error:
            self.failed.emit(_("The plot was not saved: {why}").format(why=error_text(error)))
        else:
            self.reported.emit(_("Saved {file}").format(file=path.name))

    @property
    def is_busy(self) -> bool:
        return self._chunks is not None

    def _next_chunk(self) -> None:
        assert self._chunks is not None
        try:
            rows = next(self._chunks, None)
        except OSError as error:
            self._finish()
            self.failed.emit(_("The values were not saved: {why}").format(why=error_text(error)))
            return
        if rows is None:
            self._finish()
            self.reported.emit(_("Saved {file}").format(file=self._path.name))
        else:
            self.reported.emit(n_("{number} row written", "{number} rows written", rows).format(number=grouped(rows)))

    def _finish(self) -> None:
        self._timer.stop()
        self._chunks = None


def _file_name(chart: Chart) -> str:
    """A name for the file: the run when there is one, and the signal."""
    runs = chart.visible_runs()
    parts = ([runs[0].name] if len(runs) == 1 else []) + [chart.signal.key]
    return re.sub(r"[^\w.-]+", "-", "-".join(parts)).strip("-.") or "plot"
