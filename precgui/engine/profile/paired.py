"""A step in one precision beside the same step in FP32, in turns in one process: times as they are, and taken apart."""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from precgui.config import RunConfig
from precgui.engine import device as devices
from precgui.engine.memory import stderr_closed
from precgui.engine.profile.one_step import StepParts, build_step, step
from precgui.engine.profile.operations import (
    OperationRow,
    Profiled,
    ProfilerPhases,
    module_markers,
    profile_of_steps,
    record_steps,
    row_key,
)
from precgui.engine.profile.step_template import StepTemplate, template_of, times_of_steps
from precgui.engine.tasks.base import Batch, Task
from precgui.sentences import L_, Sentence

WARM_STEPS = 3
BLOCK_S, MOST_BLOCK = 0.3, 12  # steps of one side in a row
LEAST_ROUNDS = 5
_CERTAIN = 0.03  # rounds end when the time that the profiler adds is known to so small a share of the step
_PAIRS, _PAIRS_OF_LONG = 4, 2  # least number of plain and profiled steps in each round
_PAIRS_S = 1.0  # for more of them
_READ_EVERY = 4  # rounds after the first ones: reading takes ten times as long as recording
_LONG_S = 0.2
_MOST_PROFILED, _PROFILED_S = 2, 0.04  # steps of a recording: an event of a longer one costs up to four times as much
_LEAST_FACTOR, _MOST_FACTOR = 0.5, 6.0  # of the cost of an event over that of an operation with nothing to do


@dataclass(frozen=True, slots=True)
class EventCost:
    """Seconds that the profiler adds to a step for each operation, and for each marker around a module."""

    operation_s: float
    marker_s: float


@dataclass(frozen=True, slots=True)
class TimedStep:
    """Seconds of a step by the clock of `paired`, and page faults of the process meanwhile."""

    seconds: float
    page_faults: int


@dataclass(frozen=True, slots=True)
class ProfiledPair:
    """A profiled step over the plain one before it, and by how many page faults it had more or less."""

    slow_down: float
    page_faults: float


@dataclass(slots=True)
class Side:
    """One of the two: its parts, its batches, and what was measured: plain steps, and by block what they waited for
    their batches on average and took in all. `template` identifies the events of a recording without shapes; None where
    every recording has them (a GPU, or a step whose events differ from one time to the next)."""

    parts: StepParts
    feed: Iterator[Batch]
    template: StepTemplate | None = None
    cost: EventCost = field(default_factory=lambda: EventCost(0.0, 0.0))
    step_s: list[float] = field(default_factory=list)
    data_s: list[float] = field(default_factory=list)
    block_s: list[float] = field(default_factory=list)
    cpu_shares: list[float] = field(default_factory=list)
    profiles: list[Profiled] = field(default_factory=list)
    pairs: list[ProfiledPair] = field(default_factory=list)

    @property
    def slow_downs(self) -> list[float]:
        """Times of a profiled step over that of the plain one right before it, in the same clock."""
        return comparable(self.pairs)


def paired(
    config: RunConfig,
    say: Callable[[str], None] = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
    rounds: int = LEAST_ROUNDS,
    *,
    seconds: float,
) -> tuple[Side, Side]:
    """FP32 and `config`, measured in pairs: each round a block of plain steps of each, then some under the profiler, in
    random order.

    At least so many rounds, and more until the time that the profiler adds is known well or `seconds` have passed.

    A run that is FP32 already is both sides. Raises EngineError for faults that the user can correct.
    """
    say(L_("building the step in FP32 and in the precision of the run"))
    fp32 = make_side(config.model_copy(update={"precision": "fp32"}))
    other = fp32 if config.precision == "fp32" else make_side(config)
    sides = [fp32] if other is fp32 else [fp32, other]
    for side in sides:
        for _ in range(WARM_STEPS):
            timed_step(side)
    block = max(2, min(MOST_BLOCK, int(BLOCK_S / max(_one_s(side) for side in sides))))
    for side in sides:
        _identify(side)
    end, draw = time.monotonic() + seconds, random.Random(config.seed)
    for number in itertools.count():
        enough = rounds < LEAST_ROUNDS or time.monotonic() > end or _uncertainty(sides) <= _CERTAIN
        if stopped() or (number >= rounds and enough):
            break
        say(Sentence("round {round}: {steps} steps of each", round=number + 1, steps=block))
        for side in draw.sample(sides, len(sides)):
            _plain_block(side, block)
        for side in draw.sample(sides, len(sides)):
            _profiled_block(side)
    for side in sides:
        if not side.profiles:  # no recording had the events of the template
            side.template = None
            _read(side, _recording(side, 1, detailed=True)[0], 1)
    return fp32, other


def _uncertainty(sides: list[Side]) -> float:
    """The share of a step to which the cost of the profiler is not known, of all sides together."""
    return math.hypot(*(share_of(side).uncertainty if side.profiles else math.inf for side in sides))


