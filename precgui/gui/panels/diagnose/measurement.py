"""A step of a run made again in FP64 for a finding, in a child process; the result opens in Inspect > Error."""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QPushButton, QWidget

from precgui.gui.answer import Answer, child
from precgui.gui.kit.consent import Consent
from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.open_run import Problem
from precgui.gui.run_task import Refusals, at_run, place_of
from precgui.gui.session import Session
from precgui.places.tasks import TASKS
from precgui.runs.diagnosis.findings import BLAME
from precgui.runs.replays import REPLAYS
from precgui.words import L_, _, translated

MEASURE, STOP = L_("Measure it"), L_("Stop measuring")
REFUSALS = Refusals(
    L_("A step is made again from a run file; this run has none."),
    L_("The run is still going on; measure it when it has ended."),
    L_("The run trained a loop of its own, which no run file starts; call precgui.shadow in its loop."),
)


class StepMeasurement(QObject):
    """One replay at a time. `changed` comes when it begins and when it has ended."""

    changed = Signal()

    def __init__(self, session: Session, parent: QWidget) -> None:
        super().__init__(parent)
        self._session = session
        self.consent = Consent(parent, session.agreed_code)
        self._replay = Answer(
            self, progress=self._take, failed=self._refuse, ended=self._end, title=_("Replay of a step")
        )
        self._place: tuple[str, int | None] = ("", None)
        self._is_kept = False

    def result(self, key: str, step: int | None) -> str:
        """The sentence of the replay that is kept beside the run for a step; empty without one."""
        opened = self._session.runs.get(key)
        if opened is None or opened.run.path is None or step is None:
            return ""
        replay = REPLAYS.one(opened.run.path, step)
        if replay is None:
            return ""
        return _("Measured in FP64, step {step}: {blame}. {message}").format(
            step=step, blame=translated(BLAME[replay.precision_is_to_blame]), message=replay.message
        )

    def mark(self, button: QPushButton, key: str, step: int | None) -> None:
        """Name a button for a finding on a step by what it does now."""
        opened = self._session.runs.get(key)
        own, why_not = self._place == (key, step), REFUSALS.reason(opened.run) if opened is not None else ""
        button.setText(translated(STOP if self._replay.busy and own else MEASURE))
        button.setEnabled(own if self._replay.busy else not why_not)
        if why_not:
            button.setToolTip(plain_tip(translated(why_not)))

    def toggle(self, key: str, step: int | None) -> None:
        """Begin to replay a step, or stop."""
        if self._replay.busy:
            self._replay.cancel()
            return
        opened = self._session.runs.get(key)
        if opened is not None and step is not None and not REFUSALS.reason(opened.run):
            place = place_of(opened.run)
            where = place.name if place is not None else ""
            self.consent.before([opened.run.config.task], lambda: self._start(key, step), where)

    def _start(self, key: str, step: int) -> None:
        opened = self._session.runs.get(key)
        if opened is None or self._replay.busy:
            return
        self._place, self._is_kept = (key, step), False
        arguments = {"path": str(opened.run.path), "step": step}
        self._replay.ask(child(TASKS["replay"], arguments, at_run(opened.run)))
        self.changed.emit()

    def _take(self, event: dict[str, Any]) -> None:
        self._is_kept = event["kind"] == "kept"

    def _refuse(self, why: str) -> None:
        text = _("The step cannot be made again: {why}").format(why=translated(why))
        self._session.notice.emit(Problem(text, severity="warning"))

    def _end(self, fault: str) -> None:
        if fault:
            self._session.notice.emit(
                Problem(_("The step was not made again: {fault}").format(fault=translated(fault)))
            )
        elif self._is_kept and self._place[0] in self._session.runs:
            self._session.requests.inspect(self._place[0], "error")
        self.changed.emit()
