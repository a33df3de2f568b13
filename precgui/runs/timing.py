"""The one model of times by which runs are compared: whether they may be, and by which clock.

A step is timed by the clock, or in CPU time of the process where other programs kept the CPU busy. Runs of a study are
then compared in pairs (`runs.study`), two single runs with what varied within them (`runs.ratio_interval`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from precgui.runs.caveats import arithmetic_of, record_share
from precgui.runs.run import Run
from precgui.sanitize import some_names
from precgui.sentences import L_, Sentence, counted

BUSY_PRESSURE = 0.1  # share of the time in which some process waited for a CPU
DEAR_RECORD = 0.05  # share of the time of the steps; less moves a ratio by less than most intervals hold
EMULATED_HERE = L_("emulated here")
_NAMED = 6  # runs or groups in a sentence; more are a number
TimeSignal = Literal["step_s", "cpu_s"]


class TimedRun(Protocol):
    """The facts of a run on which it depends whether its times may be compared; None and "" are "not recorded"."""

    @property
    def host(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def device_kind(self) -> str: ...
    @property
    def threads(self) -> int | None: ...
    @property
    def step_s(self) -> float | None: ...
    @property
    def cpu_s(self) -> float | None: ...
    @property
    def emulated(self) -> str: ...
    @property
    def pressure(self) -> float | None: ...


@dataclass(frozen=True)
class RunTiming:
    """The timing facts of one run. Times are medians over the steps but the first tenth, in which caches fill.

    `cpu_s` is the CPU time of the process in a step, of all its threads. `emulated` says why, where the arithmetic is.
    `record_share` is the part of the time of the steps in which tensors were measured, 0 where it is not known.
    """

    host: str
    device: str
    device_kind: str
    threads: int | None
    step_s: float | None
    cpu_s: float | None
    emulated: str
    pressure: float | None
    record_share: float = 0.0


@dataclass(frozen=True)
class StepClock:
    """The signal of the time of a step that is compared. `busy` is the largest share of a run in which other programs
    kept the CPU busy, where that is why it is not the time of the clock."""

    signal: TimeSignal = "step_s"
    busy: float = 0.0


@np.errstate(all="ignore")  # a damaged file holds any bits
def timing_of(run: Run) -> RunTiming:
    """The timing of a run, live or saved."""
    environment, arithmetic = run.environment, arithmetic_of(run)
    threads = environment.get("threads")
    return RunTiming(
        host=_text(run.machine.get("host")),
        device=_text(environment.get("device_name")),
        device_kind=_text(environment.get("device")).partition(":")[0],
        threads=threads if isinstance(threads, int) else None,
        step_s=_typical(run, "step_s"),
        cpu_s=_typical(run, "cpu_s"),
        emulated=arithmetic.caveat if arithmetic.arithmetic == "emulated" else "",
        pressure=_mean(run, "cpu_pressure"),
        record_share=record_share(run) or 0.0,
    )


def is_busy(run: TimedRun) -> bool:
    """Whether other programs took the CPU from the run, so that the time of the clock is not that of the run."""
    return run.pressure is not None and run.pressure > BUSY_PRESSURE


def other_load(run: TimedRun, baseline: TimedRun) -> bool:
    """Whether other programs kept the CPU busier in one of two runs, and so moved its times beside the precision."""
    both = run.pressure, baseline.pressure
    on_cpu = run.device_kind == baseline.device_kind == "cpu"
    return on_cpu and None not in both and abs((both[0] or 0.0) - (both[1] or 0.0)) > BUSY_PRESSURE


def clock_for(runs: Sequence[TimedRun]) -> StepClock:
    """The clock for runs that are compared: CPU time where one of them was busy on a CPU, and all recorded it with the
    same number of threads."""
    busy = [run.pressure or 0.0 for run in runs if is_busy(run)]
    on_cpu = all(run.device_kind == "cpu" for run in runs)
    known = all(run.cpu_s for run in runs) and len({run.threads for run in runs}) == 1
    return StepClock("cpu_s", max(busy)) if busy and on_cpu and known else StepClock()


def clock_note(clocks: Mapping[str, StepClock]) -> str:
    """A sentence on the comparisons, by name, whose times are not those of the clock; empty where all are."""
    by_cpu = {name: clock.busy for name, clock in clocks.items() if clock.signal == "cpu_s"}
    if not by_cpu:
        return ""
    share = 100 * max(by_cpu.values())
    if len(by_cpu) == len(clocks):
        return Sentence(
            "Times are CPU times of the process: other programs kept the CPU busy in up to {share:.0f} % of a run, so "
            "the clock would say more of them than of the precision.",
            share=share,
        )
    return Sentence(
        "Times of {names} are CPU times of the process: other programs kept the CPU busy in up to {share:.0f} % of a "
        "run, so the clock would say more of them than of the precision.",
        names=some_names(list(by_cpu), _NAMED),
        share=share,
    )


def record_note(shares: Mapping[str, float]) -> str:
    """A sentence on runs that are timed, by name, whose steps took long because tensors were measured; or empty."""
    dear = {name: share for name, share in shares.items() if share > DEAR_RECORD}
    if not dear:
        return ""
    return counted(
        "The steps of {count} run hold the measuring of tensors, up to {share:.0f} % of their time, so that ratios of "
        "time and energy are not those of the training alone: set record.tensors = false where they matter ({names}).",
        "The steps of {count} runs hold the measuring of tensors, up to {share:.0f} % of their time, so that ratios of "
        "time and energy are not those of the training alone: set record.tensors = false where they matter ({names}).",
        len(dear),
        share=100 * max(dear.values()),
        names=some_names(list(dear), _NAMED),
    )


def why_no_time(run: TimedRun, baseline: TimedRun) -> str:
    """The reason for which times, memory and energy may not be compared; empty when there is none.

    A machine or a number of threads that was not recorded is held against no run.
    """
    if run.emulated or baseline.emulated:
        return EMULATED_HERE
    places = ((run.host, baseline.host), (run.device, baseline.device))
    if any(own and other and own != other for own, other in places):
        return Sentence("another machine ({here}, the baseline {there})", here=_place(run), there=_place(baseline))
    if None not in (run.threads, baseline.threads) and run.threads != baseline.threads:
        return Sentence(
            "another number of threads ({own}, the baseline {base})", own=run.threads, base=baseline.threads
        )
    return ""


def _place(run: TimedRun) -> Sentence:
    return Sentence("{device} on {host}", device=run.device or L_("a device"), host=run.host)


def _typical(run: Run, signal: TimeSignal) -> float | None:
    values = run.series(signal)[1]
    values = values[len(values) // 10 :]
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else None


def _mean(run: Run, signal: str) -> float | None:
    values = run.series(signal)[1]
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
