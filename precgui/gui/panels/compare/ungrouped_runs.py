"""The open runs as groups: read from their files in a thread, by all settings but the seed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import QObject, Signal

from precgui.gui.answer import Answer, thread
from precgui.gui.session import Session
from precgui.runs.report.content import ReportContent
from precgui.runs.report.ungrouped import ungrouped_report
from precgui.runs.verdict.targets import DEFAULT_TARGETS, Targets


class UngroupedRuns(QObject):
    """`read` comes when `content` is that of the runs that were asked for; None, with `why`, where there is none."""

    read = Signal()

    def __init__(self, session: Session, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._session = session
        self._asked: tuple[object, ...] = ()
        self.targets: Targets = DEFAULT_TARGETS
        self.content: ReportContent | None = None
        self.why = ""
        self._work = Answer(self, answered=self._take, failed=self._refuse)

    def paths(self) -> list[Path]:
        """The files of open runs that have ended; runs of other programs have no settings to group by."""
        runs = [opened.run for opened in self._session.runs.values()]
        return [
            run.path for run in runs if run.path is not None and run.path.suffix == ".h5" and run.status != "running"
        ]

    def ask(self) -> None:
        """Read the open runs again where others are open now, or have ended since."""
        paths, targets = self.paths(), self.targets
        asked = (*paths, targets)
        if asked == self._asked:
            return
        self._asked = asked
        self._work.ask(thread(_report, paths, targets), latest_only=True)

    def _take(self, content: ReportContent) -> None:
        self.content, self.why = content, ""
        self.read.emit()

    def _refuse(self, why: str) -> None:
        self.content, self.why = None, why
        self.read.emit()


def _report(paths: Sequence[Path], targets: Targets) -> ReportContent:
    """Raises RunFileError for a file that cannot be read, ValueError where no study is possible."""
    return ungrouped_report(paths, targets)
