"""Starts the ranks of a run through torchrun's Python API, relays the events of the first one, and ends them all."""

from __future__ import annotations

import contextlib
import errno
import logging
import multiprocessing
import os
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path

import psutil
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from precgui.config import RunConfig
from precgui.engine.errors import EngineError
from precgui.engine.parallel import rank as ranks
from precgui.events import Emit, RunEnded
from precgui.spawn import safe_path

STOP_GRACE_S = 1.2  # from Stop until the ranks are killed inside their step
START_LIMIT_S = 120.0  # until a rank has imported torch
BLAME_S = 1.5  # in which others tell who was lost first
_SHARED_MEMORY_CURE = "free some of /dev/shm, or give a container more (docker run --shm-size=1g)"
_POLL_S = 0.05
_LAST_WORDS_BYTES = 4000


class _Rank:
    """Knowledge of the launcher about one rank."""

    def __init__(self, number: int, pipe: Connection) -> None:
        self.number, self.pipe = number, pipe
        self.pid: int | None = None
        self.heard_s = time.monotonic()
        self.last: ranks.Done | ranks.Failed | None = None
        self.is_gone = False  # its pipe has ended

    @property
    def was_killed(self) -> bool:
        """Whether the process has ended without a message."""
        return self.is_gone and self.last is None


def launch(config: RunConfig, emit: Emit, stopped: Callable[[], bool]) -> None:
    """Train in `parallel.ranks` processes. Emits as `train`; raises EngineError, MemoryError. No process is left."""
    _Launch(config, emit, stopped).run()


