"""A step in one precision beside the same step in FP32, in turns in one process: times as they are, and taken apart."""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from precgui.config import RunConfig
from precgui.engine.device import synchronize
from precgui.engine.memory import stderr_closed
from precgui.engine.profile.one_step import StepParts, build_step, step
from precgui.engine.profile.operations import (
    OperationRow,
    Profiled,
    ProfilerPhases,
    module_markers,
    profile_of_steps,
    record_steps,
)
from precgui.engine.tasks import Batch, Task

_WARM_STEPS = 3
_BLOCK_S, _MOST_BLOCK = 0.3, 12  # steps of one side in a row
LEAST_ROUNDS = 5
_CERTAIN = 0.03  # rounds end when the time that the profiler adds is known to so small a share of the step
_PAIRS, _PAIRS_OF_LONG = 4, 2  # of plain and profiled steps in each round
_LONG_S = 0.2
_MOST_READ = 2  # steps of a recording that is read: reading takes ten times as long as recording
_LEAST_FACTOR, _MOST_FACTOR = 0.5, 4.0  # of the cost of an event over that of an operation with nothing to do
_PROFILED_S, _MOST_PROFILED = 0.04, 8  # of steps in each of them


@dataclass(slots=True)
class Side:
    """One of the two: its parts, its batches, and what was measured: plain steps, and by block what they waited for
    their batches on average and took in all. `slow_downs` are times of a profiled step over that of the plain ones
    right before it, in the same clock."""

    parts: StepParts
    feed: Iterator[Batch]
    step_s: list[float] = field(default_factory=list)
    data_s: list[float] = field(default_factory=list)
    block_s: list[float] = field(default_factory=list)
    cpu_shares: list[float] = field(default_factory=list)
    profiles: list[Profiled] = field(default_factory=list)
    slow_downs: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class EventCost:
    """Seconds that the profiler adds to a step for each operation, and for each marker around a module."""

    operation_s: float
    marker_s: float


def paired(
    config: RunConfig,
    say: Callable[[str], None] = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
    rounds: int = LEAST_ROUNDS,
    *,
    seconds: float,
) -> tuple[Side, Side, EventCost]:
    """FP32 and `config`, measured in pairs: each round a block of plain steps of each, then some under the profiler, in
    random order.

    At least so many rounds, and more until the time that the profiler adds is known well or `seconds` have passed.

    A run that is FP32 already is both sides. Raises EngineError for faults that the user can correct.
    """
    say("building the step in FP32 and in the precision of the run")
    fp32 = _side(config.model_copy(update={"precision": "fp32"}))
    other = fp32 if config.precision == "fp32" else _side(config)
    sides = [fp32] if other is fp32 else [fp32, other]
    for side in sides:
        for _ in range(_WARM_STEPS):
            _take_step(side)
    block = max(2, min(_MOST_BLOCK, int(_BLOCK_S / max(_one_s(side) for side in sides))))
    cost, end, draw = event_cost(), time.monotonic() + seconds, random.Random(config.seed)
    for number in itertools.count():
        enough = rounds < LEAST_ROUNDS or time.monotonic() > end or _uncertainty(sides) <= _CERTAIN
        if stopped() or (number >= rounds and enough):
            break
        say(f"round {number + 1}: {block} steps of each")
        for side in draw.sample(sides, len(sides)):
            _plain_block(side, block)
        for side in draw.sample(sides, len(sides)):
            _profiled_block(side)
    return fp32, other, cost


def _uncertainty(sides: list[Side]) -> float:
    """Half the width of the interval of the slow-downs, of all sides together."""
    return math.hypot(*(_half_width(side.slow_downs) for side in sides))


def _half_width(slow_downs: list[float]) -> float:
    low, high = median_interval(slow_downs) if slow_downs else (0.0, math.inf)
    return (high - low) / 2


def _side(config: RunConfig) -> Side:
    parts = build_step(config)
    return Side(parts, _endless(parts.task))


