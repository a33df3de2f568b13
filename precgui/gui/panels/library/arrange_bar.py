"""How the list of runs is arranged: by which property runs are grouped, and of which tag they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QWidget

from precgui.gui.kit.parts import named
from precgui.gui.panels.library.table import GROUPS
from precgui.runs.library import tags_of
from precgui.runs.library_index import LibraryEntry
from precgui.words import _, translated


class ArrangeBar(QWidget):
    """`grouped(name)`: a key of `GROUPS`; `tag_chosen(tag)`: "" for runs with and without tags."""

    grouped = Signal(str)
    tag_chosen = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.group, self.tag = QComboBox(self), QComboBox(self)
        self.group.setAccessibleName(_("Group the runs"))
        for name in GROUPS:
            self.group.addItem(translated(name), name)
        self.tag.setAccessibleName(_("Runs with a tag"))
        self.tag.setToolTip(_("A tag is a word of the note that begins with #; Tag in the menu of a run adds one"))
        self.tag.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
        line = QHBoxLayout(self)
        line.setContentsMargins(0, 0, 0, 0)
        line.setSpacing(8)
        for part in (named(_("&Group by"), self.group), self.group, self.tag):
            line.addWidget(part)
        self.group.currentIndexChanged.connect(lambda row: self.grouped.emit(self.group.itemData(row)))
        self.tag.currentIndexChanged.connect(lambda _: self.tag_chosen.emit(self.tag.currentData() or ""))
        self.show_tags([])

    def show_tags(self, entries: Sequence[LibraryEntry]) -> None:
        """Offer the tags of these runs, with their counts; the choice stays while its tag does."""
        counts = Counter(tag for entry in entries for tag in tags_of(entry.note))
        items = [(_("All tags"), ""), *((f"{tag} ({counts[tag]})", tag) for tag in sorted(counts))]
        if items != [(self.tag.itemText(row), self.tag.itemData(row)) for row in range(self.tag.count())]:
            chosen = self.tag.currentData() or ""
            self.tag.blockSignals(True)
            self.tag.clear()
            for text, tag in items:
                self.tag.addItem(text, tag)
            self.tag.setCurrentIndex(max(0, self.tag.findData(chosen)))
            self.tag.blockSignals(False)
            if (self.tag.currentData() or "") != chosen:
                self.tag_chosen.emit("")
        self.tag.setVisible(bool(counts))
