"""The integer model of a quantised run: size, accuracy, latency, errors of its layers; and once more evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PySide6.QtCore import QModelIndex, QObject, QPersistentModelIndex, QRectF, Qt, Signal
from PySide6.QtGui import QColor, QPainter
from PySide6.QtWidgets import (
    QAbstractItemView,
    QDialog,
    QHBoxLayout,
    QHeaderView,
    QPushButton,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QTableWidget,
    QTableWidgetItem,
    QVBoxLayout,
    QWidget,
)

from precgui.events import Metric
from precgui.gui.answer import Answer, child, thread
from precgui.gui.kit.copied_rows import let_copy
from precgui.gui.kit.plain_text import PlainLabel
from precgui.gui.theme import themes
from precgui.runs.errors import RunFileError
from precgui.runs.file.reader import open_run
from precgui.runs.metric import metric_of, value_text
from precgui.runs.quantised_model import IntegerModel, LayerError, MeasuredModel, integer_model
from precgui.words import L_, _, error_text, n_, translated

UNKNOWN = "–"
_HEADS = (L_("Model"), L_("Size"))
_SHARE = Qt.ItemDataRole.UserRole
_EVALUATE = "precgui.engine.qat.saved_model:evaluate_in_child"
Index = QModelIndex | QPersistentModelIndex


class _ShareBar(QStyledItemDelegate):
    """A bar as long as the error is large beside the largest, under the text."""

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        share = index.data(_SHARE)
        if share:
            rect = QRectF(option.rect).adjusted(4, option.rect.height() - 6, -4, -3)
            rect.setWidth(max(2.0, rect.width() * share))
            painter.fillRect(rect, QColor(themes().theme.accent))
        super().paint(painter, option, index)


class IntegerModels(QObject):
    """Opens the dialog of a run file once that has been read in a thread. `failed` carries a sentence."""

    failed = Signal(str)

    def __init__(self, panel: QWidget) -> None:
        super().__init__(panel)
        self._panel = panel
        self.dialog: IntegerDialog | None = None
        self._reading = Answer(self, answered=self._show)

    def show_model(self, path: Path) -> None:
        self._reading.ask(thread(_read, path))

    def _show(self, metrics: tuple[str, IntegerModel, Metric] | str) -> None:
        if isinstance(metrics, str):
            self.failed.emit(metrics)
            return
        self.dialog = IntegerDialog(*metrics, self._panel.window())
        self.dialog.open()


def _read(path: Path) -> tuple[str, IntegerModel, Metric] | str:
    """Title, integer model and metric of a run, or a sentence."""
    try:
        with open_run(path) as run:
            model = integer_model(run)
            text = _("{file} has no integer model: the run did not reach its end, or qat.measure was off")
            return (run.title, model, metric_of(run.environment)) if model else text.format(file=path.name)
    except RunFileError as error:
        return error_text(error)


class IntegerDialog(QDialog):
    """`evaluated` carries what the engine said of the saved model, or a sentence."""

    evaluated = Signal(object)

    def __init__(self, title: str, model: IntegerModel, metric: Metric, parent: QWidget) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(_("Integer model of {title}").format(title=title))
        self._model, self._metric = model, metric
        self._evaluation = Answer(self, progress=self._show, ended=self._on_ended)
        self.models = _table(
            [*map(translated, _HEADS), translated(metric.title), _("Loss"), *map(_samples, model.batches)],
            len(model.models),
        )
        self.layers = _table([_("Layer"), _("Bits"), _("Error of weights"), _("Error of result")], len(model.layers))
        self.message = PlainLabel(self)
        self.again = QPushButton(_("Evaluate again"), self)
        self._lay_out()
        self._fill_models()
        self._fill_layers()
        self.resize(min(720, parent.width() - 48), min(560, parent.height() - 48))

    def _lay_out(self) -> None:
        how = PlainLabel(_how(self._model), self)
        for label in (how, self.message):
            label.setProperty("kind", "muted")
            label.setWordWrap(True)
            label.setTextFormat(Qt.TextFormat.PlainText)
            label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.models.setAccessibleName(_("The forms of the model"))
        self.layers.setAccessibleName(_("Quantisation error of each layer"))
        self.models.setFixedHeight(_height(self.models, len(self._model.models)))
        self.layers.setMinimumHeight(_height(self.layers, min(3, len(self._model.layers))))
        self.message.setText(_kept(self._model))
        self.again.setEnabled(self._model.file is not None)
        self.again.setToolTip(_("Read the saved model and evaluate it on the validation set, in a process of its own"))
        self.again.clicked.connect(self.evaluate)
        close = QPushButton(_("Close"), self)
        close.clicked.connect(self.close)
        close.setDefault(True)
        buttons = QHBoxLayout()
        buttons.addWidget(self.again)
        buttons.addStretch(1)
        buttons.addWidget(close)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(16, 16, 16, 16)
        layout.setSpacing(12)
        for widget in (self.models, how):
            layout.addWidget(widget)
        layout.addWidget(self.layers, 1)
        layout.addWidget(self.message)
        layout.addLayout(buttons)

    def _fill_models(self) -> None:
        integers = self._model.models[-1]
        for row, form in enumerate(self._model.models):
            metric = value_text(self._metric, form.metric, UNKNOWN)
            loss = UNKNOWN if form.loss is None else f"{form.loss:.4g}"
            times = [_latency(form, integers, count) for count in self._model.batches]
            for column, text in enumerate(
                [translated(form.title), _size(form, self._model.models[0]), metric, loss, *times]
            ):
                self.models.setItem(row, column, _cell(text, left=column == 0))

    def _fill_layers(self) -> None:
        largest = max((_worst(layer) for layer in self._model.layers), default=0.0)
        for row, layer in enumerate(self._model.layers):
            self.layers.setItem(row, 0, _cell(layer.name, left=True))
            self.layers.setItem(row, 1, _cell(str(layer.bits)))
            for column, error in ((2, layer.weight_error), (3, layer.output_error)):
                cell = _cell(f"{100 * error:.2f} %")
                cell.setData(_SHARE, error / largest if largest else 0.0)
                self.layers.setItem(row, column, cell)
        self.layers.setItemDelegate(_ShareBar(self.layers))

    # Once more ----------------------------------------------------------------------------------------------

    def evaluate(self) -> None:
        """Read the saved model and evaluate it, in a child process."""
        self.again.setEnabled(False)
        self.message.setText(_("Evaluating the saved model..."))
        self._evaluation.ask(child(_EVALUATE, {"path": str(self._model.file)}))

    def _show(self, reported: dict[str, Any]) -> None:
        self.message.setText(translated(reported["error"]) if "error" in reported else self._sentence(reported))
        self.evaluated.emit(reported)

    def _sentence(self, reported: dict[str, Any]) -> str:
        before = reported["saved"].get("loss")
        values: dict[str, Any] = {
            "samples": reported["samples"],
            "loss": f"{reported['now']['loss']:.4g}",
            "saved_loss": UNKNOWN if before is None else f"{before:.4g}",
        }
        if "metric" not in reported["now"]:
            return _("Evaluated again on {samples} samples: loss {loss} (saved with {saved_loss})").format(**values)
        now, saved = (value_text(self._metric, reported[when].get("metric"), UNKNOWN) for when in ("now", "saved"))
        text = _(
            "Evaluated again on {samples} samples: {metric} {value} (saved with {saved}), loss {loss} (saved with "
            "{saved_loss})"
        )
        return text.format(metric=translated(self._metric.title), value=now, saved=saved, **values)

    def _on_ended(self, fault: str) -> None:
        self.again.setEnabled(True)
        if fault:
            self.message.setText(fault)
            self.evaluated.emit(fault)


def _table(heads: Sequence[str], rows: int) -> QTableWidget:
    table = QTableWidget(rows, len(heads))
    table.verticalHeader().hide()
    table.verticalHeader().setDefaultSectionSize(table.fontMetrics().height() + 14)
    table.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
    table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
    table.setShowGrid(False)
    let_copy(table)
    table.setHorizontalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
    header = table.horizontalHeader()
    header.setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
    header.setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)
    header.setHighlightSections(False)
    for column, head in enumerate(heads):
        table.setHorizontalHeaderItem(column, _cell(head, left=column == 0))
    return table


def _height(table: QTableWidget, rows: int) -> int:
    row_px = table.verticalHeader().defaultSectionSize()
    return table.horizontalHeader().sizeHint().height() + rows * row_px + 2 * table.frameWidth() + 2


def _cell(text: str, *, left: bool = False) -> QTableWidgetItem:
    cell = QTableWidgetItem(text)
    side = Qt.AlignmentFlag.AlignLeft if left else Qt.AlignmentFlag.AlignRight
    cell.setTextAlignment(side | Qt.AlignmentFlag.AlignVCenter)
    return cell


def _samples(count: int) -> str:
    return n_("{count} sample", "{count} samples", count).format(count=count)


def _size(form: MeasuredModel, first: MeasuredModel) -> str:
    if form.size_bytes is None:
        return UNKNOWN
    text = f"{form.size_bytes / 1024:.0f} KiB"
    smaller = form is not first and first.size_bytes and form.size_bytes
    if not smaller:
        return text
    times = first.size_bytes / form.size_bytes  # type: ignore[operator]
    return _("{size}, {times:.1f}x smaller").format(size=text, times=times)


def _latency(form: MeasuredModel, integers: MeasuredModel, count: int) -> str:
    """The time, and how long the integers take beside it."""
    time_s, least_s = form.latency_s.get(count), integers.latency_s.get(count)
    if not time_s:
        return UNKNOWN
    text = f"{1e3 * time_s:.2f} ms"
    if form is integers or not least_s:
        return text
    return _("{time} (integers {ratio:.2f}x)").format(time=text, ratio=least_s / time_s)


def _worst(layer: LayerError) -> float:
    return max(layer.weight_error, layer.output_error)


def _how(model: IntegerModel) -> str:
    text = n_(
        "Measured on the CPU with {threads} thread, {samples} validation samples; best latencies of paired rounds, in "
        "brackets how much of that time the integers take. Converted by {library}; {arithmetic}. Errors are relative, "
        "in the L2 norm; the bar compares with the largest.",
        "Measured on the CPU with {threads} threads, {samples} validation samples; best latencies of paired rounds, in "
        "brackets how much of that time the integers take. Converted by {library}; {arithmetic}. Errors are relative, "
        "in the L2 norm; the bar compares with the largest.",
        model.threads,
    )
    by = "torchao (PT2E)" if model.backend == "torchao" else "precgui"
    kernels = _("{count} of {total} layers on integer kernels").format(
        count=model.native_layers, total=len(model.layers)
    )
    arithmetic = translated(model.arithmetic) or kernels
    return text.format(threads=model.threads, samples=model.samples, library=by, arithmetic=arithmetic)


def _kept(model: IntegerModel) -> str:
    if model.file is not None:
        return _("Saved in {file}").format(file=model.file)
    if model.kept:
        return _("The saved model is no longer where it was written.")
    return _("The integer model was measured and not kept; qat.save_to = auto keeps it beside the run.")
