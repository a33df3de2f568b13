"""A form from any pydantic model: a card for each section, faults beside the fields, nothing clipped or reformatted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Generic, TypeVar, cast

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QFontMetrics, QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QLayout, QLineEdit, QVBoxLayout, QWidget

from precgui.config import ConfigError
from precgui.config.dotted import put_at
from precgui.config.validation import placed_fault
from precgui.gui.kit.editors import Editor
from precgui.gui.kit.form_rows import LABEL_WIDTH, FieldRow, SectionCard
from precgui.gui.kit.plain_text import PlainLabel
from precgui.gui.theme import themes
from precgui.words import _, translated

M = TypeVar("M", bound=BaseModel)
GAP = 16


def leaves(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every field that holds a value, by its path, sections opened."""
    for name, info in model.model_fields.items():
        if section := _section(info):
            yield from leaves(section, f"{prefix}{name}.")
        else:
            yield prefix + name, info


def _section(info: FieldInfo) -> type[BaseModel] | None:
    kind = info.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def at(tree: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path of a tree."""
    value: Any = tree
    for part in path.split("."):
        value = value[part]
    return value


def _fits(value: Any, requested: Sequence[Any]) -> bool:
    """Whether a value is among those of `show_if`; `*` in a text stands for anything."""
    return value in requested or any(fnmatchcase(str(value), each) for each in requested if isinstance(each, str))


class Form(QWidget, Generic[M]):
    """Edits a model of the type `model`. `build` turns a tree of plain values into it or raises ConfigError.

    Fields whose editor is given in `outside` are shown by the caller, but belong to the form all the same.
    `value()` is None while a value is at fault; `faults` then holds one sentence for each path.
    """

    changed = Signal()

    def __init__(
        self,
        model: type[M],
        build: Callable[[Mapping[str, Any]], M],
        outside: Mapping[str, Editor] | None = None,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._model, self._build = model, build
        self._base: Mapping[str, Any] = {}
        self._value: M | None = None
        self.faults: dict[str, str] = {}
        self._quiet = False
        self.rows: dict[str, FieldRow] = {}
        self.editors: dict[str, Editor] = dict(outside or {})
        self.general = PlainLabel(self)
        self.general.setProperty("kind", "error")
        self.general.setWordWrap(True)
        self.general.setTextFormat(Qt.TextFormat.PlainText)
        self._cards = self._make_cards()
        self._columns: list[QVBoxLayout] = []
        self._grid = QHBoxLayout()
        self._grid.setSpacing(GAP)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(12)
        layout.setSizeConstraint(QLayout.SizeConstraint.SetNoConstraint)
        layout.addWidget(self.general)
        layout.addLayout(self._grid)
        self._arrange(1)
        for editor in self.editors.values():
            editor.edited.connect(self._on_edited)
        themes().follow(self, self._recolour)
        self._recolour()
        self._check()

    # Building ----------------------------------------------------------------------------------------------

    def _make_cards(self) -> list[SectionCard]:
        """One card for the fields of the model itself, one for each section; empty ones are left out."""
        own: dict[str, FieldInfo] = {}
        cards: list[tuple[str, dict[str, FieldInfo]]] = [(_("General"), own)]
        for name, info in self._model.model_fields.items():
            if section := _section(info):
                cards.append((translated(info.title or "") or name, dict(leaves(section, f"{name}."))))
            else:
                own[name] = info
        displayed = [(title, {p: i for p, i in fields.items() if p not in self.editors}) for title, fields in cards]
        created = [self._card(title, fields) for title, fields in displayed if fields]
        bold = self.font()
        bold.setBold(True)
        widest = max((QFontMetrics(bold).horizontalAdvance(row.label.text()) for row in self.rows.values()), default=0)
        for row in self.rows.values():
            row.set_label_width(min(widest + 4, LABEL_WIDTH))
        return created

    def _card(self, title: str, fields: Mapping[str, FieldInfo]) -> SectionCard:
        card = SectionCard(title, self)
        for path, info in fields.items():
            row = FieldRow(path, info, card)
            row.reset.clicked.connect(lambda _=False, path=path: self.reset(path))
            card.add(row)
            self.rows[path] = row
            self.editors[path] = row.editor
        card.close_up()
        return card

    def minimumSizeHint(self) -> QSize:
        """The size of one column, so that the two columns of a wide window do not keep it wide."""
        return QSize(self._narrowest(), super().minimumSizeHint().height())

    def _narrowest(self) -> int:
        return max((card.minimumSizeHint().width() for card in self._cards), default=0)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._arrange(2 if self.width() >= 2 * self._narrowest() + GAP else 1)

    def _arrange(self, count: int) -> None:
        """Put the cards into `count` columns of about the same height, in their order."""
        if len(self._columns) == count:
            return
        for column in self._columns:
            for card in self._cards:
                column.removeWidget(card)  # with takeAt the old item lives on, and the new one never asks for a height
            self._grid.removeItem(column)
            column.deleteLater()
        self._columns = [QVBoxLayout() for _ in range(count)]
        for column in self._columns:
            column.setSpacing(GAP)
            self._grid.addLayout(column, 1)
        heights = [0 if card.isHidden() else card.sizeHint().height() for card in self._cards]
        above = 0
        for card, height in zip(self._cards, heights, strict=True):
            self._columns[min(count - 1, count * (above + height // 2) // max(sum(heights), 1))].addWidget(card)
            above += height
        for column in self._columns:
            column.addStretch(1)

    # Values ------------------------------------------------------------------------------------------------

    def value(self) -> M | None:
        """The model as it is edited; None while something is at fault."""
        return self._value

    def set_value(self, config: M) -> None:
        """Show `config`. What it is compared with (`set_base`) stays."""
        tree = config.model_dump()
        self._quiet = True
        for path, editor in self.editors.items():
            editor.set(at(tree, path))
        self._quiet = False
        self._check()

    def set_base(self, config: M) -> None:
        """Fields that differ from `config` are bold and can be reset to it."""
        self._base = config.model_dump()
        self._check()

    def reset(self, path: str) -> None:
        """Put one field back to its value in the base."""
        self.editors[path].set(at(self._base, path))
        cast(QWidget, self.editors[path]).setFocus()

    def tree(self) -> dict[str, Any]:
        """The values of the editors, valid or not."""
        created: dict[str, Any] = {}
        for path, editor in self.editors.items():
            put_at(created, path, editor.get())
        return created

    def _on_edited(self) -> None:
        if not self._quiet:
            self._check()

    def _check(self) -> None:
        tree = self.tree()
        try:
            self._value, self.faults = self._build(tree), {}
        except ConfigError as error:
            self._value, self.faults = None, error.faults
        for path, row in self.rows.items():
            requested = row.hints.get("show_if", {})
            fits = all(
                _fits(at(tree, other), values) for other, values in cast(dict[str, list[Any]], requested).items()
            )
            changed = bool(self._base) and row.editor.get() != at(self._base, path)
            fault = self._fault(path)
            row.update_state(fault=fault, changed=changed, displayed=fits or bool(fault))
        for card in self._cards:
            card.update_visibility()
        placed = {fault for path in self.rows for fault in self._faults_of(path)}
        unplaced = [translated(placed_fault(path, text)) for path, text in self.faults.items() if path not in placed]
        self.general.setText("\n".join(unplaced))
        self.general.setVisible(bool(unplaced))
        self.changed.emit()

    def first_fault(self) -> QLineEdit | QWidget | None:
        """The first editor whose value is at fault."""
        return next((row.widget for path, row in self.rows.items() if self._faults_of(path)), None)

    def _faults_of(self, path: str) -> list[str]:
        """The paths of the faults of a field, those of the parts of a list or table included."""
        return [fault for fault in self.faults if fault == path or fault.startswith(f"{path}.")]

    def _fault(self, path: str) -> str:
        return "; ".join(translated(self.faults[fault]) for fault in self._faults_of(path))

    def _recolour(self) -> None:
        for row in self.rows.values():
            row.recolour()
        for card in self._cards:
            card.recolour()
