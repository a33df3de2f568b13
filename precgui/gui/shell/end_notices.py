"""Says that a run or a study has ended, where nobody watched: as a notice, and to the desktop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QTimer
from PySide6.QtWidgets import QApplication, QSystemTrayIcon, QWidget

from precgui.gui.notices import Notice, Notices
from precgui.words import _

if TYPE_CHECKING:
    from precgui.gui.session import Session

SHOWN_MS = 10_000  # of a message of the desktop


class EndNotices(QObject):
    """`panel` tells the panel that is in view."""

    def __init__(self, session: Session, notices: Notices, window: QWidget, panel: Callable[[], str]) -> None:
        super().__init__(window)
        self._session, self._notices, self._window, self._panel = session, notices, window, panel
        self._tray: QSystemTrayIcon | None = None
        self._gone = QTimer(self, singleShot=True, interval=SHOWN_MS)
        self._gone.timeout.connect(self._hide_tray)
        self._study_ran: Path | None = None
        session.training.ended.connect(self._on_run)
        session.study.changed.connect(self._on_study)
        session.study.grid_read.connect(self._on_study)

    def _watches_live(self) -> bool:
        """Whether Live is in view, in the window that the user works with."""
        return self._panel() == "live" and self._window.isActiveWindow()

    def _watches(self, key: str) -> bool:
        return self._session.runs.current == key and self._watches_live()

    def _on_run(self, key: str) -> None:
        opened = self._session.runs.get(key)
        if opened is None or self._watches(key):
            return
        from precgui.gui.panels.live.end_card import end_text

        text = end_text(opened)
        if opened.run.status != "failed":  # a failure has a notice of its own
            remedies = ((_("Show"), lambda: self._show_run(key)),)
            self._notices.post(
                Notice(
                    "info", text, cause=f"end {key}", remedies=remedies,
                    is_over=lambda: key not in self._session.runs or self._watches(key),
                )
            )  # fmt: skip
        self._tell_desktop(text)

    def _on_study(self) -> None:
        """Tell the end of a study that this window ran, as soon as its grid says that nothing is left."""
        study = self._session.study
        if study.is_running:
            self._study_ran = study.folder
            return
        grid, folder = study.grid, study.folder
        if folder is None or self._study_ran != folder or grid is None or grid.document.left:
            return
        self._study_ran = None
        if self._watches_live():
            return
        failed = sum(member.status == "failed" for member in grid.document.members)
        values = {"title": grid.title, "done": grid.document.done, "failed": failed}
        text = _("The study {title} has ended: {done} runs.").format(**values)
        if failed:
            text = _("The study {title} has ended: {done} runs, {failed} of them failed.").format(**values)
        remedies = ((_("Show the answer"), lambda: self._session.requests.go("compare/groups")),)
        self._notices.post(
            Notice(
                "info", text, cause=f"end {folder}", remedies=remedies,
                is_over=lambda: study.folder != folder or study.is_running or self._panel() == "compare",
            )
        )  # fmt: skip
        self._tell_desktop(text)

    def _show_run(self, key: str) -> None:
        if key in self._session.runs:
            self._session.runs.choose(key)
            self._session.requests.go("live")

    def _tell_desktop(self, text: str) -> None:
        """A message of the desktop where it has a tray, else a mark in its task bar; only while this is not in use."""
        if self._window.isActiveWindow():
            return
        if QSystemTrayIcon.isSystemTrayAvailable() and QSystemTrayIcon.supportsMessages():
            if self._tray is None:
                self._tray = QSystemTrayIcon(self._window.windowIcon(), self)
            self._tray.show()
            self._tray.showMessage("precgui", text, self._window.windowIcon(), SHOWN_MS)
            self._gone.start()
        else:
            QApplication.alert(self._window)

    def _hide_tray(self) -> None:
        if self._tray is not None:
            self._tray.hide()
