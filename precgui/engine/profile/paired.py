"""A step in one precision beside the same step in FP32, in turns in one process: times as they are, and taken apart."""

from __future__ import annotations

import itertools
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
from precgui.engine.profile.operations import OperationRow, Profiled, ProfilerPhases, module_markers, profile_steps
from precgui.engine.tasks import Batch, Task

_WARM_STEPS = 3
_BLOCK_S, _MOST_BLOCK = 0.3, 12  # steps of one side in a row
LEAST_ROUNDS, _MOST_ROUNDS = 5, 12
_BUDGET_S = 12.0
_PROFILES = 2  # in each round
_PROFILED_S, _MOST_PROFILED = 0.04, 8  # of steps in each of them


@dataclass(slots=True)
class Side:
    """One of the two: its parts, its batches, and what was measured: plain steps, and by block what they waited for
    their batches on average and took in all."""

    parts: StepParts
    feed: Iterator[Batch]
    step_s: list[float] = field(default_factory=list)
    data_s: list[float] = field(default_factory=list)
    block_s: list[float] = field(default_factory=list)
    cpu_shares: list[float] = field(default_factory=list)
    profiles: list[Profiled] = field(default_factory=list)


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
) -> tuple[Side, Side, EventCost]:
    """FP32 and `config`, measured in turns: each round a block of plain steps of each, then some under the profiler.

    At least so many rounds, and more where they are short.

    A run that is FP32 already is both sides. Raises EngineError for what the user can mend.
    """
    say("building the step in FP32 and in the precision of the run")
    fp32 = _side(config.model_copy(update={"precision": "fp32"}))
    other = fp32 if config.precision == "fp32" else _side(config)
    sides = [fp32] if other is fp32 else [fp32, other]
    for side in sides:
        for _ in range(_WARM_STEPS):
            _take_step(side)
    block = max(2, min(_MOST_BLOCK, int(_BLOCK_S / max(_one_s(side) for side in sides))))
    cost, end = event_cost(), time.monotonic() + _BUDGET_S
    for number in range(_MOST_ROUNDS):
        if stopped() or (number >= rounds and (rounds < LEAST_ROUNDS or time.monotonic() > end)):
            break
        say(f"round {number + 1}: {block} steps of each")
        for side in sides:
            _plain_block(side, block)
        for side in sides:
            _profiled_block(side)
    return fp32, other, cost


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
    """In words which time steps are measured in."""
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

    times: list[float] = []

    def work(phases: ProfilerPhases) -> None:
        phases.begin("data")
        _next(side)
        begin = time.thread_time()
        step(side.parts, phases)
        times.append(time.thread_time() - begin)

    steps = max(1, min(_MOST_PROFILED, int(_PROFILED_S / max(_one_s(side), 1e-6))))
    for _ in range(_PROFILES):
        times.clear()
        profiled = profile_steps(side.parts.model, side.parts.device, work, steps)
        if one_thread(side.parts.device):
            profiled.cpu_s = sum(times[1:])
        side.profiles.append(profiled)


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
    program interrupted. Where one thread does all the work they are then brought to the CPU time of a step, so that
    what others took from all rows alike is left out, too."""
    keys = dict.fromkeys(_key(row) for profiled in profiles for row in profiled.rows)
    tables = [({_key(row): row for row in profiled.rows}, profiled.steps) for profiled in profiles]
    kept = [_typical_row([table.get(key) for table, _ in tables], [steps for _, steps in tables]) for key in keys]
    kept = [row for row in kept if row.calls or row.cpu_s or row.device_s]

    def median(name: str) -> float:
        return statistics.median(float(getattr(profiled, name)) / profiled.steps for profiled in profiles)

    gap_s, total_s = median("gap_s"), sum(row.cpu_s for row in kept) + median("gap_s")
    cpu = [profiled.cpu_s / profiled.steps for profiled in profiles if profiled.cpu_s is not None]
    if cpu and total_s:
        scale = statistics.median(cpu) / total_s
        gap_s *= scale
        kept = [replace(row, cpu_s=row.cpu_s * scale) for row in kept]
    return Profiled(
        kept, 1, median("wall_s"), gap_s, median("data_s"), round(median("events")), round(median("gap_events")),
        round(median("markers")), profiles[0].on_device,
    )  # fmt: skip


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
