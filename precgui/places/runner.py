"""The process of one job at a place, in a session of its own: it needs no agent, only the folder of its job.

With `--wait` it imports torch, prints `ready` and reads the folder from its input; it ends when that is closed before.
"""

from __future__ import annotations

import _thread
import importlib
import io
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

from precgui.events import Event, Incident, TensorStats
from precgui.hardware.environment import PLACE_VARIABLE, SENT_CODE_VARIABLE
from precgui.places.history import HistoryWriter
from precgui.places.jobs import RUN_FILE, JobFolder, is_end
from precgui.places.messages import (
    REPLIES,
    CommandEnded,
    JobEvents,
    JobOutput,
    JobRow,
    SentFile,
    StartCommand,
    StartRun,
)
from precgui.places.tasks import ARGUMENTS, TASK, TASKS, event_line, with_texts
from precgui.process.child import RUN_TASK, ChildTask, import_torch, redirect_output, work
from precgui.process.frames import FrameError
from precgui.sentences import L_

POLL_S = 0.1
MOST_TENSOR_BYTES = 64 << 20  # of rows of tensors among the messages; the run file has all of them
MOST_TEXT = 1 << 16  # characters in one message
_COMMAND = "precgui.cli.main:main"
_QUANTIZE = "quantize"
_WITH_CODE = (_QUANTIZE, TASK)  # commands to which code is sent
_ROWS_LEFT_OUT = L_("rows of tensors are not sent any more; the run file has all of them")


class JobConnection:
    """Appends what a job says to its folder, and reads there whether it should stop."""

    def __init__(self, folder: JobFolder, after: int = 0) -> None:
        self._folder, self._number, self._row_number, self._row_bytes = folder, after, 0, 0
        self._file, self._rows = _appended(folder.frames), _appended(folder.rows)
        self._history = HistoryWriter(folder, after)
        self._takes_rows = True
        self._lock = threading.Lock()

    def send(self, batch: Any, /) -> None:
        """A batch of events. Raises OSError where the disk does not take it: nothing of it is kept then."""
        for event in batch:
            if isinstance(event, TensorStats) and self._takes_rows:
                self._send_row(event)
        self._send_events(event for event in batch if not isinstance(event, TensorStats))

    def _send_events(self, events: Iterable[Event]) -> None:
        if kept := tuple(events):
            self._append(partial(JobEvents, self._folder.job, events=kept))

    def _send_row(self, row: TensorStats) -> None:
        """A row, as long as rows take few bytes."""
        with suppress(FrameError):  # of more tensors than a frame holds
            with self._lock:
                size = _append(self._rows, REPLIES.encode(JobRow(self._folder.job, self._row_number + 1, row)))
                self._row_number += 1
                self._row_bytes += size
            if self._row_bytes <= MOST_TENSOR_BYTES:
                return
        self._takes_rows = False
        self._send_events([Incident(row.time_s, row.step, "note", "info", _ROWS_LEFT_OUT)])

    def recv(self) -> Any:
        """Returns when the job should stop."""
        while not self._folder.is_asked_to_stop:
            time.sleep(POLL_S)

    def text(self, stream: Literal["stdout", "stderr"], text: str) -> None:
        """Raises OSError."""
        for start in range(0, len(text), MOST_TEXT):
            part = text[start : start + MOST_TEXT]
            self._append(lambda number, part=part: JobOutput(self._folder.job, number, stream, part))

    def end(self, exit_code: int) -> None:
        """Raises OSError."""
        self._append(lambda number: CommandEnded(self._folder.job, number, exit_code))

    def _append(self, message: Callable[..., JobEvents | JobOutput | CommandEnded]) -> None:
        with self._lock:
            said = message(number=self._number + 1)
            if is_end(said):
                self._folder.mark_ended()
            _append(self._file, REPLIES.encode(said))
            self._number += 1
            if isinstance(said, JobEvents):
                self._history.add(self._number, said.events, os.fstat(self._file).st_size)


def _appended(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o600)


def _append(file: int, frame: bytes) -> int:
    """Append a frame, or nothing where the disk does not take all of it; returns its size. Raises OSError."""
    before = os.fstat(file).st_size
    written = 0
    try:
        while written < len(frame):
            written += os.write(file, frame[written:])
    except OSError:
        os.ftruncate(file, before)
        raise
    return len(frame)