def _endless(task: Task) -> Iterator[Batch]:
    while True:
        yield from task.train_batches()


def _next(side: Side) -> None:
    side.parts.batches = list(itertools.islice(side.feed, side.parts.config.train.accumulation))


def one_thread(device: torch.device) -> bool:
    """Whether one thread does all the work, so that its CPU time is what a step takes on a machine with nothing else
    to do."""
    return device.type == "cpu" and torch.get_num_threads() == 1


def clock_name(device: torch.device) -> str:
    """The kind of time that steps are measured in, as text."""
    return "CPU time of the thread" if one_thread(device) else "wall time"


def _take_step(side: Side) -> tuple[float, float, float]:
    """Seconds of the step, seconds that it waited for its batches before, and the share of the CPU that it had.

    The seconds of the step are CPU time where one thread does all the work.
    """
    side.parts.precision.prepare()  # the switches of the process are those of the side before
    begin = time.perf_counter()
    _next(side)
    fed, cpu = time.perf_counter(), time.thread_time()
    step(side.parts)
    synchronize(side.parts.device)
    wall_s, cpu_s = time.perf_counter() - fed, time.thread_time() - cpu
    return (cpu_s if one_thread(side.parts.device) else wall_s), fed - begin, cpu_s / max(wall_s, 1e-9)


def _one_s(side: Side) -> float:
    return sum(_take_step(side)[:2])


def _plain_block(side: Side, steps: int) -> None:
    """The first step of a block is left out: loader processes had time to prepare its batch, caches hold the other."""
    _take_step(side)
    times = [_take_step(side) for _ in range(steps)]
    side.step_s += [step_s for step_s, _, _ in times]
    side.cpu_shares += [share for _, _, share in times]
    side.data_s.append(statistics.fmean(data_s for _, data_s, _ in times))
    side.block_s.append(statistics.median(step_s for step_s, _, _ in times) + side.data_s[-1])


def _profiled_block(side: Side) -> None:
    """Pairs of plain steps and the same under the profiler, for its cost; and a short recording that is read."""
    device = side.parts.device
    clock = time.thread_time if one_thread(device) else time.perf_counter
    times: list[float] = []

    def work(phases: ProfilerPhases) -> None:
        phases.begin("data")
        _next(side)
        begin = clock()
        step(side.parts, phases)
        synchronize(device)
        times.append(clock() - begin)

    one_s = max(_one_s(side), 1e-6)
    steps = max(1, min(_MOST_PROFILED, int(_PROFILED_S / one_s)))
    for number in range(_PAIRS if one_s < _LONG_S else _PAIRS_OF_LONG):
        plain_s = statistics.median(_take_step(side)[0] for _ in range(max(2, steps)))
        times.clear()
        recorded = record_steps(side.parts.model, device, work, steps)
        side.slow_downs.append(statistics.median(times[1:]) / max(plain_s, 1e-9))
        if number == 0 and steps <= _MOST_READ:
            side.profiles.append(profile_of_steps(recorded, steps, device))
    if steps > _MOST_READ:
        recorded = record_steps(side.parts.model, device, work, _MOST_READ)
        side.profiles.append(profile_of_steps(recorded, _MOST_READ, device))


