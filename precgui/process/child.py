"""The code inside a child process: takes one task over a pipe, works on it, sends its events back.

Each run has a process of its own, because torch's precision switches are global to the process, and so that a
crash or an out-of-memory kill cannot take the window along. When the window crashes, a run goes on and ends its
file by itself; a child that waits for work exits.
"""

from __future__ import annotations

import collections
import contextlib
import faulthandler
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import psutil

RUN_TASK = "precgui.job:serve"  # trains one run
BATCH_S = 0.03  # the window draws 30 times a second: more messages would only cost
GRACE_S = 0.6  # a step may take this long after Stop before the process ends without it
NICE = 5
SIGN_S = 0.25  # between signs of life
MAX_WAITING = 500_000  # events, when the window does not read


@dataclass(frozen=True, slots=True)
class ChildTask:
    """The task of a child process: `task` names a function "module:name" of precgui, called with `arguments`."""

    task: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ready:
    """The child has imported torch and waits for its order."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The window asks the task to end."""


class TaskConnection(Protocol):
    """The way from a task to its window: a `Connection`, or a file that is followed."""

    def send(self, message: Any, /) -> None:
        """Raises OSError where nobody takes it."""

    def recv(self) -> Any:
        """The next message of the window. Raises EOFError, OSError when no more can come."""


class StopToken:
    """How a task learns that it should stop."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._stop_calls: list[Callable[[], None]] = []
        self._stuck_call: Callable[[], None] | None = None

    def stopped(self) -> bool:
        return self._stop.is_set()

    def on_stop(self, call: Callable[[], None]) -> None:
        """`call` runs, in another thread, when the window asks to stop (at once when it already has)."""
        self._stop_calls.append(call)
        if self.stopped():
            call()

    def on_stuck(self, call: Callable[[], None]) -> None:
        """`call` saves what there is when the task has not ended `GRACE_S` after a stop; then the process exits."""
        self._stuck_call = call

    def stop(self) -> None:
        self._stop.set()
        for call in self._stop_calls:
            call()

    def give_up(self) -> None:
        if self._stuck_call is not None:
            self._stuck_call()


class EventPipe:
    """Collects events without ever waiting and sends them in batches from a thread of its own.

    `sign_of_life` is sent at once, and again whenever nothing else was for `SIGN_S`: a process that was stopped by
    the system is noticed by its silence.
    """

    def __init__(self, connection: TaskConnection, sign_of_life: object = None) -> None:
        self._connection, self._sign_of_life = connection, sign_of_life
        self._waiting: collections.deque[Any] = collections.deque(maxlen=MAX_WAITING)
        self._closing = threading.Event()
        self._send_lock = threading.Lock()
        self._sent_s = -SIGN_S
        self._thread = threading.Thread(target=self._loop, name="outbox", daemon=True)
        self._thread.start()

    def emit(self, event: Any) -> None:
        self._waiting.append(event)

    def send(self, message: object) -> None:
        """Send a message. A receiver that is gone is no reason to end the work."""
        with self._send_lock, contextlib.suppress(OSError):
            self._connection.send(message)
        self._sent_s = time.monotonic()

    def flush(self) -> None:
        """Send the events that wait, in their order whoever calls."""
        with self._send_lock, contextlib.suppress(OSError):
            batch = [self._waiting.popleft() for _ in range(len(self._waiting))]
            if batch:
                self._connection.send(batch)
                self._sent_s = time.monotonic()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self.flush()

    def _loop(self) -> None:
        while True:
            self.flush()
            if self._sign_of_life is not None and time.monotonic() >= self._sent_s + SIGN_S:
                self.send(self._sign_of_life)
            if self._closing.wait(BATCH_S):
                return


def main(connection: Connection, last_words: str) -> None:
    """Entry point of the process. `last_words` is the file that takes what the process prints."""
    redirect_output(Path(last_words))
    with contextlib.suppress(OSError):
        Path(last_words).unlink()  # the window has it open; on Windows it keeps the name and takes it away
    give_way()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is for the window, which then asks to stop
    import_torch()
    try:
        connection.send(Ready())
        order: ChildTask = connection.recv()
    except (EOFError, OSError):
        return
    work(connection, order)


def import_torch() -> None:
    """Import torch before there is a task: it takes seconds. Raises ImportError."""
    importlib.import_module("torch")


def work(connection: TaskConnection, order: ChildTask) -> None:
    """Carry out a task; its events and a stop go over `connection`. Raises ValueError where it is none of precgui."""
    control, outbox = StopToken(), EventPipe(connection)
    signal.signal(signal.SIGTERM, lambda *_: control.stop())
    done = threading.Event()
    threading.Thread(target=_obey, args=(connection, control, outbox, done), name="obey", daemon=True).start()
    module, _, function = order.task.partition(":")
    if module.partition(".")[0] != "precgui":
        raise ValueError(f"{order.task} is not a task of precgui")
    getattr(importlib.import_module(module), function)(outbox.emit, control, **order.arguments)
    done.set()
    outbox.close()


def _obey(connection: TaskConnection, control: StopToken, outbox: EventPipe, done: threading.Event) -> None:
    """Wait for Stop; end the process when the task is stuck in one step. Returns when the window is gone."""
    try:
        connection.recv()
    except (EOFError, OSError):
        return
    control.stop()
    if done.wait(GRACE_S):
        return
    control.give_up()
    outbox.flush()
    sys.stderr.flush()
    os._exit(0)


def give_way() -> None:
    """Run at a lower priority than the window, which must answer at once; on an idle machine it changes no speed."""
    with contextlib.suppress(psutil.Error, OSError):
        psutil.Process().nice(psutil.BELOW_NORMAL_PRIORITY_CLASS if sys.platform == "win32" else NICE)


def redirect_output(path: Path) -> None:
    """Redirects standard output and error, of C libraries too, to a file: read when the process crashes."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    faulthandler.enable()
