"""The inside of a rank that precgui started: trains, sends the events of the first rank, and ends with its launcher."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from precgui.config import build
from precgui.engine.errors import EngineError
from precgui.engine.parallel.rank_run import LostRank, train_rank
from precgui.events import Event
from precgui.spawn import forget_safe_path

ALIVE_EVERY_S = 0.25


@dataclass(frozen=True)
class Alive:
    """Sent again and again by a thread, so that a process that was stopped is noticed."""

    pid: int


@dataclass(frozen=True)
class Failed:
    """The last message of a rank that raised. `kind`: "lost" where another rank is the cause, "memory" or "error"."""

    kind: str
    message: str
    details: str = ""


@dataclass(frozen=True)
class Done:
    """The last message of a rank that ended well."""


class StopRequest:
    """From the launcher: end after the present step."""


class RankPipe:
    """The pipe to the launcher: events, signs of life, the request to stop; its end ends this process."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._waiting: list[Event] = []
        self._stop = threading.Event()
        self._closing = threading.Event()
        threading.Thread(target=self._listen, name="launcher", daemon=True).start()
        self._sender = threading.Thread(target=self._send_regularly, name="events", daemon=True)
        self._sender.start()

    def emit(self, event: Event) -> None:
        self._waiting.append(event)

    def stopped(self) -> bool:
        return self._stop.is_set()

    def close(self, last: Done | Failed) -> None:
        self._closing.set()
        self._sender.join()
        self._send(last)

    def _send_regularly(self) -> None:
        while True:
            closing = self._closing.wait(ALIVE_EVERY_S / 8 if self._waiting else ALIVE_EVERY_S)
            events, self._waiting = self._waiting, []
            self._send(events or Alive(os.getpid()))
            if closing:
                return

    def _send(self, message: Any) -> None:
        with self._lock, contextlib.suppress(OSError):
            self._connection.send(message)

    def _listen(self) -> None:
        try:
            while isinstance(self._connection.recv(), StopRequest):
                self._stop.set()
        except (EOFError, OSError):
            os._exit(1)  # the launcher is gone, whatever this process is waiting for


def main(ends: Sequence[Connection], config: Mapping[str, Any], start_s: float) -> None:
    """Entry point that torchrun's agent calls in each rank. `start_s` is the zero of event times."""
    forget_safe_path()
    _die_with_launcher()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the launcher, which then asks to stop
    faulthandler.enable()
    rank = int(os.environ["RANK"])
    for other, end in enumerate(ends):
        if other != rank:
            end.close()  # so that the end of a process is the end of its pipe
    pipe = RankPipe(ends[rank])
    last: Done | Failed = Done()
    try:
        train_rank(build(config), pipe.emit, pipe.stopped, start_s)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a model raises is told by the launcher
        last = _failure(rank, error)
    pipe.close(last)
    sys.stdout.flush()
    sys.stderr.flush()
    if isinstance(last, Failed):
        os._exit(1)  # the threads of a broken collective do not end


def _failure(rank: int, error: BaseException) -> Failed:
    words = str(error).strip().splitlines() or [type(error).__name__]
    if isinstance(error, LostRank):
        return Failed("lost", str(error))
    if isinstance(error, EngineError):
        return Failed("error", str(error), error.details)
    if isinstance(error, MemoryError):
        return Failed("memory", f"rank {rank}: {words[0]}")
    return Failed("error", f"rank {rank}: {type(error).__name__}: {words[0]}", traceback.format_exc())


def _die_with_launcher() -> None:
    """Let the Linux kernel kill this process when the thread that started it ends, even while it is stopped."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
