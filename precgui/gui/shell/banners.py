"""Notices as the window shows them: banners in a strip below the panels, and the list behind the bell."""

from __future__ import annotations

import time
from collections.abc import Callable

from PySide6.QtCore import QEvent, QObject, QSize, Qt, QTimer, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import (
    QDialog,
    QFrame,
    QHBoxLayout,
    QListWidget,
    QListWidgetItem,
    QPlainTextEdit,
    QSizePolicy,
    QSplitter,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from precgui.gui.kit.icons import icon, pixmap
from precgui.gui.kit.parts import button, column, label, row
from precgui.gui.kit.plain_text import PlainLabel, plain_tip
from precgui.gui.notices import Notice, NoticeEntry, Notices
from precgui.gui.theme import severity_colour, themes
from precgui.words import _, p_

MAX_BANNERS = 3
SMALL = (900, 600)  # pixels: in a smaller window one notice is shown, and of a long one two lines
SMALL_LINES, LINES = 2, 3
_NO_LIMIT = 16777215  # Qt's QWIDGETSIZE_MAX
INFO_TIMEOUT_MS = 8000


def severity_word(severity: str) -> str:
    """The word for how grave a notice is."""
    return {"info": _("Note"), "warning": _("Warning"), "error": p_("severity", "Error")}[severity]


class Banner(QFrame):
    """One notice: icon and word of its severity, its sentence, its remedies, details, close. Never takes the focus."""

    closed = Signal()

    def __init__(self, entry: NoticeEntry, show_details: Callable[[Notice], object], parent: QWidget) -> None:
        super().__init__(parent)
        self.setProperty("kind", "banner")
        self.setProperty("severity", entry.notice.severity)
        self.notice = entry.notice
        self._mark = PlainLabel(self)
        self.text = PlainLabel(self)
        self.text.setWordWrap(True)
        self.text.setTextFormat(Qt.TextFormat.PlainText)
        self.text.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.text.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.MinimumExpanding)
        self._word = PlainLabel(self)
        self._word.setProperty("kind", "heading")
        self._word.setObjectName("severity")
        self._close = QToolButton(self)
        self._close.setToolTip(_("Close; the notice stays in the list behind the bell"))
        self._close.setAccessibleName(_("Close the notice"))
        self._close.clicked.connect(self.closed)
        self._timer = QTimer(self, singleShot=True, interval=INFO_TIMEOUT_MS)
        self._timer.timeout.connect(self.closed)
        self._conditions: list[tuple[QToolButton, Callable[[], bool]]] = []
        self._lay_out(show_details)
        themes().follow(self, self._recolour)
        self._recolour()
        self.update_entry(entry)

    def _lay_out(self, show_details: Callable[[Notice], object]) -> None:
        head = QHBoxLayout()
        head.setContentsMargins(12, 8, 8, 8)
        head.setSpacing(8)
        head.addWidget(self._mark)
        head.addWidget(self._word)
        head.addWidget(self.text, 1)
        for text, act, *possible in self.notice.remedies:
            remedy = self._button(text, act, closes=True)
            head.addWidget(remedy)
            self._conditions += [(remedy, each) for each in possible]
        if self.notice.details:
            head.addWidget(self._button(_("Details"), lambda: show_details(self.notice), closes=False))
        head.addWidget(self._close)
        self.setLayout(head)

    def _button(self, label: str, act: Callable[[], object], *, closes: bool) -> QToolButton:
        button = QToolButton(self)
        button.setText(label)
        button.setProperty("kind", "link")
        button.clicked.connect(act)
        if closes:
            button.clicked.connect(self.closed)
        return button

    def update_entry(self, entry: NoticeEntry) -> None:
        """Show how often the cause has come; a note goes by itself after some seconds."""
        word = severity_word(entry.notice.severity)
        seen = _("{word} (seen {count} times)").format(word=word, count=entry.count)
        self._word.setText(seen if entry.count > 1 else word)
        self.text.setText(entry.notice.text)
        if entry.notice.severity == "info" and (entry.notice.passes or not entry.notice.remedies):
            self._timer.start()

    def follow(self) -> bool:
        """Hide the remedies that are not possible now; whether what the notice speaks of is over."""
        for remedy, possible in self._conditions:
            remedy.setVisible(possible())
        return self.notice.is_over is not None and self.notice.is_over()

    def shorten(self, lines: int | None) -> None:
        """Show this many lines of the text, the whole in the tool tip; None: all."""
        most = _NO_LIMIT if lines is None else lines * self.text.fontMetrics().lineSpacing() + 2
        if most != self.text.maximumHeight():
            self.text.setMaximumHeight(most)
            self.setToolTip("" if lines is None else plain_tip(self.notice.text))

    def _recolour(self) -> None:
        colour = severity_colour(self.notice.severity)
        self._mark.setPixmap(pixmap(self.notice.severity, colour, 18, self.devicePixelRatioF()))
        self._close.setIcon(icon("close", themes().theme.muted, 16))


