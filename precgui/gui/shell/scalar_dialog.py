"""Asks which scalar of an event file is the loss and which are other signals, where their names do not say so."""

from __future__ import annotations

from collections.abc import Mapping

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import (
    QComboBox,
    QDialog,
    QDialogButtonBox,
    QFormLayout,
    QScrollArea,
    QVBoxLayout,
    QWidget,
)

from precgui.gui.kit.choice import ignore_wheel
from precgui.gui.kit.plain_text import PlainLabel
from precgui.gui.theme import themes
from precgui.runs.tensorboard.imported_run import Scalars
from precgui.runs.tensorboard.imports import EventScalars
from precgui.runs.tensorboard.tags import SIGNALS, shows_training
from precgui.words import L_, _, n_, paragraph, translated

TITLES = {
    "loss": L_("Loss"),
    "val_loss": L_("Validation loss"),
    "val_accuracy": L_("Validation accuracy"),
    "scale": L_("Loss scale"),
    "skipped": L_("Skipped steps"),
    "lr": L_("Learning rate"),
    "grad_norm": L_("Gradient norm"),
    "step_s": L_("Step time (s)"),
    "data_s": L_("Time for data (s)"),
    "samples": L_("Samples in a step"),
    "memory_bytes": L_("Peak memory (bytes)"),
    "backward_passes": L_("Backward passes in a step"),
    "optimizer_steps": L_("Optimizer steps in a step"),
    "cpu_s": L_("CPU time (s)"),
}
NOTHING = L_("not in the file")
_NEVER = L_("No event file tells of tensors, power, or how the run ended.")
_FOREIGN = L_("This one was not written by precgui, so the precision and the machine are unknown, too.")
_NEEDED = L_("Choose a loss, a validation loss or a validation accuracy: without one there is nothing to compare.")


class ScalarsDialog(QDialog):
    """`chosen`: the tag of each signal, empty for what is not in the file."""

    chosen = Signal(dict)

    def __init__(self, events: EventScalars, now: Mapping[str, str], parent: QWidget) -> None:
        """`now` is what is shown at first: a tag for each signal that has one."""
        super().__init__(parent)
        themes().dress(self)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(_("Scalars of {name}").format(name=events.path.name))
        self._events = events
        self.choices = {signal: self._choice(translated(TITLES[signal]), now.get(signal, "")) for signal in TITLES}
        self.missing = PlainLabel(self)
        self.buttons = QDialogButtonBox(self)
        self.accept_button = self.buttons.addButton(_("Show"), QDialogButtonBox.ButtonRole.AcceptRole)
        self.buttons.addButton(QDialogButtonBox.StandardButton.Cancel)
        self._lay_out()
        self.resize(min(600, parent.width() - 48), min(620, parent.height() - 48))
        self.buttons.accepted.connect(self.accept)
        self.buttons.rejected.connect(self.reject)
        self._tell()

    def chosen_tags(self) -> dict[str, str]:
        return {signal: str(choice.currentData()) for signal, choice in self.choices.items()}

    def accept(self) -> None:
        self.chosen.emit(self.chosen_tags())
        super().accept()

    def _choice(self, title: str, tag: str) -> QComboBox:
        choice = QComboBox(self)
        choice.setAccessibleName(title)
        choice.addItem(translated(NOTHING), "")
        for each in sorted(self._events.scalars):
            choice.addItem(f"{each}   {_points(self._events.scalars[each])}", each)
        choice.setCurrentIndex(max(choice.findData(tag), 0))
        choice.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        choice.setMinimumContentsLength(34)
        choice.currentIndexChanged.connect(self._tell)
        ignore_wheel(choice)
        return choice

    def _lay_out(self) -> None:
        count = len(self._events.scalars)
        sentence = n_(
            "{file} holds {count} scalar. Which is it?", "{file} holds {count} scalars. Which is which?", count
        )
        head = PlainLabel(sentence.format(file=self._events.path, count=count), self)
        for label in (head, self.missing):
            label.setWordWrap(True)
            label.setTextFormat(Qt.TextFormat.PlainText)
        self.missing.setProperty("kind", "muted")
        self.missing.setMinimumHeight(4 * self.missing.fontMetrics().lineSpacing())  # so that nothing jumps
        self.missing.setAlignment(Qt.AlignmentFlag.AlignTop)
        inner = QWidget(self)
        form = QFormLayout(inner)
        form.setContentsMargins(0, 0, 8, 0)
        for signal, choice in self.choices.items():
            form.addRow(translated(TITLES[signal]), choice)
        area = QScrollArea(self)
        area.setWidget(inner)
        area.setWidgetResizable(True)
        area.setFrameShape(QScrollArea.Shape.NoFrame)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(16, 16, 16, 16)
        layout.setSpacing(12)
        layout.addWidget(head)
        layout.addWidget(area, 1)
        layout.addWidget(self.missing)
        layout.addWidget(self.buttons)

    def _tell(self) -> None:
        """A sentence on the signals that will be missing, and whether anything is left to show."""
        tags = {signal: tag for signal, tag in self.chosen_tags().items() if tag}
        enough = shows_training(tags)
        self.accept_button.setEnabled(enough)
        absent = _(", ").join(translated(TITLES[signal]).lower() for signal in SIGNALS if signal not in tags)
        sentences = [_("Not in the file: {absent}.").format(absent=absent)] if absent else []
        sentences.append(translated(_NEVER))
        sentences += [] if self._events.about else [translated(_FOREIGN)]
        self.missing.setText(paragraph(*sentences) if enough else translated(_NEEDED))


def _points(scalars: Scalars) -> str:
    """The length and the last value of a series, by which similar series differ."""
    count = len(scalars.step)
    sentence = n_("({count} point, last {last:.4g})", "({count} points, last {last:.4g})", count)
    return sentence.format(count=count, last=scalars.value[-1])
