"""Start-up in two stages, and what an application needs around its window: crash log, garbage collection, the end.

The first stage paints the window with Qt alone. What is slow to import (pydantic, numpy, h5py, pyqtgraph) comes
after the first paint, a piece at a time, so that the window is there at once and answers meanwhile.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, QLocale, QObject, QTimer, QUrl, Signal
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QApplication

from precgui.gui.kit.returning import show_place
from precgui.gui.notices import Notice, Notices, caught, crash_log
from precgui.gui.settings import Settings
from precgui.gui.shell.free_memory import return_free_memory
from precgui.gui.shell.language import start_again, use_language
from precgui.gui.shell.window import Window
from precgui.gui.theme import themes
from precgui.gui.workers import kept_thread
from precgui.paths import state_dir
from precgui.words import _, translated

if TYPE_CHECKING:
    from precgui.gui.session import Session

COLLECT_MS = 250
TRIM_MS = 30_000
MOST_REOPENED = 20  # runs of the last session
IDLE_MS = 50  # between two panels loaded in advance: time to paint and to answer the user
TRACE, EXIT_AFTER_PLOTS = "PRECGUI_TRACE_STARTUP", "PRECGUI_EXIT_AFTER_PLOTS"


def open_window(files: list[Path], *, fresh: bool = False) -> int:
    """Make the application, show the window, run until it is closed. Returns the exit code."""
    QLocale.setDefault(QLocale.c())
    app = QApplication(sys.argv[:1])
    app.setApplicationName("precgui")
    app.setStyle("Fusion")
    notices = Notices()
    with ExitStack() as session:
        log, earlier = session.enter_context(crash_log(state_dir()))
        session.enter_context(caught(notices, log))
        settings = Settings(fresh=fresh)
        use_language(app, settings["window/language"])
        themes().set_mode(settings["window/theme"])
        window = Window(settings, notices)
        _tell(notices, settings, earlier, can_log=log is not None)
        start = StartupStages(window, files, first_run=not fresh)
        collector = GcTimer(app, start)
        signal.signal(signal.SIGINT, lambda *_: window.close())
        window.show()
        code = app.exec()
        collector.stop()
        if kept_thread.wait_for_all():
            for created in (start, window):
                created.deleteLater()
            app.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)  # before the application goes
        else:
            kept_thread.keep_forever(app, start, window)
    if window.is_restarting:
        start_again()
    return code


def _tell(notices: Notices, settings: Settings, earlier: Path | None, *, can_log: bool) -> None:
    """Reports the crash log of the last session, and problems with the folder for settings."""
    if earlier is not None:
        read = partial(QDesktopServices.openUrl, QUrl.fromLocalFile(str(earlier)))
        details = earlier.read_text(encoding="utf-8", errors="replace")
        text = _("precgui met a fault in the last session; it is written in {earlier}").format(earlier=earlier)
        notices.post(Notice("warning", text, details, remedies=((_("Open the log"), read),)))
    if not can_log:
        text = _("Settings cannot be kept, because {folder} cannot be written; set PRECGUI_STATE to another folder.")
        text = text.format(folder=state_dir())
        notices.post(Notice("warning", text))
    if settings.repaired:
        text = _("Some settings were unreadable and are back at their default: {fields}.").format(
            fields=_(", ").join(map(translated, settings.repaired))
        )
        notices.post(
            Notice(
                "warning",
                text,
                _("The broken file was kept as {file}").format(file=settings.path.with_suffix(".broken.ini")),
            )
        )


class StartupStages(QObject):
    """The second stage: state, the current panel, the files, then the other panels one by one, then the engine.

    `ended` comes when all panels are there.
    """

    ended = Signal()

    def __init__(self, window: Window, files: list[Path], *, first_run: bool = False) -> None:
        """`first_run`: show the sheet of first steps over a window that has never had a run."""
        super().__init__()
        self._first_run = first_run
        self._window = window
        self._files = files
        self._moments: dict[str, float | None] = {}
        self._watched: list[QObject] = []
        self._tracing = bool(os.environ.get(TRACE) or os.environ.get(EXIT_AFTER_PLOTS))
        window.painted.connect(self._on_painted)

    def _on_painted(self) -> None:
        self._note("first_paint", seconds_since_start())
        _soon(self._make_state)

    def _note(self, moment: str, seconds: float | None) -> None:
        """Keep a moment by the clock and by the CPU time of this process, which a busy machine lets stand."""
        self._moments[f"{moment}_s"] = seconds
        self._moments[f"{moment}_cpu_s"] = None if seconds is None else time.process_time()

    def _make_state(self) -> None:
        from precgui.gui.open_run import Problem
        from precgui.gui.session import Session
        from precgui.runs.held_power_limit import restore_left_limits

        session, settings = Session(self._window), self._window.settings
        if folder := settings["files/runs_folder"]:
            session.set_folder(Path(folder))
        if self._files:
            self._window.show_panel("live")
        QTimer.singleShot(IDLE_MS, self._load_next)  # asked for first: a panel that fails must not hinder the others
        self._window.attach(session)
        for sentence in restore_left_limits():
            session.notice.emit(Problem(sentence, severity="warning"))
        if not self._files:
            session.baseline_file = settings["session/baseline"]
            self._open_last_study(session)
        self._window.files.open(self._files or self._last_session(), show=bool(self._files))
        if not self._files:
            self._return_to_last_place(session)
        if self._tracing:
            self._watch_plots()
        if self._first_run and not (
            os.environ.get(EXIT_AFTER_PLOTS) or self._files or settings["first_run/seen"] or settings["files/recent"]
        ):
            _soon(self._window.guide.open)

    def _open_last_study(self, session: Session) -> None:
        """The study of the last session, as far as it is still there; the panel stays the one that was open."""
        from precgui.sweeps.folder import is_sweep

        study = self._window.settings["session/study"]
        if study and is_sweep(Path(study)):
            session.study.open(Path(study))

    def _return_to_last_place(self, session: Session) -> None:
        """The tab that was in view, and the current run as soon as its file is open again."""
        if tab := self._window.settings["window/tab"]:
            show_place(self._window.host.panels.get(self._window.host.current), tab)
        current = self._window.settings["session/current"]

        def choose(key: str) -> None:
            path = session.runs[key].run.path
            if path is not None and str(path.absolute()) == current and not session.runs.is_chosen:
                session.runs.choose(key)

        for key in list(session.runs):
            choose(key)
        session.runs.added.connect(choose)

    def _last_session(self) -> list[Path]:
        """The files that were open when the window was closed, as far as they are still there."""
        return [path for path in map(Path, self._window.settings["session/files"]) if path.is_file()][:MOST_REOPENED]

    def _load_next(self) -> None:
        if self._window.host.waiting():
            QTimer.singleShot(IDLE_MS, self._load_next)
            self._window.load_next_panel()
            return
        gc.collect()
        gc.freeze()
        self.ended.emit()
        if self._window.session is not None:
            self._window.session.training.warm_up()

    def _watch_plots(self) -> None:
        from PySide6.QtWidgets import QGraphicsView

        plots = self._window.host.findChildren(QGraphicsView)
        self._watched = [view.viewport() for view in plots if view.isVisible()]
        if not self._watched:  # without a file there is nothing to plot
            self._report(None)
        for viewport in self._watched:
            viewport.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Paint and "plots_painted_s" not in self._moments:
            self._moments["plots_painted_s"] = None
            _soon(lambda: self._report(seconds_since_start()))
        return super().eventFilter(watched, event)

    def _report(self, plots_painted_s: float | None) -> None:
        self._note("plots_painted", plots_painted_s)
        for viewport in self._watched:
            viewport.removeEventFilter(self)
        if os.environ.get(TRACE):
            sys.stdout.write(json.dumps(self._moments) + "\n")
            sys.stdout.flush()
        if os.environ.get(EXIT_AFTER_PLOTS):
            self._window.close()


def _soon(act: Callable[[], None]) -> None:
    """Call `act` in the next round of the event loop, after all events that wait there."""
    QTimer.singleShot(0, act)


class GcTimer(QObject):
    """Collects garbage in the GUI thread only: a collection in another thread would destroy widgets there.

    With `start` it begins when that has ended: until then nearly all that is new stays, and looking through it takes
    a tenth of the time to the first plots.
    """

    def __init__(self, parent: QObject, start: StartupStages | None = None) -> None:
        super().__init__(parent)
        gc.disable()
        self._timer = QTimer(self, interval=COLLECT_MS)
        self._timer.timeout.connect(self._collect)
        self._trim_timer = QTimer(self, interval=TRIM_MS)
        self._trim_timer.timeout.connect(return_free_memory)
        self._trim_timer.start()
        if start is None:
            self._timer.start()
        else:
            start.ended.connect(self._timer.start)

    def _collect(self) -> None:
        """The oldest generation that is full, with those below it: the rule of the interpreter itself."""
        full = [
            n
            for n, (count, limit) in enumerate(zip(gc.get_count(), gc.get_threshold(), strict=True))
            if count > limit > 0
        ]
        if full:
            gc.collect(full[-1])

    def stop(self) -> None:
        for timer in (self._timer, self._trim_timer):
            timer.stop()
        gc.enable()


def seconds_since_start() -> float:
    """Seconds since the operating system started this process; since this module was imported where it does not say."""
    stat = Path("/proc/self/stat")
    if not stat.exists():
        return time.perf_counter() - _IMPORTED_S
    ticks = int(stat.read_text(encoding="utf-8").rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


_IMPORTED_S = time.perf_counter()
