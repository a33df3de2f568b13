"""Diagnoses the run that is training and reports each error once, in a banner that can stop the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QTimer

from precgui.gui.answer import Answer, thread
from precgui.gui.notices import Notice, Notices
from precgui.words import Sentence, _, translated

if TYPE_CHECKING:
    from precgui.gui.diagnosing import JudgedRun
    from precgui.gui.session import Session
    from precgui.runs.diagnosis.findings import Finding

INTERVAL_MS = 3000
_FEWEST_STEPS = 24  # before them a search for the loss scale resembles a collapse
_SHARE = 30  # of the time, at most one part in so many


class LiveDiagnosis(QObject):
    """Applies the rules of `precgui diagnose` to the active run every few seconds.

    An error is reported when two diagnoses in a row contain it, and each rule once for a run.
    """

    def __init__(self, session: Session, notices: Notices, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._session, self._notices = session, notices
        self._reported: set[tuple[str, str]] = set()
        self._before: set[tuple[str, str]] = set()
        self.timer = QTimer(self, singleShot=True, interval=INTERVAL_MS)
        self.timer.timeout.connect(self.judge)
        self.judging = Answer(self, answered=self._take)
        session.runs.data_arrived.connect(self._on_data)

    def _on_data(self, key: str) -> None:
        if key == self._session.runs.active_key and not self.timer.isActive():
            self.timer.start()

    def judge(self) -> None:
        """Judge the active run, if it has steps enough, in a thread."""
        key = self._session.runs.active_key
        if key is None or self.judging.busy:
            return
        run = self._session.runs[key].run
        if len(run.series("loss")[0]) >= _FEWEST_STEPS:
            from precgui.gui.diagnosing import judgement  # numpy and h5py, not before the first paint

            self.judging.ask(thread(judgement(key, run)))

    def _take(self, judged: JudgedRun) -> None:
        key = judged.key
        if key not in self._session.runs:
            return
        errors = [outcome for outcome in judged.diagnosis.problems if outcome.severity == "error"]
        for result in errors:
            place = key, result.rule
            if place in self._before and place not in self._reported:
                self._reported.add(place)
                self._tell(key, result)
        self._before = {(key, answer.rule) for answer in errors}
        self.timer.setInterval(max(INTERVAL_MS, round(_SHARE * 1000 * judged.taken_s)))

    def _tell(self, key: str, finding: Finding) -> None:
        name = self._session.runs[key].name
        remedies = (
            (_("Stop the run"), lambda: self._session.training.stop(key), lambda: self._session.runs.active_key == key),
            (_("Diagnose"), lambda: self._session.requests.go(f"diagnose/{key}")),
        )
        proof = "\n".join(translated(each.text) for each in finding.evidence)
        text = translated(Sentence("{run}: {title}.", run=name, title=finding.title))
        details, cause = (
            _("{proof}\nFix: {fix}").format(proof=proof, fix=translated(finding.fix)),
            f"{key} {finding.rule}",
        )
        closed = lambda: key not in self._session.runs  # noqa: E731
        self._notices.post(Notice("error", text, details, cause, remedies, closed))
