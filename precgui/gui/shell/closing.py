"""The end of the window: asks while a run is active, stops what runs, and only then lets the window go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QMessageBox, QPushButton, QWidget

from precgui.gui.kit.plain_text import PlainMessageBox
from precgui.gui.next_turn import in_next_turn
from precgui.words import _, n_

if TYPE_CHECKING:
    from precgui.gui.session import Session


class Closing(QObject):
    """`ready` comes when everything has stopped and the window may close, `kept` when it was asked to stay open."""

    ready = Signal()
    kept = Signal()

    def __init__(self, window: QWidget) -> None:
        super().__init__(window)
        self._window = window
        self._done = False
        self.question: QMessageBox | None = None

    def allows(self, session: Session | None) -> bool:
        """Whether the window may close now; if not, its work has been asked to end."""
        if session is None or self._done:
            return True
        if session.is_busy:
            self._ask(session)
        else:
            self.stop(session)
        return False

    def _ask(self, session: Session) -> None:
        if self.question is not None:
            self.question.raise_()
            return
        count = len(session.training.waiting)
        lost = n_("The run in the queue will not start.", "The {count} runs in the queue will not start.", count)
        text = _("A run is active. Stop it and close precgui?")
        more = _("Stopping ends it after the present step; what was recorded is kept.")
        title = _("A run is active")
        if session.study.is_running:
            title, text = _("A study is running"), _("A study is running. Stop it and close precgui?")
            more = _("Runs that are done are kept; the present one begins anew when the study goes on.")
        act = _("Stop and close")
        if place := session.training.place:
            title, text, act = (
                _("A run is at {place}").format(place=place),
                _("Close precgui? The run goes on."),
                _("Close"),
            )
            more = _("`precgui places jobs {place}` shows it, and Hardware, Places follows it again.").format(
                place=place
            )
        if count and not session.study.is_running:
            more = f"{more} {lost.format(count=count)}"
        box = PlainMessageBox(self._window, title, text, more)
        stop = QPushButton(act, box)
        stop.setProperty("kind", "danger")
        stop.clicked.connect(lambda: self.stop(session))
        keep = QPushButton(_("Keep running"), box)
        box.addButton(stop, QMessageBox.ButtonRole.DestructiveRole)
        box.addButton(keep, QMessageBox.ButtonRole.RejectRole)
        box.setDefaultButton(keep)
        box.setEscapeButton(keep)
        box.finished.connect(self._on_answered)
        session.training.idle.connect(box.close)
        session.study.changed.connect(box.close)
        self.question = box
        box.open()

    def _on_answered(self) -> None:
        if self.question is not None:
            self.question.deleteLater()
            self.question = None
            in_next_turn(self, self._report_kept)  # behind what the button does

    def _report_kept(self) -> None:
        if self._window.isEnabled():
            self.kept.emit()

    def stop(self, session: Session) -> None:
        """Stop all runs without asking, then say `ready`."""
        self._window.setEnabled(False)
        session.shutdown(self._on_stopped)

    def _on_stopped(self) -> None:
        self._done = True
        self.ready.emit()