class _OutputStream(io.TextIOBase):
    """Standard output or error of a command."""

    encoding = "utf-8"

    def __init__(self, connection: JobConnection, stream: Literal["stdout", "stderr"]) -> None:
        self._connection, self._stream, self._text = connection, stream, ""

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        self._text += text
        if "\n" in text:
            self.flush()
        return len(text)

    def flush(self) -> None:
        text, self._text = self._text, ""
        with suppress(OSError):
            self._connection.text(self._stream, text)


def main() -> int:
    """Entry point; `sys.argv[1]` is a job or `--wait`. Returns the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    job = _waited_for() if sys.argv[1] == "--wait" else sys.argv[1]
    if not job:
        return 0
    folder = JobFolder(job)
    if not folder.claim():
        return 0
    order, connection = folder.order(), JobConnection(folder)
    run = JobFolder(order.of) if isinstance(order, StartCommand) and order.of else folder
    os.chdir(run.out)
    redirect_output(folder.output)
    os.environ[SENT_CODE_VARIABLE] = ",".join(
        file.name for file in _code_of(run, order)
    )  # for processes of a sweep, too
    if isinstance(order, StartRun):
        _train(folder, order, connection)
    elif order.words[0] == TASK:
        work_on_task(folder, run, order, connection)
    else:
        _command(folder, run, order, connection)
    return 0


def _code_of(run: JobFolder, order: StartRun | StartCommand) -> tuple[SentFile, ...]:
    """The files of code that were sent for this job, or for the run in whose folder it runs."""
    own = order.files if isinstance(order, StartRun) or order.words[0] in _WITH_CODE else ()
    of = run.order() if isinstance(order, StartCommand) and order.of else None
    return (*own, *(of.files if isinstance(of, StartRun) else ()))


def _waited_for() -> str:
    with suppress(ImportError):  # a command may need no torch
        import_torch()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    job = sys.stdin.readline().strip()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    os.close(nothing)
    return job


def _train(folder: JobFolder, order: StartRun, connection: JobConnection) -> None:
    if order.place:
        os.environ[PLACE_VARIABLE] = order.place
    path, goes_on = str(folder.out / RUN_FILE), folder.part_number > 0
    arguments = {"config": dict(order.config), "path": path, "run_id": folder.job, "goes_on": goes_on}
    work(connection, ChildTask(RUN_TASK, arguments))


def _command(folder: JobFolder, run: JobFolder, order: StartCommand, connection: JobConnection) -> None:
    words = list(order.words)
    if words[0] == _QUANTIZE and run is not folder:  # it makes files of its own
        os.chdir(folder.out)
        words = with_texts(words, {RUN_FILE: str(run.out / RUN_FILE)})
    out, err = _OutputStream(connection, "stdout"), _OutputStream(connection, "stderr")
    sys.stdout, sys.stderr = out, err
    os.environ["COLUMNS"] = str(max(20, min(order.columns, 400)))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_interrupt_on_stop, args=(connection,), daemon=True).start()
    module, _, function = _COMMAND.partition(":")
    try:
        code = int(getattr(importlib.import_module(module), function)(words))
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - whatever a command raises is shown where it was asked for
        traceback.print_exc()
        code = 1
    out.flush()
    err.flush()
    connection.end(code)


class _EventLines:
    """Prints the events of a task as lines, with `texts` in place of paths of this machine."""

    def __init__(self, connection: JobConnection, texts: dict[str, str]) -> None:
        self._connection, self._texts, self.recv = connection, texts, connection.recv

    def send(self, batch: Any, /) -> None:
        """Raises OSError."""
        self._connection.text("stdout", "".join(event_line(with_texts(event, self._texts)) for event in batch))


def work_on_task(folder: JobFolder, run: JobFolder, order: StartCommand, connection: JobConnection) -> None:
    """Work on a task of the window. What it makes lies in this folder, also where it reads the file of a run."""
    code = 0
    try:
        asked = json.loads((folder.out / ARGUMENTS).read_bytes())
        paths = {name: str(folder.out / name) for name in asked["makes"]}
        if run is not folder:
            paths[RUN_FILE] = str(run.out / RUN_FILE)
        arguments = with_texts(asked["arguments"], paths)
        lines = _EventLines(connection, {path: name for name, path in paths.items()})
        work(lines, ChildTask(TASKS[order.words[1]], arguments))
    except BaseException:  # noqa: BLE001 - whatever a task raises is told where it was asked for
        connection.text("stderr", traceback.format_exc())
        code = 1
    connection.end(code)


def _interrupt_on_stop(connection: JobConnection) -> None:
    connection.recv()
    _thread.interrupt_main()


if __name__ == "__main__":
    sys.exit(main())
