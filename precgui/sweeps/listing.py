"""The studies in a folder of runs, each with the state of its members: for a list of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from precgui.events import Metric
from precgui.runs.errors import RunFileError
from precgui.runs.file.reader import open_run
from precgui.runs.metric import ACCURACY, metric_of
from precgui.sweeps.errors import reason
from precgui.sweeps.folder import SPEC, SweepFolder, is_sweep
from precgui.sweeps.report import MemberRow, sweep_document
from precgui.sweeps.state import ENDED

MOST_STUDIES = 50  # the newest ones


@dataclass(frozen=True)
class StudyEntry:
    """One study. `created_s` is the moment of its making, in seconds since 1970; `error` says why it cannot be read."""

    path: Path
    title: str
    created_s: float = 0.0
    precisions: tuple[str, ...] = ()
    seeds: int = 0
    members: tuple[MemberRow, ...] = ()
    done: int = 0
    left: int = 0
    failed: int = 0
    paused: bool = False
    metric: Metric = ACCURACY
    error: str = ""


@dataclass
class StudyList:
    """The studies of one folder. Used by one thread at a time; runs that have not changed are not read again."""

    folder: Path
    _open: dict[Path, SweepFolder] = field(default_factory=dict)
    _metrics: dict[Path, Metric] = field(default_factory=dict)

    def entries(self) -> list[StudyEntry]:
        """The newest studies, the last one first; none where the folder cannot be read."""
        try:
            paths = [path for path in self.folder.iterdir() if is_sweep(path)]
        except OSError:
            return []
        created = sorted(((_created_s(path), path) for path in paths), reverse=True)[:MOST_STUDIES]
        self._open = {path: self._open[path] for _, path in created if path in self._open}
        return [self._entry(path, created_s) for created_s, path in created]

    def _entry(self, path: Path, created_s: float) -> StudyEntry:
        try:
            folder = self._open.get(path) or SweepFolder(path)
            self._open[path] = folder
            document = sweep_document(folder)
        except Exception as error:  # noqa: BLE001 - the folder may be of anybody, and the others must be listed
            return StudyEntry(path, path.name, created_s, error=reason(error))
        failed = sum(member.status == "failed" for member in document.members)
        return StudyEntry(
            path, folder.spec.title or path.name, created_s, tuple(folder.spec.precisions), len(folder.plan.seeds),
            document.members, document.done, document.left, failed, document.paused,
            self._metric(path, document.members),
        )  # fmt: skip

    def _metric(self, path: Path, members: tuple[MemberRow, ...]) -> Metric:
        ended = next((row.run for row in members if row.status in ENDED and row.run is not None), None)
        if path not in self._metrics and ended is not None:
            try:
                with open_run(ended) as run:
                    self._metrics[path] = metric_of(run.environment)
            except RunFileError:
                return ACCURACY
        return self._metrics.get(path, ACCURACY)


def _created_s(path: Path) -> float:
    try:
        return (path / SPEC).stat().st_mtime
    except OSError:
        return 0.0
