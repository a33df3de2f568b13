"""The fields of the config that a study varies, each with its values: rows that a person adds and removes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QLineEdit, QPushButton, QToolButton, QVBoxLayout, QWidget

from precgui.config import RunConfig, key_table
from precgui.gui.kit.choice import ignore_wheel
from precgui.gui.kit.icons import icon
from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.panels.setup.command import value_text
from precgui.gui.theme import themes
from precgui.sweeps.errors import SweepError
from precgui.sweeps.spec import FIXED_FIELDS, parse_vary
from precgui.words import Sentence, _, translated

_FIRST = "optimizer.lr"
_FIELD_PX = 260


class VaryRow(QWidget):
    """One field and its values, separated by commas."""

    changed = Signal()
    removed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.field, self.values = QComboBox(self), QLineEdit(self)
        self.remove = QToolButton(self)
        self.remove.setIcon(icon("close", themes().theme.muted, 18))
        self.remove.setToolTip(_("Do not vary this field"))
        self.remove.setAccessibleName(_("Do not vary this field"))
        for path, about, _default in key_table():
            if path not in FIXED_FIELDS:
                self.field.addItem(path)
                self.field.setItemData(
                    self.field.count() - 1, plain_tip(translated(about)), Qt.ItemDataRole.ToolTipRole
                )
        self.field.setCurrentText(_FIRST)
        self.field.setAccessibleName(_("Field to vary"))
        self.field.setMaximumWidth(_FIELD_PX)
        self.values.setAccessibleName(_("Values, separated by commas"))
        ignore_wheel(self.field)
        line = QHBoxLayout(self)
        line.setContentsMargins(0, 0, 0, 0)
        line.setSpacing(8)
        for part in (self.field, self.values, self.remove):
            line.addWidget(part, int(part is self.values))
        self.field.currentTextChanged.connect(lambda _: self.changed.emit())
        self.values.textChanged.connect(lambda _: self.changed.emit())
        self.remove.clicked.connect(self.removed)

    def show_present(self, config: RunConfig) -> None:
        """Say which value the form has now."""
        value = attrgetter(self.field.currentText())(config)
        self.values.setPlaceholderText(
            _("two values or more, separated by commas; now {value}").format(value=value_text(value))
        )


class VaryFields(QWidget):
    """Rows below one another, and the button that adds one."""

    changed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.rows: list[VaryRow] = []
        self._config: RunConfig | None = None
        self.add_button = QPushButton(_("Vary a field..."), self)
        self.add_button.setToolTip(
            _("Run each precision with several values of a setting, each beside its own baseline")
        )
        self._column = QVBoxLayout(self)
        self._column.setContentsMargins(0, 0, 0, 0)
        self._column.setSpacing(8)
        self._column.addWidget(self.add_button, 0, Qt.AlignmentFlag.AlignLeft)
        self.add_button.clicked.connect(lambda _: self.add())

    def add(self) -> VaryRow:
        row = VaryRow(self)
        row.changed.connect(self._on_changed)
        row.removed.connect(lambda: self._remove(row))
        self.rows.append(row)
        self._column.insertWidget(len(self.rows) - 1, row)
        self._on_changed()
        row.values.setFocus()
        return row

    def choose(self, vary: Mapping[str, Sequence[object]]) -> None:
        """Vary these fields and no others."""
        for row in list(self.rows):
            self._remove(row)
        for path, values in vary.items():
            row = self.add()
            row.field.setCurrentText(path)
            row.values.setText(", ".join(value_text(value) for value in values))

    def _remove(self, row: VaryRow) -> None:
        self.rows.remove(row)
        row.hide()
        row.deleteLater()
        self._on_changed()

    def _on_changed(self) -> None:
        self.show_present(self._config)
        self.changed.emit()

    def show_present(self, config: RunConfig | None) -> None:
        """Say beside each field which value the form has now."""
        self._config = config or self._config
        if self._config is not None:
            for row in self.rows:
                row.show_present(self._config)

    def chosen(self) -> dict[str, list[Any]]:
        """The values of each field. Raises SweepError for a field that is named twice or has no values."""
        results: dict[str, list[Any]] = {}
        for row in self.rows:
            path, text = row.field.currentText(), row.values.text().strip().strip(",")
            if path in results:
                raise SweepError(Sentence("{path} is varied twice; put all its values into one row", path=path))
            if "," not in text:
                raise SweepError(
                    Sentence("name two values of {path} at least, separated by a comma, or remove its row", path=path)
                )
            results |= [parse_vary(f"{path}={text}")]
        return results
