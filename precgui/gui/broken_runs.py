"""Lets a run that broke off go on, here or at its place, after consent to code of the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtWidgets import QWidget

from precgui.errors import SentenceError
from precgui.gui.answer import Answer, thread
from precgui.gui.kit.consent import Consent
from precgui.gui.open_run import Problem
from precgui.gui.session import Session
from precgui.places.settings import NamedPlace, known_place
from precgui.runs.broken_off import broken_off, can_go_on
from precgui.runs.errors import RunFileError
from precgui.runs.file.reader import open_run
from precgui.words import _, error_text

if TYPE_CHECKING:
    from precgui.places.messages import JobLine


class BrokenRuns:
    """The button *Go on* of a panel."""

    def __init__(self, session: Session, panel: QWidget) -> None:
        self._session = session
        self.consent = Consent(panel, session.agreed_code)
        self._asking = Answer(panel, answered=self._take_job, title=_("Asking a place for a run"))

    def go_on(self, path: Path) -> None:
        """Train the run of a file to its end; a notice says why it cannot go on."""
        try:
            if (place := _place_of(path)) is not None:
                self._asking.ask(thread(_job_there, place, path))
                return
            broken = broken_off(path)
        except RunFileError as error:
            self._session.notice.emit(Problem(error_text(error)))
            return
        self.consent.before([broken.config.task], lambda: self._session.training.go_on(broken))

    def _take_job(self, answer: tuple[NamedPlace, JobLine, Path] | str) -> None:
        if isinstance(answer, str):
            self._session.notice.emit(Problem(answer))
            return
        place, line, path = answer
        task = str(line.config.get("task", ""))
        self.consent.before([task], lambda: self._session.training.go_on_there(place, line, path), place.name)


def may_go_on(path: Path, status: str | None, place: str) -> bool:
    """Whether to offer it: by the names of checkpoints here; a place is asked only when somebody wants it.

    `place` is the name of the place of the run, empty for this machine.
    """
    return can_go_on(path, status) or (status in ("stopped", "failed") and known_place(place) is not None)


def _place_of(path: Path) -> NamedPlace | None:
    """The place of a run that has no checkpoint here. Raises RunFileError."""
    with open_run(path) as run:
        if can_go_on(path, run.status):
            return None
        return known_place(str(run.environment.get("place") or ""))


def _job_there(place: NamedPlace, path: Path) -> tuple[NamedPlace, JobLine, Path] | str:
    """The job of a run at its place, or the sentence why it is not known there."""
    from precgui.places.trial import job_of_run  # not before a place is asked

    try:
        with open_run(path) as run:
            return place, job_of_run(place, run.run_id, path, place.name), path
    except SentenceError as error:
        return _("{error}.").format(error=error_text(error))
