"""One editor a kind of value: text that is never reformatted, a choice, a switch. The form puts them together."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Protocol, Union, get_args, get_origin

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QCheckBox, QComboBox, QLineEdit, QSpinBox, QWidget

from precgui.config import table_text
from precgui.gui.kit.choice import ignore_wheel
from precgui.words import _


class Editor(Protocol):
    """A widget that holds one value. `edited` comes after every change by the user or by `set`."""

    edited: Any  # a signal without arguments

    def get(self) -> Any: ...

    def set(self, value: Any) -> None: ...


def number_text(value: object) -> str:
    """A value as a person writes it: the shortest text that reads back exactly (`1e-6`, `65536`)."""
    if not isinstance(value, float):
        return str(value)
    text = repr(value).removesuffix(".0")
    digits, exponent, power = text.partition("e")
    return f"{digits}e{int(power)}" if exponent else text


def read_number(text: str) -> Any:
    """The number that a text says; the text itself when it says none, for validation to complain about."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


class TextEditor(QLineEdit):
    """A line of text. `set` leaves what was typed alone when it already says the value."""

    edited = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.textChanged.connect(self.edited)

    def get(self) -> Any:
        return self.text()

    def set(self, value: Any) -> None:
        if self.get() != value:
            self.setText(value)
            self.setCursorPosition(0)


class NumberEditor(TextEditor):
    """A number as text: what was typed stays as it was typed, in range or not."""

    def get(self) -> Any:
        return read_number(self.text().strip())

    def set(self, value: Any) -> None:
        if self.get() != value:
            self.setText(number_text(value))
            self.setCursorPosition(0)


class OptionalEditor(TextEditor):
    """A number or text that may be absent: the empty line is None."""

    def __init__(self, *, numeric: bool, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._numeric = numeric
        self.setPlaceholderText(_("not set"))

    def get(self) -> Any:
        text = self.text().strip()
        if not text:
            return None
        return read_number(text) if self._numeric else text

    def set(self, value: Any) -> None:
        if self.get() != value:
            self.setText("" if value is None else number_text(value))
            self.setCursorPosition(0)


class ListEditor(TextEditor):
    """Texts separated by commas."""

    def get(self) -> Any:
        return [part.strip() for part in self.text().split(",") if part.strip()]

    def set(self, value: Any) -> None:
        if self.get() != list(value):
            self.setText(", ".join(value))
            self.setCursorPosition(0)


class TableEditor(TextEditor):
    """Texts by name, as `name=text` separated by commas; what is no such pair is left for validation to name."""

    def get(self) -> Any:
        pairs = [part.rpartition("=") for part in self.text().split(",") if part.strip()]
        if not all(name.strip() and text.strip() for name, _, text in pairs):
            return self.text()
        return {name.strip(): text.strip() for name, _, text in pairs}

    def set(self, value: Any) -> None:
        if self.get() != dict(value):
            self.setText(table_text(value))
            self.setCursorPosition(0)


class ChoiceEditor(QComboBox):
    """One of a closed set; `None` in the set is shown as `not set`."""

    edited = Signal()

    def __init__(self, choices: Sequence[Any], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        for choice in choices:
            self.addItem(_("not set") if choice is None else str(choice), choice)
        self.currentIndexChanged.connect(self.edited)
        ignore_wheel(self)

    def get(self) -> Any:
        return self.currentData()

    def set(self, value: Any) -> None:
        self.setCurrentIndex(self.findData(value))


class SuggestionEditor(QComboBox):
    """A text that is typed or taken from a list."""

    edited = Signal()

    def __init__(self, suggestions: Sequence[str], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setEditable(True)
        self.setInsertPolicy(QComboBox.InsertPolicy.NoInsert)
        self.addItems(suggestions)
        self.currentTextChanged.connect(self.edited)
        ignore_wheel(self)

    def get(self) -> Any:
        return self.currentText()

    def set(self, value: Any) -> None:
        if self.get() != value:
            self.setCurrentText(value)


class FlagEditor(QCheckBox):
    """A check box as editor of a flag."""

    edited = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.toggled.connect(self.edited)

    def get(self) -> Any:
        return self.isChecked()

    def set(self, value: Any) -> None:
        self.setChecked(bool(value))


def whole_number(value: int, least: int, most: int, name: str, parent: QWidget) -> QSpinBox:
    """A field for a whole number from `least` to `most`; `name` is what a screen reader says."""
    editor = QSpinBox(parent)
    editor.setRange(least, most)
    editor.setValue(value)
    editor.setAccessibleName(name)
    ignore_wheel(editor)
    return editor


def _bare(kind: Any) -> Any:
    """The type without its validators."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def editor_for(annotation: Any, suggestions: Sequence[str] = ()) -> Editor:
    """The editor for the type of a config field. Raises TypeError for a type that no editor holds."""
    if suggestions:
        return SuggestionEditor(suggestions)
    annotation = _bare(annotation)
    alternatives = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    kinds = [_bare(kind) for kind in alternatives if kind is not types.NoneType]
    optional = len(kinds) < len(alternatives)
    if all(get_origin(kind) is Literal for kind in kinds):
        choices = [choice for kind in kinds for choice in get_args(kind)]
        return ChoiceEditor([None, *choices] if optional else choices)
    if kinds == [bool]:
        return ChoiceEditor([None, True, False]) if optional else FlagEditor()
    if all(kind in (int, float) for kind in kinds):
        return OptionalEditor(numeric=True) if optional else NumberEditor()
    if kinds == [str]:
        return OptionalEditor(numeric=False) if optional else TextEditor()
    if len(kinds) == 1 and get_origin(kinds[0]) in (list, tuple):
        return ListEditor()
    if len(kinds) == 1 and get_origin(kinds[0]) is dict and {_bare(kind) for kind in get_args(kinds[0])} == {str}:
        return TableEditor()
    raise TypeError(f"there is no editor for the type {annotation}")
