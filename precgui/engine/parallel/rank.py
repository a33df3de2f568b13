"""The inside of a rank that precgui started: trains, sends the events of the first rank, and ends with its launcher."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from precgui.config import build
from precgui.engine.checkpoint.resume import Resumption
from precgui.engine.parallel.error_files import RankFailure, failure_of, write_failure
from precgui.engine.parallel.rank_run import train_rank
from precgui.process.child import EventPipe, Stop, StopToken
from precgui.process.spawn import forget_safe_path


@dataclass(frozen=True)
class Alive:
    """Sent again and again by a thread, so that a process that was stopped is noticed."""

    pid: int


@dataclass(frozen=True)
class Done:
    """The last message of a rank that ended well; one that raised leaves its cause in its error file."""


def main(
    ends: Sequence[Connection], config: Mapping[str, Any], start_s: float, run_id: str, run_file: Path | None = None,
    checkpoint: Path | None = None, sentence: str = "",
) -> None:  # fmt: skip
    """Entry point that torchrun's agent calls in each rank. `start_s` is the zero of event times.

    `checkpoint` is the first rank's file to go on from, `sentence` that about the break.
    """
    forget_safe_path()
    _die_with_launcher()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the launcher, which then asks to stop
    faulthandler.enable()
    rank = int(os.environ["RANK"])
    for other, end in enumerate(ends):
        if other != rank:
            end.close()  # so that the end of a process is the end of its pipe
    control, pipe = StopToken(), EventPipe(ends[rank], sign_of_life=Alive(os.getpid()))
    threading.Thread(target=_obey, args=(ends[rank], control), name="launcher", daemon=True).start()
    failure: RankFailure | None = None
    try:
        resumed = Resumption.read(checkpoint, sentence) if checkpoint is not None else None
        train_rank(build(config), pipe.emit, control.stopped, start_s, run_id, run_file, resumed)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a model raises is told by the launcher
        failure = failure_of(rank, error)
        write_failure(failure)
    pipe.close()
    if failure is None:
        pipe.send(Done())
    sys.stdout.flush()
    sys.stderr.flush()
    if failure is not None:
        os._exit(1)  # the threads of a broken collective do not end


def _obey(connection: Connection, control: StopToken) -> None:
    """Wait for Stop; the end of the pipe ends this process."""
    try:
        while isinstance(connection.recv(), Stop):
            control.stop()
    except (EOFError, OSError):
        os._exit(1)  # the launcher is gone, whatever this process is waiting for


def _die_with_launcher() -> None:
    """Let the Linux kernel kill this process when the thread that started it ends, even while it is stopped."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
