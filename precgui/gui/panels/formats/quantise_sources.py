"""Where the tensor to be quantised comes from: drawn at random, typed, read from a file, or drawn as a run recorded."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PySide6.QtCore import QSignalBlocker, Qt, Signal
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QLineEdit, QVBoxLayout, QWidget

from precgui.formats.arrays import Floats
from precgui.formats.lists import parse_list
from precgui.formats.pieces import TensorReader, in_memory
from precgui.formats.real import to_float
from precgui.formats.sampling import draw_values
from precgui.formats.tensorfile import open_tensor
from precgui.formats.text import grouped
from precgui.gui.kit.plain_text import PlainLabel
from precgui.gui.panels.formats.reading import wrapped_label
from precgui.gui.panels.formats.recorded import Recorded
from precgui.gui.panels.formats.run_source import RunSource
from precgui.gui.panels.formats.tensor_source import TensorSource
from precgui.words import L_, _, paragraph, translated

ROWS, COLUMNS = 64, 256
SAMPLE = (256, 256)
RANDOM = {
    "random: normal": L_("random: normal"),
    "random: normal with outliers": L_("random: normal with outliers"),
    "random: uniform": L_("random: uniform"),
    "random: log-normal magnitudes": L_("random: log-normal magnitudes"),
}
TYPED = L_("typed")
Values = Callable[[], TensorReader]


class QuantiseSource(QWidget):
    """`values` gives the chosen tensor; it may be slow and is called in a thread."""

    changed = Signal()
    failed = Signal(str)

    def __init__(self, session: object, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._loaded: dict[str, tuple[Values, str]] = {}
        self.combo = QComboBox()
        for name in (*RANDOM, TYPED):
            self.combo.addItem(translated(name), name)
        self.combo.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.combo.setAccessibleName(_("Tensor"))
        self.combo.currentIndexChanged.connect(lambda at: self._choose(self.combo.itemData(at)))
        self.typed = QLineEdit("0.1, -0.7, 1/3, 2.5, -1e-3, 0.02, 6, -4")
        self.typed.setAccessibleName(_("Values"))
        self.typed.setToolTip(_("numbers with commas between them; repeat(0.1, 100) is a hundred times 0.1"))
        self.typed.textEdited.connect(lambda _: self.changed.emit())
        self.file = TensorSource(open_tensor)
        self.file.loaded.connect(self._take_file)
        self.file.failed.connect(self.failed)
        self.runs = RunSource(session)
        self.runs.loaded.connect(self._take_recorded)
        self.runs.failed.connect(self.failed)
        self.origin = wrapped_label("muted")
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        label = PlainLabel(_("&Tensor"))
        label.setBuddy(self.combo)
        for widget in (label, self.combo, self.typed):
            column.addWidget(widget)
        files = QHBoxLayout()
        files.addWidget(self.file)
        files.addWidget(self.runs, 2, Qt.AlignmentFlag.AlignLeft)
        files.addStretch(1)
        column.addLayout(files)
        column.addWidget(self.file.names)  # below its button: beside it, it would make the column wider
        column.addWidget(self.origin)
        self._show_fitting()

    def values(self) -> Values:
        """How to get the values, in their shape. The call raises InputError for typed text that is none."""
        chosen = self.combo.currentData()
        if chosen in self._loaded:
            return self._loaded[chosen][0]
        if chosen == TYPED:
            words = self.typed.text()
            return lambda: in_memory([to_float(real) for real in parse_list(words)])
        return lambda: in_memory(random_values(chosen.removeprefix("random: ")))

    def _choose(self, kind: str) -> None:
        self.runs.show_steps(kind == "run")
        self._show_fitting()
        self.changed.emit()

    def _show_fitting(self) -> None:
        chosen = self.combo.currentData()
        self.typed.setVisible(chosen == TYPED)
        words = self._loaded[chosen][1] if chosen in self._loaded else ""
        self.origin.setText(words)
        self.origin.setVisible(bool(words))

    def _take_file(self, values: TensorReader, name: str) -> None:
        shape = " × ".join(str(size) for size in values.shape)
        words = _("{count} values, all counted")
        if len(values.shape) > 1:
            words = _("{shape}: {count} values, all counted")
        self._show_loaded(
            "file",
            _("file: {name}").format(name=name),
            lambda: values,
            words.format(shape=shape, count=grouped(values.size)),
        )

    def _take_recorded(self, recorded: Recorded) -> None:
        size, known = SAMPLE[0] * SAMPLE[1], recorded.histogram()
        words = _(
            "Not the tensor itself, of which the run keeps no values: {size} numbers drawn from the exponents recorded "
            "at step {step} (of {count:.0f} elements). Exponents and the largest magnitude are as recorded; digits, "
            "signs and order are random."
        ).format(size=size, step=recorded.step, count=known.counts.sum())
        if recorded.not_finite:
            left_out = _("{count} values that are not finite are left out.").format(count=recorded.not_finite)
            words = paragraph(words, left_out)
        title = _("run: {name}").format(name=recorded.title)
        self._show_loaded("run", title, lambda: in_memory(draw_values(known, size).reshape(SAMPLE)), words)

    def _show_loaded(self, kind: str, title: str, values: Values, words: str) -> None:
        """Put it into the list in the place of the last of its kind, and choose it."""
        with QSignalBlocker(self.combo):
            before = self.combo.findData(kind)
            if before >= 0:
                self.combo.removeItem(before)
            self.combo.addItem(title, kind)
            self.combo.setCurrentIndex(self.combo.count() - 1)
        self._loaded[kind] = (values, words)
        self._choose(kind)


def random_values(kind: str) -> Floats:
    """64 rows of 256 values, always the same ones."""
    rng = np.random.default_rng(7)
    if kind == "uniform":
        return rng.uniform(-1, 1, (ROWS, COLUMNS))
    values = rng.normal(size=(ROWS, COLUMNS))
    if kind == "normal with outliers":
        values[rng.random(values.shape) < 0.002] *= 30
    return np.sign(values) * 10.0 ** rng.normal(-2, 1, values.shape) if kind.startswith("log") else values
