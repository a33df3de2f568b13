"""The documentation in a window of its own: the Markdown files of `docs`, as they are."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import Qt, QUrl
from PySide6.QtWidgets import QDialog, QHBoxLayout, QListWidget, QListWidgetItem, QWidget

from precgui.gui.theme import themes
from precgui.gui.widgets.plain_text import OwnDocument
from precgui.paths import docs

_NONE = "The documentation lies in the folder `docs` of the source of precgui; this installation does not have it."
_PATH = Qt.ItemDataRole.UserRole


class HelpDialog(QDialog):
    """Topics on the left, the text of the chosen one on the right. Links lead to other topics only."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        themes().dress(self)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle("Documentation")
        self.topics = QListWidget(self)
        self.topics.setAccessibleName("Topics")
        self.topics.setFixedWidth(240)
        self.text = OwnDocument(self)
        self.text.setAccessibleName("Text of the topic")
        self.text.anchorClicked.connect(self._follow)
        line = QHBoxLayout(self)
        line.setContentsMargins(12, 12, 12, 12)
        line.addWidget(self.topics)
        line.addWidget(self.text, 1)
        self.topics.currentItemChanged.connect(self._show)
        self._fill()
        self.resize(min(960, parent.width() - 48), min(720, parent.height() - 48))

    def _fill(self) -> None:
        folder = docs()
        if folder is None:
            self.text.setMarkdown(_NONE)
            return
        self.text.setSearchPaths([str(folder)])
        for path in sorted(folder.glob("*.md")):
            item = QListWidgetItem(_title(path), self.topics)
            item.setData(_PATH, str(path))
        self.topics.setCurrentRow(0)

    def _show(self, item: QListWidgetItem | None) -> None:
        if item is not None:
            self.text.setMarkdown(Path(item.data(_PATH)).read_text(encoding="utf-8"))

    def _follow(self, link: QUrl) -> None:
        name = link.fileName()
        for row in range(self.topics.count()):
            item = self.topics.item(row)
            if item is not None and Path(item.data(_PATH)).name == name:
                self.topics.setCurrentItem(item)


def _title(path: Path) -> str:
    """The first heading of a Markdown file, else its name."""
    with path.open(encoding="utf-8") as file:
        first = file.readline().strip()
    return first.removeprefix("# ") if first.startswith("# ") else path.stem
