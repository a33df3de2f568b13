"""The parts of a form: a row for each field, a card for each section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pydantic.fields import FieldInfo
from PySide6.QtCore import QSize, Qt
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QToolButton, QVBoxLayout, QWidget

from precgui.gui.editors import Editor, FlagEditor, editor_for
from precgui.gui.icons import icon, pixmap
from precgui.gui.theme import themes

EDITOR_WIDTH = 168
MARK_SIZE = 14


class Row(QWidget):
    """One field: label, editor, unit, reset, and a line below that explains, or complains."""

    def __init__(self, path: str, info: FieldInfo, parent: QWidget) -> None:
        super().__init__(parent)
        self.path, self.info = path, info
        extra = info.json_schema_extra
        self.hints: Mapping[str, Any] = extra if isinstance(extra, dict) else {}
        title = info.title or path.rpartition(".")[2].replace("_", " ").capitalize()
        self.label = QLabel(title, self)
        self.editor: Editor = editor_for(info.annotation, cast(list[str], self.hints.get("suggestions", [])))
        self.widget = cast(QWidget, self.editor)
        self.widget.setParent(self)
        self.widget.setObjectName(path)
        self.unit = QLabel(str(self.hints.get("unit", "")), self)
        self.unit.setProperty("kind", "muted")
        self.reset = QToolButton(self)
        self.reset.setIconSize(QSize(16, 16))
        self.reset.setFixedSize(24, 24)
        self.reset.setAccessibleName(f"Reset {title}")
        self.reset.setToolTip("Back to the value of the recipe")
        keep = self.reset.sizePolicy()
        keep.setRetainSizeWhenHidden(True)
        self.reset.setSizePolicy(keep)
        self.mark = QLabel(self)
        self.told = QLabel(self)
        self.told.setWordWrap(True)
        self.told.setTextFormat(Qt.TextFormat.PlainText)
        self.told.setMinimumHeight(MARK_SIZE + 2)  # a mark that comes moves nothing
        self.label.setBuddy(self.widget)
        self.widget.setAccessibleName(title)
        self.widget.setToolTip(f"{info.description or title}\n{path}")
        self.label.setToolTip(self.widget.toolTip())
        self._lay_out()

    def _lay_out(self) -> None:
        line = QHBoxLayout()
        line.setSpacing(8)
        line.addWidget(self.widget)
        line.addWidget(self.unit)
        if not isinstance(self.widget, FlagEditor):
            self.widget.setMinimumWidth(EDITOR_WIDTH)
        if self.info.annotation is str:
            self.unit.hide()
        else:
            self.widget.setMaximumWidth(EDITOR_WIDTH)
            line.addStretch(1)
        line.addWidget(self.reset)
        below = QHBoxLayout()
        below.setSpacing(6)
        below.addWidget(self.mark, 0, Qt.AlignmentFlag.AlignTop)
        below.addWidget(self.told, 1)
        column = QVBoxLayout()
        column.setSpacing(4)
        column.addLayout(line)
        column.addLayout(below)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 12)
        layout.setSpacing(12)
        layout.addWidget(self.label, 0, Qt.AlignmentFlag.AlignTop)
        layout.addLayout(column, 1)
        self.label.setFixedHeight(max(self.reset.height(), self.widget.sizeHint().height()))

    def update_state(self, *, fault: str, changed: bool, shown: bool) -> None:
        """Complain or explain; bold when changed from the recipe."""
        self.setVisible(shown)
        self.mark.setVisible(bool(fault))
        self.reset.setVisible(changed)
        font = self.label.font()
        font.setBold(changed)
        self.label.setFont(font)
        self.told.setText(fault[:1].upper() + fault[1:] if fault else self.info.description or "")
        self.widget.setAccessibleDescription(self.told.text())
        kind = "error" if fault else "muted"
        if self.told.property("kind") != kind:
            for part, name, value in ((self.told, "kind", kind), (self.widget, "faulty", bool(fault))):
                part.setProperty(name, value)
                part.style().polish(part)

    def recolour(self) -> None:
        theme = themes().theme
        self.reset.setIcon(icon("reset", theme.muted, 16))
        self.mark.setPixmap(pixmap("error", theme.error, MARK_SIZE, self.mark.devicePixelRatioF()))


class Card(QFrame):
    """A section: its heading and its rows. It hides itself while it has none to show."""

    def __init__(self, title: str, parent: QWidget) -> None:
        super().__init__(parent)
        self.setProperty("kind", "card")
        heading = QLabel(title, self)
        heading.setProperty("kind", "heading")
        self.rows: list[Row] = []
        self._column = QVBoxLayout(self)
        self._column.setContentsMargins(16, 12, 12, 4)
        self._column.setSpacing(0)
        self._column.addWidget(heading)
        self._column.addSpacing(10)

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self._column.addWidget(row)

    def update_visibility(self) -> None:
        self.setVisible(any(not row.isHidden() for row in self.rows))