def median_interval(values: list[float]) -> tuple[float, float]:
    """The ends of a 95 % interval of the median, by order statistics (of fewer than six values all of them)."""
    ordered, n = sorted(values), len(values)
    below = [sum(math.comb(n, k) for k in range(place + 1)) / 2**n for place in range(n // 2)]
    place = max(0, sum(2 * share <= 0.05 for share in below) - 1)
    return ordered[place], ordered[-1 - place]


def event_cost() -> EventCost:
    """Seconds that the profiler adds: operations on one number and modules that do nothing, with it and without.

    In CPU time, of which others on the machine take nothing."""
    one, module = torch.zeros(1), nn.Identity()

    def operations() -> None:
        for _ in range(2000):
            torch.add(one, one, out=one)

    def modules() -> None:
        for _ in range(500):
            module(one)

    return EventCost(_added_s(operations, nn.Identity()) / 2000, _added_s(modules, module) / 500)


def _added_s(work: Callable[[], None], model: nn.Module) -> float:
    def timed() -> float:
        begin = time.thread_time()
        work()
        return time.thread_time() - begin

    timed()
    plain = min(timed() for _ in range(3))
    with stderr_closed(), module_markers(model), profile(activities=[ProfilerActivity.CPU], record_shapes=True):
        timed()
        profiled = min(timed() for _ in range(3))
    return max(0.0, profiled - plain)


def typical(profiles: list[Profiled]) -> Profiled:
    """One step whose rows and gaps are each the median over the profiles, which leaves out the odd ones that another
    program interrupted."""
    keys = dict.fromkeys(_key(row) for profiled in profiles for row in profiled.rows)
    tables = [({_key(row): row for row in profiled.rows}, profiled.steps) for profiled in profiles]
    kept = [_typical_row([table.get(key) for table, _ in tables], [steps for _, steps in tables]) for key in keys]
    kept = [row for row in kept if row.calls or row.cpu_s or row.device_s]

    def median(name: str) -> float:
        return statistics.median(float(getattr(profiled, name)) / profiled.steps for profiled in profiles)

    return Profiled(
        kept, 1, median("wall_s"), median("gap_s"), median("data_s"), round(median("events")),
        round(median("gap_events")), round(median("markers")), profiles[0].on_device,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ProfilerShare:
    """Part of a profiled step that the profiler added, in seconds, and how far that is known.

    `step_s` is the plain step with it. `factor` is its cost of an event over that of operations with nothing to do;
    `uncertainty` half the width of the interval of the slow-down, as a share of the plain step.
    """

    step_s: float
    factor: float
    uncertainty: float


def profiler_share(plain_s: float, expected_s: float, slow_downs: list[float]) -> ProfilerShare:
    """Time that the profiler added to a plain step, from the pairs of plain and profiled ones.

    Where the pairs agree with the cost that was expected of so many events, that is taken; else what the pairs show,
    between half and four times of it (an event costs more between the operations of a step than in a loop of one). A
    cost beyond that is left for the account to call unexplained.
    """
    if not slow_downs or plain_s <= 0:
        return ProfilerShare(plain_s + expected_s, 1.0, 0.0)
    low, high = median_interval(slow_downs)
    expected, uncertainty = 1 + expected_s / plain_s, _half_width(slow_downs)
    if low <= expected <= high:
        return ProfilerShare(plain_s * expected, 1.0, uncertainty)
    slow_down = statistics.median(slow_downs)
    factor = (slow_down - 1) * plain_s / max(expected_s, 1e-12)
    return ProfilerShare(plain_s * slow_down, min(max(factor, _LEAST_FACTOR), _MOST_FACTOR), uncertainty)


def anchored(profiled: Profiled, share: ProfilerShare) -> Profiled:
    """The step with its rows and gaps scaled so that they add up to the plain step and what the profiler added.

    The rows say how a step is divided, the pairs how long it takes: others on the machine disturb the pairs less.
    """
    total_s = sum(row.cpu_s for row in profiled.rows) + profiled.gap_s
    scale = share.step_s / total_s if total_s else 1.0
    rows = [replace(row, cpu_s=row.cpu_s * scale) for row in profiled.rows]
    return replace(profiled, rows=rows, gap_s=profiled.gap_s * scale)


def _key(row: OperationRow) -> tuple[Any, ...]:
    return row.operation, row.kind, row.module, row.phase, row.shapes, row.format


def _typical_row(results: list[OperationRow | None], steps: list[int]) -> OperationRow:
    def median(name: str) -> float:
        each = zip(results, steps, strict=True)
        return statistics.median(float(getattr(row, name)) / count if row else 0.0 for row, count in each)

    first = next(row for row in results if row is not None)
    return replace(
        first, calls=median("calls"), events=median("events"), cpu_s=median("cpu_s"), device_s=median("device_s")
    )