def make_side(config: RunConfig) -> Side:
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
    return L_("CPU time of the thread") if one_thread(device) else L_("wall time")


def timed_step(side: Side) -> tuple[float, float, float]:
    """Seconds of the step, seconds that it waited for its batches before, and the share of the CPU that it had.

    The seconds of the step are CPU time where one thread does all the work.
    """
    side.parts.precision.prepare()  # the switches of the process are those of the side before
    begin = time.perf_counter()
    _next(side)
    fed, cpu = time.perf_counter(), time.thread_time()
    step(side.parts)
    devices.synchronize(side.parts.device)
    wall_s, cpu_s = time.perf_counter() - fed, time.thread_time() - cpu
    return (cpu_s if one_thread(side.parts.device) else wall_s), fed - begin, cpu_s / max(wall_s, 1e-9)


def _one_s(side: Side) -> float:
    return sum(timed_step(side)[:2])


def _plain_block(side: Side, steps: int) -> None:
    """The first step of a block is left out: loader processes had time to prepare its batch, caches hold the other."""
    timed_step(side)
    times = [timed_step(side) for _ in range(steps)]
    side.step_s += [step_s for step_s, _, _ in times]
    side.cpu_shares += [share for _, _, share in times]
    side.data_s.append(statistics.fmean(data_s for _, data_s, _ in times))
    side.block_s.append(statistics.median(step_s for step_s, _, _ in times) + side.data_s[-1])


def _recording(side: Side, steps: int, *, detailed: bool) -> tuple[profile, list[TimedStep]]:
    """So many recorded steps, and the time of each; one more before them warms up and is not counted."""
    device = side.parts.device
    clock = time.thread_time if one_thread(device) else time.perf_counter
    times: list[TimedStep] = []
    side.parts.precision.prepare()  # the switches of the process may be those of the other side

    def work(phases: ProfilerPhases) -> None:
        phases.begin("data")
        _next(side)
        faults, begin = devices.page_faults(), clock()
        step(side.parts, phases)
        devices.synchronize(device)
        times.append(TimedStep(clock() - begin, devices.page_faults() - faults))

    recorded = record_steps(side.parts.model, device, work, steps, detailed=detailed)
    return recorded, times[1:]


def _identify(side: Side) -> None:
    """Take the template of the step, where another step has the same events, and the cost of an event."""
    device = side.parts.device
    if device.type == "cpu":
        template = template_of(_recording(side, 1, detailed=True)[0], device)
        if times_of_steps(_recording(side, 1, detailed=False)[0], 1, template) is not None:
            side.template = template
    side.cost = event_cost(detailed=side.template is None)


def _profiled_block(side: Side) -> None:
    """Pairs of plain steps and the same under the profiler, for its cost; and a short recording that is read."""
    one_s = max(_one_s(side), 1e-6)
    steps, least = max(1, min(_MOST_PROFILED, int(_PROFILED_S / one_s))), _PAIRS if one_s < _LONG_S else _PAIRS_OF_LONG
    end, calmest, fewest = time.monotonic() + _PAIRS_S, None, math.inf
    for number in itertools.count():
        if number >= least and time.monotonic() > end:
            break
        plain = [_plain_step(side) for _ in range(2 * steps)]
        recorded, profiled = _recording(side, steps, detailed=side.template is None)
        side.pairs.append(_pair(plain, profiled))
        page_faults = sum(each.page_faults for each in profiled)
        if page_faults <= fewest:  # of several the last one, since the first ones find cold caches
            calmest, fewest = recorded, page_faults
    due = len(side.block_s) <= LEAST_ROUNDS or len(side.block_s) % _READ_EVERY == 0
    if calmest is not None and due:
        _read(side, calmest, steps)


def _plain_step(side: Side) -> TimedStep:
    faults = devices.page_faults()
    return TimedStep(timed_step(side)[0], devices.page_faults() - faults)


def _pair(plain: list[TimedStep], profiled: list[TimedStep]) -> ProfiledPair:
    seconds = [statistics.median(each.seconds for each in side) for side in (plain, profiled)]
    faults = [statistics.median(each.page_faults for each in side) for side in (plain, profiled)]
    return ProfiledPair(seconds[1] / max(seconds[0], 1e-9), abs(faults[1] - faults[0]))


