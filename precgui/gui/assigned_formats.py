"""Formats of layers that a search found, and the study that verifies them; kept while no view shows them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject, Signal

from precgui.config import RunConfig
from precgui.errors import SentenceError
from precgui.gui.open_run import Problem
from precgui.words import L_, _, error_text, translated

if TYPE_CHECKING:
    from precgui.gui.study_control import StudyControl

BASELINE, VERDICT = "fp32", "accuracy_lost"
_UNVERIFIED = L_("Nothing is verified yet.")
_BUSY = L_("A run or a study is going on; verify when it has ended.")
_RUNS = L_("The study runs in {folder}; it is shown in Live, and goes on when this is closed.")
_NOT_JUDGED = L_("The study was not judged: {why}.")
_MET = L_("Verified: with {seeds} seeds the metric stays within its target beside FP32.")
_NOT_MET = L_(
    "Not verified: the metric beside FP32 with {seeds} seeds is {verdict}. More seeds in Live or a larger budget "
    "may decide; the form stays as it is."
)
_NOT_MET_WHY = L_(
    "Not verified: the metric beside FP32 with {seeds} seeds is {verdict} ({why}). More seeds in Live or a larger "
    "budget may decide; the form stays as it is."
)
_WHERE_MET = L_("The formats of layers are verified; Run > Plan > Formats of layers puts them into the form.")
_NONE_ENDED = L_("no run of it has ended")


class AssignedFormats(QObject):
    """The result of the last search: `planned` trains in it, `assignment` has its scores; `folder` is its study.

    A study that verifies formats and is opened in the window counts as found, too, then without scores.
    """

    changed = Signal()

    def __init__(
        self, study: StudyControl, is_busy: Callable[[], bool], report: Callable[[Problem], object],
        folder: Callable[[], Path], parent: QObject | None = None,
    ) -> None:  # fmt: skip
        super().__init__(parent)
        self._study, self._is_busy, self._report, self._folder_of_runs = study, is_busy, report, folder
        self.base: RunConfig | None = None  # that was searched for
        self.request: dict[str, Any] = {}  # formats, kind and value of the budget of the search
        self.planned: RunConfig | None = None
        self.assignment: dict[str, Any] | None = None
        self.folder: Path | None = None
        self.is_verified = False
        self.sentence = ""
        self.is_displayed = False  # by a view, so that no notice is needed
        study.changed.connect(self._follow_study)
        study.grid_read.connect(self._adopt)
        study.groups_read.connect(self._judge)

    @property
    def is_verifying(self) -> bool:
        return self._is_own_study and self._study.is_running

    @property
    def _is_own_study(self) -> bool:
        return self.folder is not None and self._study.folder == self.folder

    def begin(self, request: dict[str, Any]) -> None:
        """A search begins: what was found before is out of date."""
        self.request = request
        self.base, self.planned, self.assignment, self.folder, self.is_verified = None, None, None, None, False
        self.sentence = ""

    def take(self, base: RunConfig, planned: RunConfig, assignment: dict[str, Any]) -> None:
        """Keep the result of a search for `base`."""
        self.base, self.planned, self.assignment, self.folder, self.is_verified = base, planned, assignment, None, False
        self._say(translated(_UNVERIFIED))

    def verify(self, seeds: int, places: Sequence[str] = ()) -> None:
        """Begin a study of the formats beside FP32, here or at places."""
        from precgui.sweeps.spec import make_spec

        if self.planned is None:
            return
        if self._is_busy():
            self._say(translated(_BUSY))
            return
        try:
            spec = make_spec(
                self.planned, [BASELINE, self.planned.precision], seeds, twins=0,
                order_seed=secrets.randbelow(2**31), title=L_("Formats of layers"),
            )  # fmt: skip
        except SentenceError as error:
            self._say(_("{error}.").format(error=error_text(error)))
            return
        folder = self._folder_of_runs() / time.strftime("assign-%Y%m%d-%H%M%S")
        before, self.folder, self.is_verified = self.folder, folder, False
        if self._study.start(spec, folder, None, places):
            self._say(translated(_RUNS).format(folder=folder))
        else:
            self.folder = before

    def _adopt(self) -> None:
        """Take the formats of a study that was opened, where none are found that wait to be verified."""
        study = self._study
        planned = study.grid.formats_of_layers if study.grid is not None else None
        if planned is None or self._is_own_study or (self.planned is not None and self.folder is None):
            return
        self.base, self.planned, self.assignment = None, planned, None
        self.folder, self.is_verified, self.sentence = study.folder, False, ""
        self._follow_study()

    def _follow_study(self) -> None:
        study = self._study
        if self._is_own_study and study.is_running:
            self._say(translated(_RUNS).format(folder=self.folder))
        elif self._is_own_study:
            study.read_groups()
        self.changed.emit()

    def _judge(self) -> None:
        """Say whether the formats keep the metric, once the study has ended."""
        study = self._study
        if not self._is_own_study or study.is_running or self.planned is None:
            return
        was_verified, self.is_verified = self.is_verified, False
        groups = study.groups.study.groups if study.groups is not None else ()
        own = [group for group in groups if group.precision == self.planned.precision]
        verdict = own[0].verdicts.get(VERDICT) if own else None
        if verdict is None:
            why = translated(study.why_no_groups or _NONE_ENDED)
            self._say(translated(_NOT_JUDGED).format(why=why))
        elif verdict.verdict == "met":
            self.is_verified = True
            self._say(translated(_MET).format(seeds=verdict.n))
            if not was_verified and not self.is_displayed:
                self._report(Problem(translated(_WHERE_MET), severity="info"))
        else:
            text = translated(_NOT_MET_WHY if verdict.why else _NOT_MET)
            named, why = translated(verdict.verdict), translated(verdict.why)
            self._say(text.format(seeds=verdict.n, verdict=named, why=why))

    def _say(self, sentence: str) -> None:
        self.sentence = sentence
        self.changed.emit()
