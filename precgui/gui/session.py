"""The session of the window: the open runs, the training, the study, and the requests of panels to each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QObject, QTimer, Signal

from precgui import paths
from precgui.gui.model_scans import ModelScans
from precgui.gui.open_run import Problem
from precgui.gui.open_runs import OpenRuns
from precgui.gui.requests import Requests
from precgui.gui.study_control import StudyControl
from precgui.gui.training_queue import TrainingQueue
from precgui.gui.undo import Undo
from precgui.words import _

SHUTDOWN_MS = 5000  # a run is stopped within two seconds, and its file repaired


class Session(QObject):
    """Panels meet here and nowhere else."""

    notice = Signal(object)  # Problem
    folder_changed = Signal()  # another folder of new runs, or other files in it

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._folder = paths.runs_dir()
        self._when_shut: Callable[[], None] | None = None
        self.baseline_file = ""  # of Compare, chosen by hand; it is chosen again after a restart
        self.agreed_code: set[str] = set()  # tasks of their own that the user lets run, until the window is closed
        self.undo = Undo(self)
        self.study = StudyControl(self)
        self.study.notice.connect(self.notice)
        self.runs = OpenRuns(self.notice.emit, self.undo, self)
        self.requests = Requests(self.runs, self)
        self.training = TrainingQueue(
            self.runs, self.requests, lambda: self.study.is_running, self.notice.emit, lambda: self._folder, self
        )
        self.study.changed.connect(self.training.follow_study)
        self.training.ended.connect(lambda _: self.folder_changed.emit())
        self.models = ModelScans(self.notice.emit, lambda: self._folder, self)
        self.models.kept.connect(self._show_model)
        for signal in (self.training.left, self.study.changed):
            signal.connect(self._finish_shutdown)

    @property
    def folder(self) -> Path:
        """The folder of new runs."""
        return self._folder

    def set_folder(self, folder: Path) -> None:
        self._folder = folder
        self.folder_changed.emit()

    @property
    def is_busy(self) -> bool:
        """Whether a run or a study is trained by this window."""
        return self.training.is_training or self.study.is_running

    def open_study(self, folder: str | Path) -> None:
        """Open the folder of a study and show its groups; a folder that is none becomes a notice."""
        from precgui.sweeps.folder import is_sweep

        if is_sweep(Path(folder)):
            self.study.open(Path(folder))
            self.requests.go("compare/groups")
        else:
            text = _("{folder} is not the folder of a study: it has no sweep.toml.").format(folder=folder)
            self.notice.emit(Problem(text, severity="warning"))

    def _show_model(self, file: Path) -> None:
        """Show a scan that was kept, in the place of an earlier one of the same file."""
        if known := self.runs.key_of(file):
            self.runs.close(known)
        if key := self.runs.open_file(file):
            self.requests.inspect(key, "formats")
        self.folder_changed.emit()

    def shutdown(self, done: Callable[[], None]) -> None:
        """Stop everything for good, then call `done` from the event loop. Runs that wait are dropped."""
        self._when_shut = done
        self.runs.stop_following()
        self.training.close()
        self.study.stop()
        self.models.stop()
        QTimer.singleShot(SHUTDOWN_MS, self, self._give_up_waiting)
        self._finish_shutdown()

    def _give_up_waiting(self) -> None:
        """Close without a process or a disk that does not answer."""
        self.training.give_up()
        self.study.give_up()
        self._finish_shutdown()

    def _finish_shutdown(self) -> None:
        if self._when_shut is not None and not self.training.has_processes and not self.study.is_running:
            QTimer.singleShot(0, self._when_shut)
            self._when_shut = None
