"""The parts of a form: a row for each field, a card for each section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pydantic.fields import FieldInfo
from PySide6.QtCore import QSize, Qt
from PySide6.QtWidgets import QFrame, QHBoxLayout, QToolButton, QVBoxLayout, QWidget

from precgui.gui.kit.editors import Editor, FlagEditor, editor_for
from precgui.gui.kit.icons import icon, pixmap
from precgui.gui.kit.plain_text import PlainLabel, plain_tip
from precgui.gui.theme import themes
from precgui.words import _, translated

EDITOR_WIDTH = 168
LABEL_WIDTH = 176
MARK_SIZE = 14


class FieldRow(QWidget):
    """One field: label, editor, unit, reset, and a line below that explains, or complains."""

    def __init__(self, path: str, info: FieldInfo, card: SectionCard) -> None:
        super().__init__(card)
        self.path, self.info, self.card = path, info, card
        extra = info.json_schema_extra
        self.hints: Mapping[str, Any] = extra if isinstance(extra, dict) else {}
        title = translated(info.title or "") or path.rpartition(".")[2].replace("_", " ").capitalize()
        self.rare = bool(self.hints.get("rare"))
        self.relevant, self.noted = True, False
        self.label = PlainLabel(title, self)
        self.label.setWordWrap(True)
        self.editor: Editor = editor_for(info.annotation, cast(list[str], self.hints.get("suggestions", [])))
        self.widget = cast(QWidget, self.editor)
        self.widget.setParent(self)
        self.widget.setObjectName(path)
        self.unit = PlainLabel(translated(str(self.hints.get("unit", ""))), self)
        self.unit.setProperty("kind", "muted")
        self.reset = QToolButton(self)
        self.reset.setIconSize(QSize(16, 16))
        self.reset.setFixedSize(24, 24)
        self.reset.setAccessibleName(_("Reset {title}").format(title=title))
        self.reset.setToolTip(_("Back to the value of the recipe"))
        keep = self.reset.sizePolicy()
        keep.setRetainSizeWhenHidden(True)
        self.reset.setSizePolicy(keep)
        self.mark = PlainLabel(self)
        self.hint = PlainLabel(self)
        self.hint.setWordWrap(True)
        self.hint.setTextFormat(Qt.TextFormat.PlainText)
        self.hint.setMinimumHeight(MARK_SIZE + 2)  # a mark that comes moves nothing
        self.label.setBuddy(self.widget)
        self.widget.setAccessibleName(title)
        self.widget.setToolTip(plain_tip(f"{translated(info.description or '') or title}\n{path}"))
        self.label.setToolTip(plain_tip(self.widget.toolTip()))
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
        below.setSpacing(8)
        below.addWidget(self.mark, 0, Qt.AlignmentFlag.AlignTop)
        below.addWidget(self.hint, 1)
        column = QVBoxLayout()
        column.setSpacing(4)
        column.addLayout(line)
        column.addLayout(below)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 12)
        layout.setSpacing(12)
        layout.addWidget(self.label, 0, Qt.AlignmentFlag.AlignTop)
        layout.addLayout(column, 1)

    def set_label_width(self, width: int) -> None:
        """All labels of a form stand in one column; one that is too long for it goes on below."""
        self.label.setFixedWidth(width)
        companion = max(self.reset.height(), self.widget.sizeHint().height())
        self.label.setFixedHeight(max(companion, self.label.heightForWidth(width)))

    def update_state(self, *, fault: str, changed: bool, displayed: bool) -> None:
        """Complain or explain; bold when changed from the recipe. The card decides which rows are visible."""
        self.relevant, self.noted = displayed, changed or bool(fault)
        self.mark.setVisible(bool(fault))
        self.reset.setVisible(changed)
        font = self.label.font()
        font.setBold(changed)
        self.label.setFont(font)
        self.hint.setText(fault[:1].upper() + fault[1:] if fault else translated(self.info.description or ""))
        self.widget.setAccessibleDescription(self.hint.text())
        kind = "error" if fault else "muted"
        if self.hint.property("kind") != kind:
            for part, name, value in ((self.hint, "kind", kind), (self.widget, "faulty", bool(fault))):
                part.setProperty(name, value)
                part.style().polish(part)

    def recolour(self) -> None:
        theme = themes().theme
        self.reset.setIcon(icon("reset", theme.muted, 16))
        self.mark.setPixmap(pixmap("error", theme.error, MARK_SIZE, self.mark.devicePixelRatioF()))


class SectionCard(QFrame):
    """A section: its heading and its rows. Rows that few people need are folded until they are asked for.

    A rare row that is changed or at fault is visible all the same. A card with nothing to show hides itself.
    """

    def __init__(self, title: str, parent: QWidget) -> None:
        super().__init__(parent)
        self.setProperty("kind", "card")
        heading = PlainLabel(title, self)
        heading.setProperty("kind", "heading")
        self.rows: list[FieldRow] = []
        self.more = QToolButton(self)
        self.more.setCheckable(True)
        self.more.setProperty("kind", "fold")
        self.more.setIconSize(QSize(14, 14))
        self.more.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self.more.toggled.connect(lambda _: self.update_visibility())
        self._column = QVBoxLayout(self)
        self._column.setContentsMargins(16, 12, 12, 4)
        self._column.setSpacing(0)
        self._column.addWidget(heading)
        self._column.addSpacing(10)
        self._title = title

    def add(self, row: FieldRow) -> None:
        self.rows.append(row)
        self._column.addWidget(row)

    def close_up(self) -> None:
        """All rows are there: the button that unfolds the rare ones comes below them."""
        self._column.addWidget(self.more)
        self._column.addSpacing(8)
        self._column.addStretch(1)  # what a column has too much of must not pull rows apart

    def update_visibility(self) -> None:
        foldable = [row for row in self.rows if row.rare and row.relevant and not row.noted]
        for row in self.rows:
            row.setVisible(row.relevant and (self.more.isChecked() or row not in foldable))
        self.more.setVisible(bool(foldable))
        self.more.setText(_("Fewer") if self.more.isChecked() else _("{count} more").format(count=len(foldable)))
        self.more.setAccessibleName(_("{more} settings of {title}").format(more=self.more.text(), title=self._title))
        self.more.setToolTip(plain_tip(", ".join(row.label.text() for row in foldable)))
        self.recolour()
        self.setVisible(any(row.relevant for row in self.rows))

    def recolour(self) -> None:
        drawing = "up" if self.more.isChecked() else "down"
        self.more.setIcon(icon(drawing, themes().theme.muted, 14))
