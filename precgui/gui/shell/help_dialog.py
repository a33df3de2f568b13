"""The documentation in a window of its own: the Markdown files of `docs`, as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PySide6.QtCore import Qt, QTimer, QUrl
from PySide6.QtGui import QImage, QImageReader, QResizeEvent, QTextDocument
from PySide6.QtWidgets import QDialog, QHBoxLayout, QListWidget, QListWidgetItem, QWidget

from precgui.gui.kit.plain_text import OwnDocument
from precgui.gui.theme import themes
from precgui.paths import docs
from precgui.words import L_, _, language, translated

_NONE = L_("The documentation lies in the folder `docs` of the source of precgui; this installation does not have it.")
_PATH = Qt.ItemDataRole.UserRole
_IMAGE = QTextDocument.ResourceType.ImageResource
RESIZED_MS = 150  # after the last change of the size, before pictures are read again


class TopicView(OwnDocument):
    """The text of a topic with its pictures, none wider than the view; each is read in a turn of the event loop."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._folder = Path()
        self._pictures: dict[str, QUrl] = {}  # of the topic, by path below its folder
        self._unread: list[str] = []
        self._reading = QTimer(self, interval=0)
        self._reading.timeout.connect(self._read_next)
        self._resized = QTimer(self, interval=RESIZED_MS, singleShot=True)
        self._resized.timeout.connect(self._fit_pictures)

    def show_topic(self, path: Path) -> None:
        """Show a Markdown file; pictures are looked up from its folder."""
        self._folder = path.parent
        self._pictures.clear()
        self._unread.clear()
        self.setMarkdown(path.read_text(encoding="utf-8"))

    def loadResource(self, kind: int, name: QUrl | str) -> Any:
        if kind != _IMAGE.value:
            return None
        url = QUrl(name)
        self._pictures[url.path()] = url
        self._read_soon(url.path())
        return self._blank(url.path())

    def _reader(self, name: str) -> QImageReader:
        """Reads a picture as wide as it is, or as the view where that is less."""
        reader = QImageReader(str(self._folder / name))
        room = round((self.viewport().width() - 2 * self.document().documentMargin()) * self.devicePixelRatioF())
        size = reader.size()
        if size.width() > room > 0:
            reader.setScaledSize(size.scaled(room, size.height(), Qt.AspectRatioMode.KeepAspectRatio))
        return reader

    def _blank(self, name: str) -> QImage:
        """A picture of the size that it will have."""
        reader = self._reader(name)
        blank = QImage(
            reader.scaledSize() if reader.scaledSize().isValid() else reader.size(), QImage.Format.Format_RGB32
        )
        blank.fill(self.palette().base().color())
        blank.setDevicePixelRatio(self.devicePixelRatioF())
        return blank

    def _read_soon(self, name: str) -> None:
        self._unread.append(name)
        self._reading.start()

    def _read_next(self) -> None:
        if not self._unread:
            self._reading.stop()
            return
        name = self._unread.pop(0)
        picture = self._reader(name).read()
        picture.setDevicePixelRatio(self.devicePixelRatioF())
        self.document().addResource(_IMAGE.value, self._pictures[name], picture)
        self.viewport().update()

    def _fit_pictures(self) -> None:
        self._unread.clear()
        for name, url in self._pictures.items():
            self.document().addResource(_IMAGE.value, url, self._blank(name))
            self._read_soon(name)
        self.document().markContentsDirty(0, self.document().characterCount())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if self._pictures and event.oldSize().width() != event.size().width():
            self._resized.start()


class HelpDialog(QDialog):
    """Topics on the left, the text of the chosen one on the right. Links lead to other topics only."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        themes().dress(self)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(_("Documentation"))
        self.topics = QListWidget(self)
        self.topics.setAccessibleName(_("Topics"))
        self.topics.setFixedWidth(240)
        self.topics.setWordWrap(True)
        self.topics.setSpacing(4)
        self.topics.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.text = TopicView(self)
        self.text.setAccessibleName(_("Text of the topic"))
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
            self.text.setMarkdown(translated(_NONE))
            return
        for path in _documents(folder):
            item = QListWidgetItem(_title(path), self.topics)
            item.setData(_PATH, str(path))
        self.topics.setCurrentRow(0)

    def _show(self, item: QListWidgetItem | None) -> None:
        if item is not None:
            self.text.show_topic(Path(item.data(_PATH)))

    def _follow(self, link: QUrl) -> None:
        name = _document(link.fileName())
        for row in range(self.topics.count()):
            item = self.topics.item(row)
            if item is not None and _document(Path(item.data(_PATH)).name) == name:
                self.topics.setCurrentItem(item)


def _documents(folder: Path) -> list[Path]:
    """The documents, each in the reader's language where it is there, else in English."""
    english = (path for path in sorted(folder.glob("*.md")) if path.name == _document(path.name))
    own = f".{language().replace('_', '-')}.md"
    return [other if (other := path.with_suffix(own)).exists() else path for path in english]


def _document(name: str) -> str:
    """The name of a document without its language: `formats.md` of `formats.zh-CN.md`."""
    return f"{name.partition('.')[0]}.md"


def _title(path: Path) -> str:
    """The first heading of a Markdown file, else its name."""
    with path.open(encoding="utf-8") as file:
        first = file.readline().strip()
    return first.removeprefix("# ") if first.startswith("# ") else path.stem
