"""The window's only access to the engine: a thread that runs a child process and relays its events.

All that may block is done in the thread: starting the process, reading the pipe, repairing the file of a crashed
process. Batches of events are appended to `inbox`, a deque that the window empties by timer.
"""

from __future__ import annotations

import collections
import contextlib
import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from PySide6.QtCore import QObject

from precgui import child
from precgui.config import RunConfig
from precgui.events import RunEnded
from precgui.gui.workers.kept_thread import KeptThread
from precgui.runs.file import repair
from precgui.spawn import ChildProcess

KILL_AFTER_S = 0.9  # after Stop; the child itself gives up a stuck step after `child.GRACE_S`
POLL_S = 0.2
LAST_WORDS_BYTES = 8000


class ChildThread(KeptThread):
    """One child process and its pipe. Launch it early: it imports torch and then waits for its order.

    `finished` comes when the process has ended and its last event is in `inbox`.
    """

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.inbox: collections.deque[Any] = collections.deque()
        self.ready = False
        self.stopping = False
        self._pipe, self._far_end = multiprocessing.Pipe(duplex=True)
        self._send_lock = threading.Lock()
        self._process: ChildProcess | None = None
        self._stop_lock = threading.Lock()  # held while `stopping` and the timer change together
        self._kill_timer: threading.Timer | None = None
        self._last_words: BinaryIO | None = None

    @property
    def pid(self) -> int | None:
        """The id of the process; None before its start."""
        return self._process.pid if self._process is not None else None

    def begin(self, order: child.ChildTask) -> None:
        """Give the process its work; it is kept in the pipe until the process is ready."""
        self._send(order)

    def begin_task(self, task: str, arguments: Mapping[str, Any]) -> None:
        """Give the process the work of "module:function" of precgui, for those who do not know orders."""
        self.begin(child.ChildTask(task, arguments))

    def stop(self) -> None:
        """Ask the task to end; the process is gone within `KILL_AFTER_S`, whatever it does."""
        with self._stop_lock:
            if self.stopping:
                return
            self.stopping = True
            self._kill_timer = threading.Timer(KILL_AFTER_S, self._kill)
            self._kill_timer.start()
        self._send(child.Stop())

    def dismiss(self) -> None:
        """End a process that waits for work."""
        self.stopping = True
        self._kill()

    def run(self) -> None:
        """The child takes the name from the file of its last words, so that nothing stays when both are killed."""
        handle, name = tempfile.mkstemp(prefix="precgui-", suffix=".log")
        try:
            with os.fdopen(handle, "rb") as self._last_words:
                self._live(name)
        finally:
            with contextlib.suppress(OSError):
                Path(name).unlink(missing_ok=True)
        self._pipe.close()

    def _live(self, last_words: str) -> None:
        """Start the process, relay its events and wait for its end."""
        process = ChildProcess(target=child.main, args=(self._far_end, last_words), daemon=False)
        self._process = process
        try:
            process.start()
        except OSError as error:  # no memory or no more processes
            self.process_ended(False, f"the engine process could not be started: {error}")
            return
        self._far_end.close()  # the end of the process is then the end of the pipe
        with self._stop_lock:
            dismissed = self.stopping and self._kill_timer is None
        if dismissed:
            process.kill()
        with contextlib.ExitStack() as unless_relayed:
            unless_relayed.callback(process.kill)  # no other thread would end the process after a fault in this one
            self._relay(process)
            unless_relayed.pop_all()
        process.join()
        self._end_kill_timer()
        self.process_ended(process.exitcode == 0, _death(process.exitcode or 0))

    def _end_kill_timer(self) -> None:
        with self._stop_lock:
            timer = self._kill_timer
        if timer is not None:
            timer.cancel()
            timer.join()

    def process_ended(self, clean: bool, death: str) -> None:
        """Called in this thread when the process is gone: whether by itself and well, and how, in words."""

    def last_words(self) -> str:
        """The end of what the process printed; to be asked from `process_ended`."""
        file = self._last_words
        if file is None or file.closed:
            return ""
        file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_WORDS_BYTES))
        return file.read().decode("utf-8", "replace").strip()

    def _relay(self, process: ChildProcess) -> None:
        """Take each batch until the process is gone; loader processes of its own may hold the pipe open longer."""
        while True:
            try:
                if self._pipe.poll(POLL_S):
                    self._receive(self._pipe.recv())
                elif not process.is_alive():
                    return
            except (EOFError, OSError):
                return

    def _receive(self, batch: list[Any]) -> None:
        if isinstance(batch[0], child.Ready):
            self.ready = True
        else:
            self.inbox.append(batch)

    def _send(self, message: object) -> None:
        with self._send_lock, contextlib.suppress(OSError):  # `process_ended` reports a crashed process
            self._pipe.send(message)

    def _kill(self) -> None:
        if self._process is not None and self._process.is_alive():
            self._process.kill()


class RunThread(ChildThread):
    """A child process that trains; the run file is completed after a crash, too."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._path: Path | None = None
        self._ended = False

    def begin_run(self, config: RunConfig, path: Path, run_id: str) -> None:
        self._path = path
        arguments = {"config": config.model_dump(), "path": str(path), "run_id": run_id}
        self.begin(child.ChildTask("precgui.job:serve", arguments))

    def _receive(self, batch: list[Any]) -> None:
        super()._receive(batch)
        self._ended = self._ended or isinstance(batch[-1], RunEnded)

    def process_ended(self, clean: bool, death: str) -> None:
        if self._path is None or self._ended:
            return
        if self.stopping:
            ended = RunEnded(0.0, "stopped", "stopped; the engine process did not answer and was ended")
        else:
            ended = RunEnded(0.0, "failed", death, self.last_words())
        if self._path.exists():
            self._finish_file(self._path, ended)
        self.inbox.append([ended])

    def _finish_file(self, path: Path, ended: RunEnded) -> None:
        """Complete the file in a process of its own: HDF5 can crash on a file that a dying process left."""
        process = ChildProcess(
            target=repair.repair, args=(path, ended.status, ended.message, ended.details), daemon=True
        )
        process.start()
        process.join()


def _death(exit_code: int) -> str:
    """How a process died, in words."""
    if exit_code >= 0:
        return f"the engine process ended by itself with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    if name == "SIGKILL":
        return "the engine process was killed by SIGKILL: the system was probably out of memory"
    return f"the engine process was killed by {name}"
