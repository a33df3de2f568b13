"""Starts the ranks of a run through torchrun's Python API, supervises them as one process, and names the failed one."""

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
from precgui.engine.checkpoint.resume import Resumption
from precgui.engine.errors import EngineError
from precgui.engine.parallel import rank_run
from precgui.engine.parallel.error_files import COLLECTIVE, RankFailure, read_failures
from precgui.events import Emit, Event, RunEnded
from precgui.process.spawn import safe_path
from precgui.process.supervised import Supervised
from precgui.sentences import L_, Sentence, message_of

STOP_GRACE_S = 1.2  # from Stop until the ranks are killed inside their step
START_LIMIT_S = 120.0  # until a rank has imported torch
BLAME_S = 1.5  # in which others tell who was lost first
_SHARED_MEMORY_CURE = L_("free some of /dev/shm, or give a container more (docker run --shm-size=1g)")
_POLL_S = 0.05
_LAST_WORDS_BYTES = 4000


class _Rank:
    """Knowledge of the launcher about one rank."""

    def __init__(self, number: int, pipe: Connection) -> None:
        self.number, self.pipe = number, pipe
        self.pid: int | None = None
        self.heard_s = time.monotonic()
        self.is_done = False
        self.failure: RankFailure | None = None  # as it left it in its error file
        self.is_gone = False  # its pipe has ended

    @property
    def was_killed(self) -> bool:
        """Whether the process has ended without a word."""
        return self.is_gone and not self.is_done and self.failure is None


def launch(
    config: RunConfig, emit: Emit, stopped: Callable[[], bool], run_id: str = "", run_file: Path | None = None,
    resumed: Resumption | None = None,
) -> None:  # fmt: skip
    """Train in `parallel.ranks` processes. Emits as `train`; raises EngineError, MemoryError. No process is left."""
    start_s = time.perf_counter() - (resumed.checkpoint.time_s if resumed is not None else 0.0)
    ranks = RanksChannel(config, start_s, run_id, run_file, resumed)
    run_ends: list[RunEnded] = []

    def take(events: list[Event]) -> None:
        for event in events:
            if isinstance(event, RunEnded):
                run_ends.append(event)
            else:
                emit(event)

    end = Supervised(ranks, STOP_GRACE_S).run(take, stopped)
    if run_ends and not ranks.failures():
        emit(run_ends[-1])
    elif end.not_started:
        raise EngineError(Sentence("the ranks could not be started: {why}", why=end.not_started))
    elif end.was_stopped:
        message = L_("stopped inside a step, which did not end in time on all ranks")
        emit(RunEnded(time.perf_counter() - start_s, "stopped", message))
    else:
        ranks.raise_failure()


