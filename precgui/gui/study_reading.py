"""Reads the folder of a study: its grid of runs and its judged groups. Plain data for the window, no Qt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from precgui.config import RunConfig
from precgui.events import Metric
from precgui.examples import title_for_reader
from precgui.runs.errors import RunFileError
from precgui.runs.file.reader import open_run
from precgui.runs.metric import metric_of
from precgui.runs.report.content import ReportContent, report_content
from precgui.sweeps.folder import SweepFolder
from precgui.sweeps.report import MemberRow, SweepDocument, sweep_document
from precgui.sweeps.spec import formats_of_layers, repeat_command
from precgui.sweeps.state import ENDED
from precgui.sweeps.study import SweepReader
from precgui.words import _, translated


@dataclass(frozen=True)
class StudyGrid:
    """The state of every run. `arms` are in the order of the plan; `shares` say how far running ones are, 0 to 1.

    `metric` is None before a run has ended. `runner` is the process that runs the study, as "process 12 on host";
    empty where there is none. `tasks` are the names of the tasks that its runs train. `formats_of_layers` is the config
    that it verifies, where it is a study of formats of layers.
    """

    document: SweepDocument
    title: str
    arms: tuple[str, ...]
    shares: dict[str, float]
    metric: Metric | None
    runner: str = ""
    tasks: tuple[str, ...] = ()
    formats_of_layers: RunConfig | None = None

    @property
    def is_run_somewhere(self) -> bool:
        """Whether some process trains a run of it now, or is about to."""
        return bool(self.runner) or any(member.status == "running" for member in self.document.members)

    @property
    def seeds(self) -> int:
        """How many seeds are planned."""
        return len({member.seed for member in self.document.members if member.kind == "run"})


class StudyReading:
    """One folder. Used by one thread at a time; files that have not changed are not read again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader: SweepReader | None = None
        self._metric: Metric | None = None

    def grid(self) -> StudyGrid:
        """The state at this moment. Raises SweepError."""
        folder = self._opened().folder
        document = sweep_document(folder)
        running = {row.name: _share(row) for row in document.members if row.status == "running"}
        return StudyGrid(
            document,
            title_for_reader(folder.spec.title, self.path / "sweep.toml", translated) or self.path.resolve().name,
            tuple(arm.name for arm in folder.spec.arms()),
            running,
            self._metric or self._read_metric(document),
            _runner(folder),
            tuple(folder.spec.tasks),
            formats_of_layers(folder.spec),
        )

    def groups(self) -> ReportContent:
        """The judged groups of the runs that have ended. Raises SweepError."""
        reader = self._opened()
        reader.folder.reload()
        study, runs = reader.study(), reader.figures()
        title = reader.folder.spec.title or self.path.resolve().name
        command = repeat_command(reader.folder.spec, len(reader.folder.plan.seeds))
        return report_content(study, runs, title=title, command=command)

    def change(self, act: Callable[[SweepFolder], None]) -> None:
        """Change the plan of the study. Raises SweepError."""
        act(self._opened().folder)

    def _opened(self) -> SweepReader:
        if self._reader is None:
            self._reader = SweepReader(SweepFolder(self.path))
        return self._reader

    def _read_metric(self, document: SweepDocument) -> Metric | None:
        for row in document.members:
            if row.status in ENDED and row.run is not None:
                try:
                    with open_run(row.run) as run:
                        self._metric = metric_of(run.environment)
                    break
                except RunFileError:
                    continue
        return self._metric


def _runner(folder: SweepFolder) -> str:
    owner = folder.runner.owner()
    if owner is None:
        return ""
    return _("process {pid} on {host}").format(pid=owner.get("pid"), host=owner.get("host"))


def _share(row: MemberRow) -> float:
    """The share of the steps that are done, by the file."""
    try:
        with open_run(row.run or "") as run:
            return min(run.steps / run.total_steps, 1.0) if run.total_steps else 0.0
    except RunFileError:
        return 0.0