def comparable(pairs: list[ProfiledPair]) -> list[float]:
    """The slow-downs of the pairs whose two sides differ least in page faults: a quarter of them, but at least six, and
    all that are as good.

    A step after which the allocator gave its memory back takes up to ten times as long, with a profiler or without.
    """
    page_faults = sorted(pair.page_faults for pair in pairs)
    most = page_faults[max(5, len(pairs) // 4)] if len(pairs) > 5 else math.inf
    return [pair.slow_down for pair in pairs if pair.page_faults <= most]


def _read(side: Side, recorded: profile, steps: int) -> None:
    """Keep what a recording says, unless one of its steps had other events than the template."""
    if side.template is None:
        side.profiles.append(profile_of_steps(recorded, steps, side.parts.device))
    elif (profiled := times_of_steps(recorded, steps, side.template)) is not None:
        side.profiles.append(profiled)


def median_interval(values: list[float]) -> tuple[float, float]:
    """The ends of a 95 % interval of the median, by order statistics (of fewer than six values all of them)."""
    ordered, n = sorted(values), len(values)
    below = [sum(math.comb(n, k) for k in range(place + 1)) / 2**n for place in range(n // 2)]
    place = max(0, sum(2 * share <= 0.05 for share in below) - 1)
    return ordered[place], ordered[-1 - place]


def event_cost(*, detailed: bool) -> EventCost:
    """Seconds that the profiler adds: operations on one number, and markers, with it and without.

    In CPU time, of which others on the machine take nothing. `detailed` as in `record_steps`."""
    one, module = torch.zeros(1), nn.Identity()

    def operations() -> None:
        for _ in range(2000):
            torch.add(one, one, out=one)

    def modules() -> None:
        for _ in range(500):
            module(one)

    operation_s = _added_s(operations, nn.Identity(), detailed=detailed) / 2000
    return EventCost(operation_s, _added_s(modules, module, detailed=True) / 500)


def _added_s(work: Callable[[], None], model: nn.Module, *, detailed: bool) -> float:
    def timed() -> float:
        begin = time.thread_time()
        work()
        return time.thread_time() - begin

    timed()
    plain = min(timed() for _ in range(3))
    with stderr_closed(), module_markers(model), profile(activities=[ProfilerActivity.CPU], record_shapes=detailed):
        timed()
        profiled = min(timed() for _ in range(3))
    return max(0.0, profiled - plain)


def typical(profiles: list[Profiled]) -> Profiled:
    """One step whose rows and gaps are each the median over the profiles, which leaves out the odd ones that another
    program interrupted."""
    keys = dict.fromkeys(row_key(row) for profiled in profiles for row in profiled.rows)
    tables = [({row_key(row): row for row in profiled.rows}, profiled.steps) for profiled in profiles]
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
    `uncertainty` half the width of the interval in which it lies, as a share of the plain step.
    """

    step_s: float
    factor: float
    uncertainty: float


def profiler_share(plain_s: float, expected_s: float, slow_downs: list[float]) -> ProfilerShare:
    """Time that the profiler added to a plain step, from the pairs of plain and profiled ones.

    Where the pairs agree with the cost that was expected of so many events, that is taken; else what the pairs show,
    between half and six times of it (an event costs more between the operations of a step than in a loop of one). A
    cost beyond that is left for the account to call unexplained.
    """
    if not slow_downs or plain_s <= 0:
        return ProfilerShare(plain_s + expected_s, 1.0, 0.0)
    low, high = median_interval(slow_downs)
    expected = expected_s / plain_s
    if low <= 1 + expected <= high:
        least, most = max(low, 1 + _LEAST_FACTOR * expected), min(high, 1 + _MOST_FACTOR * expected)
        return ProfilerShare(plain_s * (1 + expected), 1.0, (most - least) / 2)
    slow_down = statistics.median(slow_downs)
    factor = (slow_down - 1) / max(expected, 1e-12)
    return ProfilerShare(plain_s * slow_down, min(max(factor, _LEAST_FACTOR), _MOST_FACTOR), (high - low) / 2)


def share_of(side: Side) -> ProfilerShare:
    """Time that the profiler added to a step of a side that was recorded."""
    profiled, cost = side.profiles[-1], side.cost
    expected_s = cost.operation_s * sum(row.events for row in profiled.rows) + gap_cost_s(profiled, cost)
    return profiler_share(statistics.median(side.step_s), expected_s / profiled.steps, side.slow_downs)


def gap_cost_s(profiled: Profiled, cost: EventCost) -> float:
    """Seconds that the profiler added between operations, in all recorded steps."""
    return cost.marker_s * profiled.markers + cost.operation_s * (profiled.gap_events - profiled.markers)


def anchored(profiled: Profiled, share: ProfilerShare) -> Profiled:
    """The step with its rows and gaps scaled so that they add up to the plain step and what the profiler added.

    The rows say how a step is divided, the pairs how long it takes: others on the machine disturb the pairs less.
    """
    total_s = sum(row.cpu_s for row in profiled.rows) + profiled.gap_s
    scale = share.step_s / total_s if total_s else 1.0
    rows = [replace(row, cpu_s=row.cpu_s * scale) for row in profiled.rows]
    return replace(profiled, rows=rows, gap_s=profiled.gap_s * scale)


def _typical_row(results: list[OperationRow | None], steps: list[int]) -> OperationRow:
    def median(name: str) -> float:
        each = zip(results, steps, strict=True)
        return statistics.median(float(getattr(row, name)) / count if row else 0.0 for row, count in each)

    first = next(row for row in results if row is not None)
    return replace(
        first, calls=median("calls"), events=median("events"), cpu_s=median("cpu_s"), device_s=median("device_s")
    )