class _Launch:
    def __init__(self, config: RunConfig, emit: Emit, stopped: Callable[[], bool]) -> None:
        self._config, self._emit, self._stopped = config, emit, stopped
        self._start_s = time.perf_counter()
        pairs = [multiprocessing.Pipe() for _ in range(config.parallel.ranks)]
        self._ranks = [_Rank(number, near) for number, (near, _) in enumerate(pairs)]
        self._far = [far for _, far in pairs]
        self._children_before = {child.pid for child in psutil.Process().children()}
        self._agent_error: BaseException | None = None
        self._first_lost: int | None = None  # the rank that torchrun saw fail; it then ended the others
        self._first_failure: ProcessFailure | None = None
        self._stop_s: float | None = None
        self._failed_s: float | None = None
        self._ended: RunEnded | None = None

    def run(self) -> None:
        with tempfile.TemporaryDirectory(prefix="precgui-ranks-") as folder, _quiet_agent():
            agent = threading.Thread(target=self._agent, args=(folder,), name="torchrun", daemon=True)
            agent.start()
            try:
                self._relay(agent)
            finally:
                while agent.is_alive():
                    self._kill()
                    agent.join(_POLL_S)
                self._close_pipes()
            words = self._last_words(Path(folder))
        self._conclude(words)

    def _agent(self, folder: str) -> None:
        """torchrun: rendezvous on the loopback interface, no restarts."""
        on_loopback = "lo" if sys.platform == "linux" else "lo0"
        with safe_path(), _variable("GLOO_SOCKET_IFNAME", on_loopback):
            parallel = LaunchConfig(
                min_nodes=1, max_nodes=1, nproc_per_node=len(self._ranks), run_id=uuid.uuid4().hex,
                rdzv_backend="c10d", rdzv_endpoint="127.0.0.1:0", local_addr="127.0.0.1", max_restarts=0,
                monitor_interval=0.1, start_method="spawn", shutdown_timeout=2,
                logs_specs=DefaultLogsSpecs(log_dir=folder, redirects=Std.ALL),
            )  # fmt: skip
            try:
                elastic_launch(parallel, ranks.main)(self._far, self._config.model_dump(), self._start_s)
            except ChildFailedError as error:  # the pipes have told of it, except of ranks that had not begun
                self._first_lost, self._first_failure = error.get_first_failure()
            except Exception as error:  # noqa: BLE001 - of a library, in a thread: raised by `_conclude`
                self._agent_error = error

    def _relay(self, agent: threading.Thread) -> None:
        """Relay messages until all ranks have ended, or one has failed and the others had time to report."""
        while True:
            open_pipes = {rank.pipe: rank for rank in self._ranks if not rank.is_gone}
            for pipe in wait(list(open_pipes), _POLL_S) if open_pipes else ():
                self._read(open_pipes[pipe])  # type: ignore[index]
            now = time.monotonic()
            self._pass_on_stop(now)
            if not agent.is_alive():
                self._drain()
                return
            if self._stop_s is not None and now > self._stop_s + STOP_GRACE_S:
                return
            if self._failed_s is None and (self._failures() or self._silent(now)):
                self._failed_s = now
            if self._failed_s is not None and (self._is_explained(now) or now > self._failed_s + BLAME_S):
                return

    def _drain(self) -> None:
        """Read what the ranks, which are gone, have left in their pipes."""
        self._close_far()
        for rank in self._ranks:
            while not rank.is_gone:
                self._read(rank)

    def _close_far(self) -> None:
        for end in self._far:
            end.close()
        self._far.clear()

    def _read(self, rank: _Rank) -> None:
        try:
            message = rank.pipe.recv()
        except (EOFError, OSError):
            rank.is_gone = True
            return
        rank.heard_s = time.monotonic()
        if isinstance(message, list):
            for event in message:
                if isinstance(event, RunEnded):
                    self._ended = event
                else:
                    self._emit(event)
        elif isinstance(message, ranks.Alive):
            rank.pid = message.pid
            if self._far and all(other.pid for other in self._ranks):
                self._close_far()  # all have theirs
        else:
            rank.last = message

    def _pass_on_stop(self, now: float) -> None:
        if self._stop_s is None and self._stopped():
            self._stop_s = now
            for rank in self._ranks:
                with contextlib.suppress(OSError):
                    rank.pipe.send(ranks.StopRequest())

    def _failures(self) -> list[_Rank]:
        return [rank for rank in self._ranks if rank.was_killed or isinstance(rank.last, ranks.Failed)]

    def _silent(self, now: float) -> list[_Rank]:
        waiting = (rank for rank in self._ranks if not rank.is_gone and rank.last is None)
        return [rank for rank in waiting if now > rank.heard_s + self._limit_s(rank)]

    def _limit_s(self, rank: _Rank) -> float:
        """Seconds without a word after which a rank counts as silent."""
        limit_s = self._config.parallel.time_limit_s
        return limit_s if rank.pid is not None else max(limit_s, START_LIMIT_S)

    def _is_explained(self, now: float) -> bool:
        """Whether the first cause is known: somebody was killed, is silent, or raised an error of its own."""
        own = [r for r in self._failures() if not isinstance(r.last, ranks.Failed) or r.last.kind != "lost"]
        return bool(own or self._silent(now))

    def _kill(self) -> None:
        """End every process of this launch that is there, also stopped ones and those that have said nothing yet."""
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.Error):
                if child.pid not in self._children_before and any("spawn_main" in word for word in child.cmdline()):
                    child.kill()

    def _close_pipes(self) -> None:
        self._close_far()
        for rank in self._ranks:
            rank.pipe.close()

    def _conclude(self, words: dict[int, str]) -> None:
        """RunEnded, or the error of the rank that failed first. Raises EngineError, MemoryError."""
        if self._ended is not None and not self._failures():
            self._emit(self._ended)
        elif self._stop_s is not None:
            ended_s = time.perf_counter() - self._start_s
            self._emit(RunEnded(ended_s, "stopped", "stopped inside a step, which did not end in time on all ranks"))
        else:
            self._raise(words)

    def _raise(self, words: dict[int, str]) -> None:
        failures = self._failures()
        if self._agent_error is not None and not any(rank.pid for rank in self._ranks):
            raise EngineError(f"the ranks could not be started: {_cause(self._agent_error)}")
        for rank in sorted((r for r in failures if r.was_killed), key=lambda r: r.number != self._first_lost):
            if rank.pid is None:
                raise EngineError(f"rank {rank.number} ended before it had begun{self._end(rank)}", words[rank.number])
            end = f"rank {rank.number} (process {rank.pid}) was killed or crashed{self._end(rank)}"
            raise EngineError(end, words[rank.number])
        for kind in ("memory", "error"):
            for last in (r.last for r in failures if isinstance(r.last, ranks.Failed)):
                if last.kind == kind == "memory":
                    raise MemoryError(last.message)
                if last.kind == kind:
                    raise EngineError(last.message, last.details)
        for rank in self._silent(time.monotonic()):
            if rank.pid is None:
                raise EngineError(
                    f"rank {rank.number} has not begun within {self._limit_s(rank):g} s; its process was stopped, or "
                    "the machine is overloaded"
                )
            raise EngineError(
                f"rank {rank.number} (process {rank.pid}) has not answered for "
                f"{self._config.parallel.time_limit_s:g} s (parallel.time_limit_s); it was stopped or hangs"
            )
        for last in (r.last for r in failures if isinstance(r.last, ranks.Failed)):
            raise EngineError(last.message, last.details)
        said = "torchrun ended without a word" if self._agent_error is None else _cause(self._agent_error)
        raise EngineError(f"the ranks could not be started: {said}")

    def _end(self, rank: _Rank) -> str:
        """How the process of the rank ended, as torchrun saw it: ': SIGBUS, ...'; '' where it saw another one first."""
        failure = self._first_failure
        if failure is None or rank.number != self._first_lost:
            return ""
        signal_name = failure.signal_name()
        if signal_name == "SIGBUS":
            return f": SIGBUS, as when shared memory is full; {_SHARED_MEMORY_CURE}"
        return f": {signal_name}" if failure.exitcode < 0 else f": exit code {failure.exitcode}"

    def _last_words(self, folder: Path) -> dict[int, str]:
        """The end of what each rank printed on standard error."""
        words = dict.fromkeys(range(len(self._ranks)), "")
        for file in folder.rglob("stderr.log"):
            if file.parent.name.isdecimal():
                with contextlib.suppress(OSError):
                    words[int(file.parent.name)] = file.read_bytes()[-_LAST_WORDS_BYTES:].decode(errors="replace")
        return words


def _cause(error: BaseException) -> str:
    """The error of torchrun as a sentence, with a cure for a full shared memory, of which containers have 64 MB."""
    if not isinstance(error, OSError) or error.errno != errno.ENOSPC:
        return str(error) or type(error).__name__
    if error.filename is not None:
        return f"no space is left for {error.filename}; free some"
    return f"no space is left in the shared memory; {_SHARED_MEMORY_CURE}"


@contextlib.contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """The environment variable for processes that are started meanwhile, unless the user has set it."""
    if name in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


@contextlib.contextmanager
def _quiet_agent() -> Iterator[None]:
    """Context without the warnings of torchrun's agent: precgui reports the same facts in the run."""
    loggers = [logging.getLogger(name) for name in ("torch.distributed.elastic", "torch.multiprocessing.spawn")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
