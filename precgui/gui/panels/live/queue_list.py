"""The runs that wait, below the list of open runs: their order can be changed, and each can be removed."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import QHBoxLayout, QToolButton, QTreeWidget, QTreeWidgetItem, QVBoxLayout, QWidget

from precgui.gui.kit.plain_text import PlainLabel, plain_tip
from precgui.gui.session import Session
from precgui.words import _, n_

_ROWS = 5  # visible without scrolling


class QueueList(QWidget):
    """Hidden while nothing waits."""

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._session = session
        self.heading = PlainLabel(self)
        self.heading.setProperty("kind", "heading")
        self.list = QTreeWidget(self)
        self.list.setProperty("kind", "menu")
        self.list.setHeaderHidden(True)
        self.list.setRootIsDecorated(False)
        self.list.setAccessibleName(_("Runs that wait"))
        self.list.setMaximumHeight(_ROWS * (self.fontMetrics().height() + 10))
        buttons = QHBoxLayout()
        buttons.setSpacing(2)
        for text, tip, act in (
            (_("Up"), _("Start this run earlier (Alt+Up)"), lambda: self._move(-1)),
            (_("Down"), _("Start this run later (Alt+Down)"), lambda: self._move(1)),
            (_("Remove"), _("Remove this run from the queue (Delete)"), self._remove),
            (_("Stop all"), _("Stop the active run and clear the queue"), session.training.stop_all),
        ):
            button = QToolButton(self)
            button.setText(text)
            button.setToolTip(plain_tip(tip))
            button.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
            button.clicked.connect(act)
            buttons.addWidget(button)
        buttons.addStretch(1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 8, 0, 0)
        layout.addWidget(self.heading)
        layout.addWidget(self.list)
        layout.addLayout(buttons)
        for key, by in (("Alt+Up", -1), ("Alt+Down", 1)):
            QShortcut(
                QKeySequence(key), self.list, lambda by=by: self._move(by), context=Qt.ShortcutContext.WidgetShortcut
            )
        QShortcut(QKeySequence("Del"), self.list, self._remove, context=Qt.ShortcutContext.WidgetShortcut)
        session.training.changed.connect(self.refresh)
        self.refresh()

    def refresh(self) -> None:
        """Show the queue as it stands; the chosen row stays chosen."""
        row, waiting = self.row, self._session.training.waiting
        self.list.clear()
        for place, config in enumerate(waiting, 1):
            QTreeWidgetItem(self.list, [f"{place}. {config.display_title}"])
        self.choose(min(max(row, 0), len(waiting) - 1))
        heading = n_("{count} run waits", "{count} runs wait", len(waiting))
        self.heading.setText(heading.format(count=len(waiting)))
        self.setVisible(bool(waiting))

    @property
    def row(self) -> int:
        """The chosen row, -1 for none."""
        return self.list.currentIndex().row()

    def choose(self, row: int) -> None:
        """Choose a row; one that is not there chooses none."""
        if (item := self.list.topLevelItem(row)) is not None:
            self.list.setCurrentItem(item)

    def _move(self, by: int) -> None:
        row = self.row
        to = row + by
        if row >= 0 and 0 <= to < len(self._session.training.waiting):
            self._session.training.move(row, to)
            self.choose(to)

    def _remove(self) -> None:
        row = self.row
        if 0 <= row < len(self._session.training.waiting):
            self._session.training.remove(row)
