"""How a training loop of one's own gets into the window: two lines to paste, and the file to open."""

from __future__ import annotations

from PySide6.QtWidgets import QWidget

from precgui.gui.kit.code_block import CodeBlock
from precgui.gui.kit.parts import column, label
from precgui.runs.loop_lines import RECORDER_LINES
from precgui.words import L_, translated

_SENTENCE = L_("These two lines record the loop; what it computes stays the same to the last bit.")
_AFTER = L_(
    "Then open run.h5 here with File > Open (Ctrl+O), also while the loop still runs. The documentation has a page "
    "on recording, with accelerate, Lightning and several processes."
)


class LoopView(QWidget):
    """The lines with their button, and the next thing to do."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.code = CodeBlock()
        self.code.show_lines(translated(_SENTENCE), RECORDER_LINES)
        self.after = label(translated(_AFTER), "muted")
        column(self.code, self.after, 1, spacing=12, margins=(24, 12, 24, 8), on=self)
