"""The largest batch that fits, found by steps that are really made, each in a child process that may die.

The size is doubled until a step does not fit, then bisected. The process that asks never takes the memory itself. On a
CPU under Linux an allocation of the child fails above the limit, before the system has to kill a process.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

import psutil
import torch

from precgui.config import RunConfig
from precgui.engine import device as devices
from precgui.engine.backend_flags import restored
from precgui.engine.errors import EngineError
from precgui.engine.profile.measure import peak_bytes
from precgui.engine.profile.one_step import StepParts, build_step, step
from precgui.engine.profile.paired import clock_name, one_thread
from precgui.process.channel import SpawnedChannel
from precgui.process.supervised import Supervised
from precgui.sentences import L_, Sentence, message_of

_TIMED_S, _MOST_STEPS = 0.5, 20
_LONGEST_S, _POLL_S = 120.0, 0.1  # one attempt
_TOO_LONG = Sentence("a step took longer than {seconds:.0f} s", seconds=_LONGEST_S)
_KILLED = L_("the process was killed: the system was probably out of memory")
_SPARE_BYTES = 1 << 29  # of the process beside the tensors of a step
_DONE_WITHIN = 1 / 16  # the bisection ends when the next size is that close


@dataclass(frozen=True, slots=True)
class Attempt:
    """One batch size: whether its step fits, its peak and its rate (None where it failed), and why it failed."""

    batch: int
    fits: bool
    peak_bytes: int | None = None
    samples_per_s: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LargestBatch:
    """`batch` is the largest size that was tried and fits, 0 when none does; attempts are in the order of trial.

    `clock` says in words which time the rates are of: CPU time where one thread does all the work.
    """

    batch: int
    limit_bytes: int
    attempts: tuple[Attempt, ...]
    clock: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def largest_batch(
    config: RunConfig,
    limit_bytes: int,
    emit: Callable[[Attempt], None] = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
    most: int = 1 << 16,
) -> LargestBatch:
    """Search from the batch of `config` on. `limit_bytes` is what the step may take; a GPU out of memory ends an
    attempt before that. A size that the data set does not fill is not tried (`most` at most)."""
    attempts: list[Attempt] = []
    with Child(config, limit_bytes) as child:
        for batch in _sizes(config.data.batch_size, most, lambda: attempts[-1].fits):
            tried = None if stopped() else child.attempt(batch, stopped)
            if tried is None:
                break
            attempts.append(_judged(tried, limit_bytes))
            emit(attempts[-1])
    largest = max((attempt.batch for attempt in attempts if attempt.fits), default=0)
    return LargestBatch(largest, limit_bytes, tuple(attempts), _clock(config))


def _clock(config: RunConfig) -> str:
    with restored():
        devices.pin_threads(config.threads)
        return clock_name(devices.choose(config.device))


def _judged(attempt: Attempt, limit_bytes: int) -> Attempt:
    if attempt.fits and attempt.peak_bytes is not None and attempt.peak_bytes > limit_bytes:
        reason = L_("its peak is above the limit")
        return Attempt(attempt.batch, False, attempt.peak_bytes, attempt.samples_per_s, reason)
    return attempt


def _sizes(start: int, most: int, fitted: Callable[[], bool]) -> Iterator[int]:
    """Sizes to try: halved until one fits, doubled until one does not, then bisected. `fitted()`: the last fits."""
    low, high, size = 0, most + 1, start
    while low == 0 or (high > most and low < most):
        yield size
        if fitted():
            low = size
        else:
            high = size
        if (low == 0 and size == 1) or (high <= most and low):
            break
        size = min(2 * low, most) if low else size // 2
    while low and high - low > max(1, low * _DONE_WITHIN):
        middle = (low + high) // 2
        middle = middle // 8 * 8 if middle // 8 * 8 > low else middle
        yield middle
        low, high = (middle, high) if fitted() else (low, middle)


class Child:
    """A process that tries one size after the other; one that crashes is replaced, and its size does not fit."""

    def __init__(self, config: RunConfig, limit_bytes: int) -> None:
        self._arguments = (config.model_dump(), limit_bytes)
        self._process: Supervised | None = None

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.discard()

    def attempt(self, batch: int, stopped: Callable[[], bool]) -> Attempt | None:
        """The result of one step of that size; None when stopped. Raises EngineError for faults of the user."""
        if stopped():
            return None
        process, end = self._process or self._begin(), time.monotonic() + _LONGEST_S
        process.send(batch)
        result = process.receive(lambda: stopped() or time.monotonic() > end)
        if result is None:
            reason = _TOO_LONG if process.stopping else _KILLED
            process.discard()
            self._process = None
            return None if stopped() else Attempt(batch, False, reason=reason)
        if isinstance(result, str):
            raise EngineError(result)
        return Attempt(**result)

    def _begin(self) -> Supervised:
        self._process = Supervised(SpawnedChannel(serve_attempts, self._arguments, daemon=True), grace_s=0)
        self._process.start()
        return self._process


def serve_attempts(pipe: Connection, config: dict[str, Any], limit_bytes: int) -> None:
    """The inside of the child: a batch size in, an attempt out, until the pipe closes."""
    with restored():
        if devices.choose(config["device"]).type == "cpu":
            _limit_memory(limit_bytes)
    while True:
        try:
            batch = int(pipe.recv())
        except (EOFError, OSError):
            return
        tree = config | {"data": config["data"] | {"batch_size": batch}}
        try:
            pipe.send(asdict(try_batch(RunConfig.model_validate(tree))))
        except EngineError as error:
            pipe.send(str(error))
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _limit_memory(limit_bytes: int) -> None:
    """Let allocations of this process fail above the limit, where the system can do that (Linux)."""
    if sys.platform != "linux":
        return
    import resource

    allowed = psutil.Process().memory_info().data + limit_bytes + _SPARE_BYTES
    with contextlib.suppress(ValueError, OSError):  # a lower limit stands already
        resource.setrlimit(resource.RLIMIT_DATA, (allowed, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def try_batch(config: RunConfig) -> Attempt:
    """One size in this process: the peak of a step and the median rate of some more."""
    batch = config.data.batch_size
    with restored():
        devices.pin_threads(config.threads)
        try:
            parts = build_step(config)
            filled = len(parts.batches[0][1])
            if filled < batch:
                return Attempt(batch, False, reason=Sentence("the data set fills {count} samples only", count=filled))
            step(parts)
            total = peak_bytes(parts)[0]
            seconds = _step_s(parts)
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not devices.is_out_of_memory(error):
                raise
            return Attempt(batch, False, reason=devices.out_of_memory_text(RuntimeError(str(error))))
    return Attempt(batch, True, total, batch * config.train.accumulation / seconds)


def _step_s(parts: StepParts) -> float:
    """The median of some steps; in CPU time where one thread does all the work."""
    clock = time.thread_time if one_thread(parts.device) else time.perf_counter
    times: list[float] = []
    end = time.perf_counter() + _TIMED_S
    while len(times) < 2 or (time.perf_counter() < end and len(times) < _MOST_STEPS):
        begin = clock()
        step(parts)
        devices.synchronize(parts.device)
        times.append(clock() - begin)
    return sorted(times)[len(times) // 2]


def serve(emit: Callable[[Any], None], control: Any, config: dict[str, Any], limit_bytes: int) -> None:
    """Task of a child process: emits `{"kind": "attempt", ...}` for each size and `{"kind": "found", ...}`, or
    `{"kind": "fault", "message"}`. A stop ends the size that is being tried, too."""
    try:
        result = largest_batch(
            RunConfig.model_validate(config),
            limit_bytes,
            lambda attempt: emit({"kind": "attempt", **asdict(attempt)}),
            control.stopped,
        )
    except (EngineError, MemoryError) as error:
        emit({"kind": "fault", "message": message_of(error)})
    else:
        emit({"kind": "found", "stopped": control.stopped(), **result.to_json()})