class RanksChannel:
    """The ranks of a run, which torchrun starts, as one process: a message goes to each, events come from the first."""

    pid = None

    def __init__(
        self, config: RunConfig, start_s: float, run_id: str = "", run_file: Path | None = None,
        resumed: Resumption | None = None,
    ) -> None:  # fmt: skip
        self._config, self._start_s = config, start_s
        from_checkpoint = (resumed.path, resumed.sentence) if resumed is not None else (None, "")
        self._of_run = run_id, run_file, *from_checkpoint
        pairs = [multiprocessing.Pipe() for _ in range(config.parallel.ranks)]
        self._ranks = [_Rank(number, near) for number, (near, _) in enumerate(pairs)]
        self._far = [far for _, far in pairs]
        self._children_before = {child.pid for child in psutil.Process().children()}
        self._context = contextlib.ExitStack()
        self._folder = ""
        self._agent = threading.Thread(target=self._run_agent, name="torchrun", daemon=True)
        self._agent_error: BaseException | None = None
        self._first_lost: int | None = None  # the rank that torchrun saw fail; it then ended the others
        self._first_failure: ProcessFailure | None = None
        self._report = ""  # of torchrun
        self._failed_s: float | None = None
        self._is_killed = False
        self._last_words = dict.fromkeys(range(len(pairs)), "")

    def start(self) -> None:
        self._folder = self._context.enter_context(tempfile.TemporaryDirectory(prefix="precgui-ranks-"))
        self._context.enter_context(_quiet_agent())
        self._agent.start()

    def send(self, message: object) -> None:
        for rank in self._ranks:
            with contextlib.suppress(OSError):
                rank.pipe.send(message)

    def receive(self, timeout_s: float) -> list[Event] | None:
        """Events; EOFError once the ranks were killed, or one has failed and the others had time to report."""
        if self._is_over(time.monotonic()):
            raise EOFError
        open_pipes = {rank.pipe: rank for rank in self._ranks if not rank.is_gone}
        if not open_pipes:
            time.sleep(_POLL_S)
            return None
        events: list[Event] = []
        ready = wait(list(open_pipes), min(timeout_s, _POLL_S))
        for pipe in ready:
            events += self._read(open_pipes[pipe])  # type: ignore[index]
        return events if ready else None

    def is_alive(self) -> bool:
        """Whether torchrun's agent runs; of ranks that are gone, all that they have left in their pipes can be read."""
        if self._agent.is_alive():
            return True
        self._close_far()
        return False

    def kill(self) -> None:
        """End every process of this launch that is there, also stopped ones and those that have said nothing yet."""
        self._is_killed = True
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.Error):
                if child.pid not in self._children_before and any("spawn_main" in word for word in child.cmdline()):
                    child.kill()

    def wait(self) -> int:
        """End what is left. Returns 1 where a rank has failed."""
        self._end_agent()
        self._last_words = _last_words(Path(self._folder), len(self._ranks))
        return int(bool(self.failures()))

    def last_words(self) -> str:
        return "\n".join(filter(None, self._last_words.values()))

    def close(self) -> None:
        self._end_agent()
        self._close_far()
        for rank in self._ranks:
            rank.pipe.close()
        self._context.close()

    def failures(self) -> list[_Rank]:
        """The ranks that were killed or have raised."""
        return [rank for rank in self._ranks if rank.was_killed or rank.failure is not None]

    def _run_agent(self) -> None:
        """torchrun: rendezvous on the loopback interface, no restarts."""
        on_loopback = "lo" if sys.platform == "linux" else "lo0"
        with safe_path(), _variable("GLOO_SOCKET_IFNAME", on_loopback):
            parallel = LaunchConfig(
                min_nodes=1, max_nodes=1, nproc_per_node=len(self._ranks), run_id=uuid.uuid4().hex,
                rdzv_backend="c10d", rdzv_endpoint="127.0.0.1:0", local_addr="127.0.0.1", max_restarts=0,
                monitor_interval=0.1, start_method="spawn", shutdown_timeout=2,
                logs_specs=DefaultLogsSpecs(log_dir=self._folder, redirects=Std.ALL),
            )  # fmt: skip
            try:
                start = elastic_launch(parallel, rank_run.main)
                start(self._far, self._config.model_dump(), self._start_s, *self._of_run)
            except ChildFailedError as error:  # the pipes have told of it, except of ranks that had not begun
                self._first_lost, self._first_failure = error.get_first_failure()
                self._report = str(error)
            except Exception as error:  # noqa: BLE001 - of a library, in a thread: raised by `raise_failure`
                self._agent_error = error

    def _end_agent(self) -> None:
        while self._agent.is_alive():
            self.kill()
            self._agent.join(_POLL_S)

    def _close_far(self) -> None:
        for end in self._far:
            end.close()
        self._far.clear()

    def _read(self, rank: _Rank) -> list[Event]:
        """The events of its next message."""
        try:
            message = rank.pipe.recv()
        except (EOFError, OSError):
            rank.is_gone, rank.failure = True, read_failures(Path(self._folder)).get(rank.number)
            return []
        rank.heard_s = time.monotonic()
        if isinstance(message, list):
            return message
        if isinstance(message, rank_run.Alive):
            rank.pid = message.pid
            if self._far and all(other.pid for other in self._ranks):
                self._close_far()  # all have theirs
        else:
            rank.is_done = True
        return []

    def _is_over(self, now: float) -> bool:
        """Whether no more is waited for. What ranks that have ended left in their pipes is read in any case."""
        if self._is_killed or not self._agent.is_alive():
            return self._is_killed
        if self._failed_s is None and (self.failures() or self._silent(now)):
            self._failed_s = now
        return self._failed_s is not None and (self._is_explained(now) or now > self._failed_s + BLAME_S)

    def _silent(self, now: float) -> list[_Rank]:
        waiting = (rank for rank in self._ranks if not rank.is_gone and not rank.is_done)
        return [rank for rank in waiting if now > rank.heard_s + self._limit_s(rank)]

    def _limit_s(self, rank: _Rank) -> float:
        """Seconds without a word after which a rank counts as silent."""
        limit_s = self._config.parallel.time_limit_s
        return limit_s if rank.pid is not None else max(limit_s, START_LIMIT_S)

    def _is_explained(self, now: float) -> bool:
        """Whether the first cause is known: somebody was killed, is silent, or raised an error of its own."""
        own = [rank for rank in self.failures() if rank.failure is None or rank.failure.kind != COLLECTIVE]
        return bool(own or self._silent(now))

    def raise_failure(self) -> None:
        """Raise the error of the rank that failed first, torchrun's report as details: EngineError, MemoryError."""
        failures, words = self.failures(), self._last_words
        if self._agent_error is not None and not any(rank.pid for rank in self._ranks):
            raise EngineError(Sentence("the ranks could not be started: {why}", why=_cause(self._agent_error)))
        for rank in sorted((r for r in failures if r.was_killed), key=lambda r: r.number != self._first_lost):
            raise EngineError(self._ended(rank), "\n".join(filter(None, (words[rank.number], self._report))))
        raised = sorted((r.failure for r in failures if r.failure is not None), key=lambda failure: failure.time_ns)
        for failure in (failure for failure in raised if failure.kind != COLLECTIVE):
            if failure.kind == "memory":
                raise MemoryError(failure.message)
            raise EngineError(failure.message, failure.details)
        for rank in self._silent(time.monotonic()):
            if rank.pid is None:
                raise EngineError(
                    Sentence(
                        "rank {rank} has not begun within {limit_s:g} s; its process was stopped, or the machine is "
                        "overloaded",
                        rank=rank.number,
                        limit_s=self._limit_s(rank),
                    )
                )
            raise EngineError(
                Sentence(
                    "rank {rank} (process {process}) has not answered for {limit_s:g} s (parallel.time_limit_s); "
                    "it was stopped or hangs",
                    rank=rank.number,
                    process=rank.pid,
                    limit_s=self._config.parallel.time_limit_s,
                )
            )
        for failure in raised:
            raise EngineError(failure.message, failure.details)
        said = L_("torchrun ended without a word") if self._agent_error is None else _cause(self._agent_error)
        raise EngineError(Sentence("the ranks could not be started: {why}", why=said))

    def _ended(self, rank: _Rank) -> Sentence:
        """That the process of a rank was lost, and how it ended, where torchrun saw it before that of another."""
        if rank.pid is None:
            ended = Sentence("rank {rank} ended before it had begun", rank=rank.number)
        else:
            ended = Sentence(
                "rank {rank} (process {process}) was killed or crashed", rank=rank.number, process=rank.pid
            )
        why = self._end() if rank.number == self._first_lost else ""
        return Sentence("{ended}: {why}", ended=ended, why=why) if why else ended

    def _end(self) -> str:
        """How the first process ended, as torchrun saw it: `SIGBUS, ...`; '' where it saw none."""
        failure = self._first_failure
        if failure is None:
            return ""
        signal_name = failure.signal_name()
        if signal_name == "SIGBUS":
            return Sentence("SIGBUS, as when shared memory is full; {cure}", cure=_SHARED_MEMORY_CURE)
        return signal_name if failure.exitcode < 0 else Sentence("exit code {code}", code=failure.exitcode)


def _last_words(folder: Path, ranks: int) -> dict[int, str]:
    """The end of what each rank printed on standard error."""
    words = dict.fromkeys(range(ranks), "")
    for file in folder.rglob("stderr.log"):
        if file.parent.name.isdecimal():
            with contextlib.suppress(OSError):
                words[int(file.parent.name)] = file.read_bytes()[-_LAST_WORDS_BYTES:].decode(errors="replace")
    return words


def _cause(error: BaseException) -> str:
    """The error of torchrun as a sentence, with a cure for a full shared memory, of which containers have 64 MB."""
    if not isinstance(error, OSError) or error.errno != errno.ENOSPC:
        return message_of(error) or type(error).__name__
    if error.filename is not None:
        return Sentence("no space is left for {file}; free some", file=error.filename)
    return Sentence("no space is left in the shared memory; {cure}", cure=_SHARED_MEMORY_CURE)


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
