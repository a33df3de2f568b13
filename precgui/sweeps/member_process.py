"""One run in a process of its own: started, followed, stopped; its file is repaired after a crash."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
import threading
import uuid
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from precgui import child
from precgui.config import RunConfig
from precgui.events import Event, RunEnded
from precgui.runs.errors import RunFileError
from precgui.runs.file import repair
from precgui.spawn import ChildProcess
from precgui.sweeps.state import KILLED

POLL_S = 0.1
KILL_AFTER_S = 3.0  # after a stop; the child gives up a step that does not end in `child.GRACE_S`
LAST_WORDS_BYTES = 8000


def run_in_process(
    config: RunConfig, path: Path, emit: Callable[[Event], None], stopped: Callable[[], bool]
) -> RunEnded:
    """Train in a new process until it has ended; its events go to `emit`. Returns how it ended, also when it died."""
    near, far = multiprocessing.Pipe(duplex=True)
    handle, last_words = tempfile.mkstemp(prefix="precgui-", suffix=".log")
    with os.fdopen(handle, "rb") as words:
        process = ChildProcess(target=child.main, args=(far, last_words), daemon=False)
        process.start()
        far.close()  # the end of the process is then the end of the pipe
        arguments = {"config": config.model_dump(), "path": str(path), "run_id": uuid.uuid4().hex}
        with contextlib.suppress(OSError):
            near.send(child.ChildTask("precgui.job:serve", arguments))
        ended = _relay(near, process, emit, stopped)
        process.join()
        near.close()
        words.seek(max(0, words.seek(0, os.SEEK_END) - LAST_WORDS_BYTES))
        details = words.read().decode("utf-8", "replace").strip()
    Path(last_words).unlink(missing_ok=True)
    return ended or _mended(path, process.exitcode or 0, details, was_stopped=stopped())


def _relay(
    pipe: Connection, process: ChildProcess, emit: Callable[[Event], None],
    stopped: Callable[[], bool],
) -> RunEnded | None:  # fmt: skip
    ended: RunEnded | None = None
    killer: threading.Timer | None = None
    while True:
        if killer is None and stopped():
            with contextlib.suppress(OSError):
                pipe.send(child.Stop())
            killer = threading.Timer(KILL_AFTER_S, process.kill)
            killer.daemon = True
            killer.start()
        try:
            if pipe.poll(POLL_S):
                for event in pipe.recv():
                    if not isinstance(event, child.Ready):
                        emit(event)
                        ended = event if isinstance(event, RunEnded) else ended
            elif not process.is_alive():
                break
        except (EOFError, OSError):
            break
    if killer is not None:
        process.join(KILL_AFTER_S + 1)
        killer.cancel()
    return ended


def _mended(path: Path, exit_code: int, details: str, *, was_stopped: bool) -> RunEnded:
    """The end of a process that said nothing of it; its file, if there is one, is closed in its place."""
    if was_stopped:
        ended = RunEnded(0.0, "stopped", "stopped; the process did not answer and was ended")
    else:
        ended = RunEnded(0.0, "failed", _death(exit_code), details)
    if path.exists():
        with contextlib.suppress(RunFileError):
            repair.repair(path, ended.status, ended.message, ended.details)
    return ended


def _death(exit_code: int) -> str:
    if exit_code >= 0:
        return f"the process of the run ended by itself with exit code {exit_code}"
    with contextlib.suppress(ValueError):
        name = signal.Signals(-exit_code).name
        if name == "SIGKILL":
            return f"{KILLED} SIGKILL: somebody ended it, or the system was out of memory"
        return f"{KILLED} {name}"
    return f"{KILLED} signal {-exit_code}"
