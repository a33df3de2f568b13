"""The operands of an operation: one to three numbers, or one or two lists; each kind keeps what was typed."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtGui import QFontDatabase
from PySide6.QtWidgets import QHBoxLayout, QLabel, QLineEdit, QWidget

from precgui.formats.arithmetic import Operation

NAMES = ("a", "b", "c")
LISTS = ("List a", "List b")
START = {"numbers": ["0.1", "0.2", "-0.3"], "lists": ["repeat(0.1, 1000)", "repeat(3, 1000)"]}


class OperandRow(QWidget):
    """`texts` is what was typed for the operation that was shown last."""

    changed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._kept = {kind: list(texts) for kind, texts in START.items()}
        self._kind, self._count = "numbers", len(NAMES)
        self.edits = [QLineEdit() for _ in NAMES]
        self._labels = [QLabel() for _ in NAMES]
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        mono = QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont)
        mono.setPointSizeF(self.font().pointSizeF() * 1.1)
        for label, edit in zip(self._labels, self.edits, strict=True):
            edit.setFont(mono)
            label.setBuddy(edit)
            row.addWidget(label)
            row.addWidget(edit, 1)
            edit.textChanged.connect(self._typed)

    def show_operation(self, operation: Operation) -> None:
        """Fields for its operands, with what was typed into them before."""
        self._kind = "numbers" if operation.operands else "lists"
        self._count = operation.operands or operation.lists
        names = NAMES if operation.operands else LISTS
        tip = ("0.1, 1/3, 2**-14, 0x1.8p3, fp16:0x3c00" if operation.operands
               else "numbers with commas between them; repeat(0.1, 1000) is a thousand times 0.1")  # fmt: skip
        for place, (label, edit) in enumerate(zip(self._labels, self.edits, strict=True)):
            shown = place < self._count
            label.setVisible(shown)
            edit.setVisible(shown)
            if shown:
                label.setText(names[place])
                edit.setAccessibleName(names[place])
                edit.setToolTip(tip)
                edit.blockSignals(True)
                edit.setText(self._kept[self._kind][place])
                edit.setCursorPosition(0)
                edit.blockSignals(False)

    def texts(self) -> list[str]:
        return [edit.text() for edit in self.edits[: self._count]]

    def replace(self, name: str, text: str) -> None:
        """Write another text into the field of `a`, `b` or `c`; undo in the field brings the old one back."""
        edit = self.edits[NAMES.index(name)]
        edit.selectAll()
        edit.insert(text)

    def _typed(self) -> None:
        self._kept[self._kind][: self._count] = self.texts()
        self.changed.emit()
