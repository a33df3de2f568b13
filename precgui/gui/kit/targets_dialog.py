"""The targets of a study as a form: what a person asks of a precision, each with a bound or switched off."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import (
    QCheckBox,
    QDialog,
    QDialogButtonBox,
    QGridLayout,
    QLineEdit,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

from precgui.gui.kit.editors import number_text, read_number
from precgui.gui.kit.plain_text import PlainLabel
from precgui.runs.report.group_table import TITLES
from precgui.runs.verdict.targets import DEFAULT_TARGETS, TargetError, Targets, make_targets
from precgui.sentences import message_of
from precgui.words import L_, _, translated, whole

_TITLES = {**TITLES, "accuracy_lost": L_("Accuracy lost"), "metric_lost": L_("Metric lost, if it is no share")}
_LATE = L_(
    "The figures of this study are known already. Targets that are chosen with them in view make verdicts too kind; "
    "choose targets before Start where you can."
)


class TargetsDialog(QDialog):
    """`chosen` carries the Targets when they are accepted. `late`: the figures of the study have been seen already."""

    chosen = Signal(object)

    def __init__(self, targets: Targets, parent: QWidget | None = None, *, late: bool = False) -> None:
        super().__init__(parent)
        self.setWindowTitle(_("Targets"))
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.boxes: dict[str, QCheckBox] = {}
        self.bounds: dict[str, QLineEdit] = {}
        self.fault = PlainLabel(self)
        self.fault.setProperty("kind", "error")
        self.fault.setWordWrap(True)
        self.buttons = QDialogButtonBox(
            QDialogButtonBox.StandardButton.Ok | QDialogButtonBox.StandardButton.Cancel, parent=self
        )
        self.reset_button = QPushButton(_("Defaults"), self)
        self.buttons.addButton(self.reset_button, QDialogButtonBox.ButtonRole.ResetRole)
        self._lay_out(late)
        self.show_targets(targets)
        self.buttons.accepted.connect(self._accept)
        self.buttons.rejected.connect(self.reject)
        self.reset_button.clicked.connect(lambda: self.show_targets(DEFAULT_TARGETS))

    def _lay_out(self, late: bool) -> None:
        grid = QGridLayout()
        grid.setHorizontalSpacing(12)
        grid.setColumnStretch(2, 1)
        for row, (name, about) in enumerate(Targets.model_fields.items()):
            box, bound, about_label = (
                QCheckBox(translated(_TITLES[name]), self),
                QLineEdit(self),
                PlainLabel(translated(about.description or ""), self),
            )
            bound.setAccessibleName(_("{target}: bound").format(target=translated(_TITLES[name])))
            bound.setFixedWidth(84)
            about_label.setProperty("kind", "muted")
            about_label.setWordWrap(True)
            about_label.setMinimumWidth(320)
            box.toggled.connect(bound.setEnabled)
            box.toggled.connect(lambda _: self._check())
            bound.textChanged.connect(lambda _: self._check())
            for column, part in enumerate((box, bound, about_label)):
                grid.addWidget(part, row, column)
            self.boxes[name], self.bounds[name] = box, bound
        outer = QVBoxLayout(self)
        outer.setSpacing(12)
        if late:
            caution = PlainLabel(translated(_LATE), self)
            caution.setWordWrap(True)
            outer.addWidget(caution)
        outer.addLayout(grid)
        outer.addWidget(self.fault)
        outer.addWidget(self.buttons)

    def show_targets(self, targets: Targets) -> None:
        """Fill the form; a target that is off keeps its default as a proposal."""
        for name, bound in self.bounds.items():
            value = getattr(targets, name)
            self.boxes[name].setChecked(value is not None)
            bound.setText(number_text(getattr(DEFAULT_TARGETS, name) if value is None else value))
            bound.setEnabled(value is not None)
        self._check()

    def targets(self) -> Targets:
        """The targets in the form. Raises TargetError."""
        return make_targets(
            {
                name: read_number(bound.text().strip()) if self.boxes[name].isChecked() else False
                for name, bound in self.bounds.items()
            }
        )

    def _check(self) -> None:
        ok = self.buttons.button(QDialogButtonBox.StandardButton.Ok)
        try:
            self.targets()
        except TargetError as error:
            self.fault.setText(translated(whole(message_of(error))))
            ok.setEnabled(False)
        else:
            self.fault.setText("")
            ok.setEnabled(True)

    def _accept(self) -> None:
        self.chosen.emit(self.targets())
        self.accept()
