"""The run of one rank, a sentence where another rank has ended it, and the inside of a process that precgui started.

Such a process trains, sends the events of the first rank, and ends with its launcher.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from precgui.checkpoint_files import part_of_rank
from precgui.config import RunConfig, build
from precgui.engine import backend_flags
from precgui.engine import device as devices
from precgui.engine.checkpoint.resume import Resumption
from precgui.engine.errors import Stopped
from precgui.engine.parallel.agreement import require_same
from precgui.engine.parallel.error_files import LostRank, RankFailure, failure_of, write_failure
from precgui.engine.parallel.group import RankGroup, joined
from precgui.engine.parallel.hooks import GradientTraffic
from precgui.engine.parallel.replicated import Replicated
from precgui.engine.train import make_loop
from precgui.events import Emit
from precgui.process.child import EventPipe, Stop, StopToken
from precgui.process.spawn import forget_safe_path
from precgui.sentences import Sentence, first_line

BLAME_S = 1.5  # in which the rank that failed first says why
_POLL_S = 0.05


def train_rank(
    config: RunConfig, emit: Emit, stopped: Callable[[], bool], start_s: float | None = None, run_id: str = "",
    run_file: Path | None = None, resumed: Resumption | None = None,
) -> None:  # fmt: skip
    """Train as the rank that the environment names; the first one emits the events of the run.

    `start_s` of `time.perf_counter` is the time zero of events, `run_id` that of the run file, whose path the first
    rank knows. `resumed` goes on from a checkpoint, given to each rank as the first one's. Raises LostRank where
    another rank is gone.
    """
    with backend_flags.restored(), joined(config) as group:
        traffic = GradientTraffic()
        try:
            strategy = _strategy(config, group, stopped)
            traffic = strategy.traffic
            run_id, file = group.of_first("run", [run_id, str(run_file or "")])
            journal = strategy.journal(emit, start_s, run_id, Path(file) if file else None)
            require_same(group, "resumed", {"step": str(resumed.checkpoint.step if resumed is not None else 0)})
            if resumed is not None and group.rank and resumed.path is not None:
                resumed = Resumption.read(part_of_rank(resumed.path, group.rank), resumed.sentence)
            make_loop(strategy.config, journal, strategy.stopped, strategy, resumed=resumed).train()
            sys.stdout.flush()
        except Stopped:
            return
        except Exception as error:  # noqa: BLE001 - told to the other ranks, raised again
            cause = _cause(group, error, config.parallel.time_limit_s, in_hook=traffic.has_failed)
            if not isinstance(cause, LostRank):
                group.leave_failure(failure_of(group.rank, cause).message)
            raise cause from (error if cause is not error else None)


def _strategy(config: RunConfig, group: RankGroup, stopped: Callable[[], bool]) -> Replicated:
    if config.parallel.strategy == "ddp":
        return Replicated(config, group, stopped)
    from precgui.engine.parallel.sharded import Sharded

    return Sharded(config, group, stopped)


def _cause(group: RankGroup, error: Exception, limit_s: float, *, in_hook: bool) -> Exception:
    """The exception to raise for one of a run: MemoryError, LostRank, or itself."""
    if not isinstance(error, RuntimeError):
        return error
    if devices.is_out_of_memory(error):
        return MemoryError(devices.out_of_memory_text(error))
    if in_hook or _is_of_exchange(error):
        return LostRank(_lost(group, error, limit_s), traceback.format_exc())
    return error


def _is_of_exchange(error: BaseException) -> bool:
    """Whether torch raised it in a collective: the innermost call is one of `torch.distributed`."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and str(frames[-1].f_globals.get("__name__", "")).startswith("torch.distributed")


def _lost(group: RankGroup, error: BaseException, limit_s: float) -> str:
    """The sentence for an exchange that failed: the failure of another rank where it left one, else torch's words."""
    end_s = time.monotonic() + BLAME_S
    while time.monotonic() < end_s:
        if told := group.failures():
            return told[min(told)]
        time.sleep(_POLL_S)
    return Sentence(
        "rank {rank}: an exchange with the other ranks failed ({why}); one of them was killed or stopped, or "
        "did not answer within {limit_s:g} s (parallel.time_limit_s), and its own output says why",
        rank=group.rank,
        why=first_line(error),
        limit_s=limit_s,
    )


# The process that precgui started for a rank -------------------------------------------------------------------------


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
