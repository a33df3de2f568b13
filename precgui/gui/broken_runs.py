"""Lets a run that broke off go on from its checkpoint, after consent to code of the user's own."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtWidgets import QWidget

from precgui.gui.kit.consent import Consent
from precgui.gui.open_run import Problem
from precgui.gui.session import Session
from precgui.runs.broken_off import broken_off
from precgui.runs.errors import RunFileError


class BrokenRuns:
    """The button *Go on* of a panel."""

    def __init__(self, session: Session, panel: QWidget) -> None:
        self._session = session
        self.consent = Consent(panel, session.agreed_code)

    def go_on(self, path: Path) -> None:
        """Train the run of a file to its end; a notice says why it cannot go on."""
        try:
            broken = broken_off(path)
        except RunFileError as error:
            self._session.notice.emit(Problem(str(error)))
            return
        self.consent.before([broken.config.task], lambda: self._session.training.go_on(broken))