class Banners(QWidget):
    """The newest notices, at most three, in a strip of their own below the panels, where they cover nothing.

    `came` follows every notice, in the GUI thread, from whatever thread it was posted.
    """

    came = Signal(object)

    def __init__(self, notices: Notices, host: QWidget) -> None:
        super().__init__(host)
        themes().dress(self)
        self._notices = notices
        self._host = host
        self.banners: dict[tuple[str, str], Banner] = {}
        self._layout = QVBoxLayout(self)
        self._layout.setContentsMargins(16, 4, 16, 8)
        self._layout.setSpacing(4)
        host.installEventFilter(self)
        self.came.connect(self._show_entry)
        self._listener = self.came.emit
        notices.subscribe(self._listener)
        self.hide()

    def detach(self) -> None:
        """Listen no more; the window is closing."""
        self._notices.unsubscribe(self._listener)

    def _show_entry(self, entry: NoticeEntry) -> None:
        key = entry.notice.key
        if known := self.banners.get(key):
            known.update_entry(entry)
        else:
            banner = Banner(entry, self.show_list, self)
            banner.closed.connect(lambda: self._drop(key))
            self.banners[key] = banner
            self._layout.addWidget(banner)
            banner.show()
        self.follow()

    def follow(self) -> None:
        """Let those go that speak of what is over."""
        for key in [key for key, banner in self.banners.items() if banner.follow()]:
            self._forget(key)
        self._place()

    def _drop(self, key: tuple[str, str]) -> None:
        self._forget(key)
        self._place()

    def _forget(self, key: tuple[str, str]) -> None:
        if banner := self.banners.pop(key, None):
            banner.hide()
            self._layout.removeWidget(banner)
            banner.deleteLater()

    def _place(self) -> None:
        window = self.window()
        small = window.width() < SMALL[0] or window.height() < SMALL[1]
        while len(self.banners) > (1 if small else MAX_BANNERS):
            key = next(iter(self.banners))
            self._forget(key)
        for banner in self.banners.values():
            banner.shorten(SMALL_LINES if small else LINES)
        self.setVisible(bool(self.banners))

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Resize:
            self._place()
        return super().eventFilter(watched, event)

    def show_list(self, chosen: Notice | None = None) -> NoticeList:
        """Open the list of notices, at `chosen` or at the newest, in the place of one that is open."""
        for earlier in self.window().findChildren(NoticeList):
            earlier.close()
        dialog = NoticeList(self._notices, chosen, self.window())
        dialog.show()
        return dialog


class NoticeList(QDialog):
    """All notices of this session, newest first, with their details to copy."""

    def __init__(self, notices: Notices, chosen: Notice | None, parent: QWidget) -> None:
        super().__init__(parent)
        themes().dress(self)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(_("Notices"))
        self._notices = notices
        self._entries = notices.entries()[::-1]
        self.list = QListWidget(self)
        self.list.setAccessibleName(_("Notices"))
        self.list.setProperty("kind", "menu")
        self.list.setWordWrap(True)
        self.list.setIconSize(QSize(18, 18))
        self.details = QPlainTextEdit(self)
        self.details.setReadOnly(True)
        self.details.setAccessibleName(_("Details of the notice"))
        self.nothing = label(_("There is nothing to report."), "muted")
        self.nothing.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.split = QSplitter(Qt.Orientation.Vertical, self)
        self.split.addWidget(self.list)
        self.split.addWidget(self.details)
        self.split.setChildrenCollapsible(False)
        copy = button(_("Copy"), lambda: QGuiApplication.clipboard().setText(self.details.toPlainText()))
        clear = button(_("Clear list"), self._clear)
        self.buttons = (copy, clear)
        below = row(clear, 1, copy, button(_("Close"), self.close))
        column((self.split, 1), (self.nothing, 1), below, spacing=12, margins=(16, 16, 16, 16), on=self)
        self.resize(min(680, parent.width() - 48), min(520, parent.height() - 48))
        self.list.currentRowChanged.connect(self._show_details)
        self._fill(chosen)
        self._show_empty()
        notices.mark_read()

    def _fill(self, chosen: Notice | None) -> None:
        for entry in self._entries:
            moment = time.strftime("%H:%M:%S", time.localtime(entry.time_s))
            times = f"  ×{entry.count}" if entry.count > 1 else ""
            severity = entry.notice.severity
            item = QListWidgetItem(f"{moment}  {severity_word(severity)}{times}\n{entry.notice.text}")
            item.setIcon(icon(severity, severity_colour(severity), 18))
            self.list.addItem(item)
        keys = [entry.notice.key for entry in self._entries]
        if self._entries:
            self.list.setCurrentRow(keys.index(chosen.key) if chosen and chosen.key in keys else 0)

    def _show_empty(self) -> None:
        """Without notices one sentence instead of two empty boxes."""
        for part in (self.split, *self.buttons):
            part.setVisible(bool(self._entries))
        self.nothing.setVisible(not self._entries)

    def _show_details(self, row: int) -> None:
        if 0 <= row < len(self._entries):
            notice = self._entries[row].notice
            self.details.setPlainText(f"{notice.text}\n\n{notice.details}".strip())

    def _clear(self) -> None:
        self._notices.clear()
        self._entries = []
        self.list.clear()
        self._show_empty()
