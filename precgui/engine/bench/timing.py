"""Timing of one piece of work on a device: warm-up, enough repetitions, median and spread."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from precgui.engine.device import synchronize

T = TypeVar("T")
Work = Callable[[], object]
SAMPLE_S = 0.008  # one sample holds as many repetitions as fill this
BUDGET_S = 0.3
LONG_S = 0.4  # a call this long is timed once
BUSY_S = 0.03  # of work queued on a device before its clock is read: an idle device reports another clock
_MOST_QUEUED = 4096
LEAST_SAMPLES, MOST_SAMPLES = 5, 25


@dataclass(frozen=True, slots=True)
class Timing:
    """Median seconds of one call; `spread` is the interquartile range over the median, None when timed once;
    `calls` were timed in all."""

    seconds: float
    spread: float | None
    calls: int


def once(work: Work, device: torch.device) -> float:
    """Seconds of one call after one warm-up call."""
    work()
    return sample_s(work, device, 1)


def measure(work: Work, device: torch.device, stopped: Callable[[], bool]) -> Timing:
    """Time `work` until the budget is spent, with at least LEAST_SAMPLES samples; a long call is timed once only."""
    estimate_s = once(work, device)
    if estimate_s > LONG_S:
        return Timing(estimate_s, None, 1)
    repetitions = repetitions_for(estimate_s)
    sample_s(work, device, repetitions)
    samples: list[float] = []
    end = time.perf_counter() + BUDGET_S
    while len(samples) < MOST_SAMPLES and not (samples and stopped()):
        if len(samples) >= LEAST_SAMPLES and time.perf_counter() > end:
            break
        samples.append(sample_s(work, device, repetitions))
    median = statistics.median(samples)
    quarters = statistics.quantiles(samples, n=4) if len(samples) > 1 else [median] * 3
    return Timing(median, (quarters[2] - quarters[0]) / median, len(samples) * repetitions)


def while_busy(work: Work, device: torch.device, call_s: float, read: Callable[[], T]) -> T:
    """The value of `read` while an accelerator works, with BUSY_S of calls of `call_s` seconds each queued before."""
    if device.type == "cpu":
        return read()
    for _ in range(min(_MOST_QUEUED, math.ceil(BUSY_S / max(call_s, 1e-7)))):
        work()
    result = read()
    synchronize(device)
    return result


def compare(works: Sequence[Work], device: torch.device, stopped: Callable[[], bool], rounds: int = 7) -> list[float]:
    """Seconds of each work relative to the first: the median over rounds in which each takes its turn, so that a
    neighbour's load meets all of them alike."""
    repetitions = [repetitions_for(once(work, device)) for work in works]
    ratios: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        seconds = [sample_s(work, device, times) for work, times in zip(works, repetitions, strict=True)]
        for result, value in zip(ratios, seconds, strict=True):
            result.append(value / seconds[0])
        if stopped():
            break
    return [statistics.median(outcome) for outcome in ratios]


def repetitions_for(estimate_s: float) -> int:
    return max(1, math.ceil(SAMPLE_S / max(estimate_s, 1e-7)))


def sample_s(work: Work, device: torch.device, repetitions: int) -> float:
    """Seconds per call; by the device's own clock on CUDA, so that launches are not counted when they overlap."""
    if device.type == "cuda":
        with torch.cuda.device(device):  # events are recorded on the current device
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(repetitions):
                work()
            end.record()
            end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3 / repetitions
    synchronize(device)
    begin = time.perf_counter()
    for _ in range(repetitions):
        work()
    synchronize(device)
    return (time.perf_counter() - begin) / repetitions
