"""Runs side by side: each figure beside that of a baseline."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from precgui.errors import SentenceError
from precgui.events import Metric
from precgui.runs.caveats import arithmetic_of
from precgui.runs.compared import Compared, RunComparison
from precgui.runs.comparison_notes import comparison_notes, copies
from precgui.runs.identity import TrainingIdentity, identity_of, other_result, other_work
from precgui.runs.known_settings import training_settings
from precgui.runs.outcome import outcome
from precgui.runs.ratio_interval import NoiseBetween, Variation, noise_between, ratio_interval, variation
from precgui.runs.recorded_facts import breaks_sentence
from precgui.runs.run import Run
from precgui.runs.summary import summarise
from precgui.runs.tensorboard.event_file import NAME_PART
from precgui.runs.timing import (
    RunTiming,
    StepClock,
    clock_for,
    clock_note,
    other_load,
    record_note,
    timing_of,
    why_no_time,
)
from precgui.sentences import L_, Sentence


class UnknownBaseline(SentenceError, ValueError):
    """No run has the name that was given; the message lists the names."""


def names(runs: Sequence[Run]) -> list[str]:
    """A short unique name for each run: file name, else title, numbered where two are the same."""
    requested = [_short_name(run) for run in runs]
    counter: Counter[str] = Counter()
    unique = []
    for name in requested:
        counter[name] += 1
        unique.append(name if counter[name] == 1 else f"{name} ({counter[name]})")
    return unique


def _short_name(run: Run) -> str:
    """TensorBoard calls every file events.out.tfevents and a number: such a run goes by its title."""
    return run.title if run.path is None or NAME_PART in run.path.name else run.path.stem


def compare(
    runs: Sequence[Run],
    baseline: str | None = None,
    called: Sequence[str] | None = None,
    kept: KeptFigures | None = None,
) -> RunComparison:
    """Compare runs with a baseline named by file name, title or precision; the first FP32 run by default.

    `called` are unique names for the runs, in their order, in place of those of `names`. `kept` has the figures of
    ended runs from one comparison to the next.

    Raises UnknownBaseline, and ValueError when there are no runs.
    """
    if not runs:
        raise ValueError(L_("there is no run to compare"))
    called = names(runs) if called is None else called
    at = _baseline_index(runs, called, baseline)
    sides = (kept or KeptFigures()).of(runs)
    clocks = [_clock(side, sides[at]) for side in sides]
    signals = {clock.signal: clock for clock in clocks}
    between = {signal: noise_between(_repeated_times(sides, clock)) for signal, clock in signals.items()}
    rows = [
        _compared(name, side, sides[at], clock, between[clock.signal])
        for name, side, clock in zip(called, sides, clocks, strict=True)
    ]
    silent = [name for name, side in zip(called, sides, strict=True) if not side.tells_samples]
    timed = {row.run: clock for row, clock in zip(rows, clocks, strict=True) if row.speedup and row.run != called[at]}
    timed_names = {*timed, called[at]} if timed else set()
    shares = {name: side.timing.record_share for name, side in zip(called, sides, strict=True) if name in timed_names}
    times = [sentence for sentence in (clock_note(timed), record_note(shares)) if sentence]
    repeats = copies({name: run.run_id for name, run in zip(called, runs, strict=True)})
    broken = [
        Sentence("{run} {what_it_did}.", run=name, what_it_did=why)
        for name, run in zip(called, runs, strict=True)
        if (why := breaks_sentence(run))
    ]
    notes = (*times, *comparison_notes(rows, called[at], silent, repeats), *broken)
    return RunComparison(called[at], tuple(rows), notes)


def _baseline_index(runs: Sequence[Run], called: Sequence[str], requested: str | None) -> int:
    if requested is None:
        fp32 = [place for place, run in enumerate(runs) if run.config.precision == "fp32"]
        plain = [place for place in fp32 if not runs[place].config.train.rounding_twin]  # a twin differs on purpose
        return (plain or fp32 or [0])[0]
    for keys in (
        called,
        [run.title for run in runs],
        [run.config.precision for run in runs],
        [str(r.path) for r in runs],
    ):
        if requested in keys:
            return list(keys).index(requested)
    raise UnknownBaseline(
        Sentence("no run is called {name}; the names are {names}", name=requested, names=", ".join(called))
    )


@dataclass(frozen=True)
class _Side:
    """One run with its figures: those of its summary, flat, computed anew, so that unfinished runs have them, too."""

    run: Run
    figures: dict[str, Any]
    samples: float  # of a step; 0 where not recorded
    tells_samples: bool
    timing: RunTiming
    is_final: bool  # the run had ended
    _variations: dict[str, Variation | None] = field(default_factory=dict)  # by the signal of the clock

    @cached_property
    def identity(self) -> TrainingIdentity:
        return identity_of(self.run)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Those that move the result of a training; they do not change while the run goes on."""
        return training_settings(self.run)

    @cached_property
    def repeated_work(self) -> str:
        """The same for runs of the same work in the same precision on one machine."""
        config, timing = self.run.config, self.timing
        where = (timing.host, timing.device, timing.threads, self.samples)
        return repr((config.precision, config.task, config.model, self.settings, where))

    def variation(self, clock: StepClock) -> Variation | None:
        """The variation of the step times; on a CPU also the share of the time in which they waited for it."""
        if clock.signal not in self._variations:
            times, on_cpu = self.run.series(clock.signal)[1], self.timing.device_kind == "cpu"
            cpu_s = self.run.series("cpu_s")[1] if on_cpu and clock.signal == "step_s" else None
            self._variations[clock.signal] = variation(times, cpu_s)
        return self._variations[clock.signal]


class KeptFigures:
    """The figures of runs that have ended, for as long as the same runs are compared."""

    def __init__(self) -> None:
        self._sides: list[_Side] = []

    def of(self, runs: Sequence[Run]) -> list[_Side]:
        """The side of each run; of those that go on it is made anew, and runs that are no longer there are let go."""
        known = {id(side.run): side for side in self._sides if side.is_final}
        self._sides = [known.get(id(run)) or _side(run) for run in runs]
        return self._sides

    def read_ahead(self, runs: Sequence[Run], most: int) -> int:
        """Read at most so many of the runs that `of` has not had; returns how many are left after them."""
        wanted = {id(run) for run in runs}
        self._sides = [side for side in self._sides if id(side.run) in wanted]
        known = {id(side.run) for side in self._sides}
        unread = [run for run in runs if id(run) not in known]
        self._sides += [_side(run) for run in unread[:most]]
        return max(0, len(unread) - most)


def _side(run: Run) -> _Side:
    is_final = run.status != "running"
    summary = summarise(run)
    final = summary.pop("final")
    samples = run.series("samples")[1]
    tells = not len(samples) or bool(samples.any())
    return _Side(
        run, {**summary, **final}, float(np.median(samples)) if len(samples) else 0.0, tells, timing_of(run), is_final
    )


def _clock(side: _Side, base: _Side) -> StepClock:
    """The clock of a run and its baseline, by these two alone: another open run changes no comparison."""
    compared = side is not base and not _why_no_costs(side, base)
    return clock_for([side.timing, base.timing]) if compared else StepClock()


def _repeated_times(sides: Sequence[_Side], clock: StepClock) -> list[list[float]]:
    """The step times of runs that did the same work in the same precision, on one machine: their noise is of no other
    origin. Copies of a run count once."""
    groups: dict[str, dict[str, float]] = {}
    for side in sides:
        time_s = getattr(side.timing, clock.signal)
        if time_s and side.is_final:
            groups.setdefault(side.repeated_work, {})[side.run.run_id or str(id(side.run))] = time_s
    return [list(times.values()) for times in groups.values()]


def _why_no_costs(side: _Side, base: _Side) -> str:
    return other_work(side.identity, base.identity) or why_no_time(side.timing, base.timing)


def _compared(name: str, side: _Side, base: _Side, clock: StepClock, between: NoiseBetween) -> Compared:
    run, own, is_base = side.run, side.figures, side is base
    how, work, base_work = arithmetic_of(run), side.identity, base.identity
    withheld = other_work(work, base_work)
    no_difference = other_result(work, base_work)
    no_costs = "" if is_base or withheld else why_no_time(side.timing, base.timing)
    loads_differ = not is_base and other_load(side.timing, base.timing)
    varied = (None, None) if is_base else (side.variation(clock), base.variation(clock))
    noise = between if loads_differ else None
    against = dict.fromkeys(base.figures) | {"steps": 0} if withheld or no_costs else base.figures
    speedup = None if withheld or no_costs else _speedup(side, base, clock)
    energy_ratio = _ratio(_per_step(own, "energy_j"), _per_step(against, "energy_j"))
    return Compared(
        run=name,
        title=run.title,
        path=str(run.path) if run.path else None,
        speedup=speedup,
        speedup_interval=ratio_interval(speedup, *varied, between=noise),
        memory_ratio=_ratio(own["memory_peak_bytes"], against["memory_peak_bytes"]),
        energy_ratio=energy_ratio,
        energy_ratio_interval=ratio_interval(energy_ratio, *varied, of_energy=True, between=noise),
        accuracy_delta=None if no_difference else _difference(own["val_accuracy"], base.figures["val_accuracy"]),
        emulated=how.arithmetic == "emulated",
        arithmetic=how.arithmetic,
        caveat=how.caveat,
        withheld=withheld,
        accuracy_withheld="" if withheld else no_difference,
        costs_withheld=no_costs,
        differs_in={} if withheld else _other_settings(side, base),
        cpu_s_median=side.timing.cpu_s,
        accuracy_grain=_grain(work.data, Metric(**own["metric"])),
        outcome=outcome(own["status"], own),
        loads_differ=loads_differ,
        **own,
    )


def _other_settings(side: _Side, base: _Side) -> dict[str, tuple[Any, Any]]:
    """Settings that move the result of a training and are no part of its precision, each with both values."""
    own, other = side.settings, base.settings
    return {key: (value, other[key]) for key, value in own.items() if key in other and value != other[key]}


def _grain(data: Mapping[str, Any], metric: Metric) -> float | None:
    """The step of a share of the validation samples, for a metric that counts them."""
    samples = data.get("validation_samples")
    counts = metric.unit == "%" and metric.of_outputs
    return 1 / samples if counts and isinstance(samples, int) and samples > 0 else None


def _speedup(own: _Side, base: _Side, clock: StepClock) -> float | None:
    """Ratio of samples per second; of steps per second where a recorded loop did not record its samples."""
    steps = _ratio(getattr(base.timing, clock.signal), getattr(own.timing, clock.signal))
    if steps is None or not (own.tells_samples and base.tells_samples):
        return steps
    return _ratio(steps * own.samples, base.samples)


def _per_step(figures: dict[str, Any], key: str) -> float | None:
    value = figures[key]
    return value / figures["steps"] if value is not None and figures["steps"] else None


def _ratio(value: float | None, base: float | None) -> float | None:
    if value is None or not base or not math.isfinite(value / base):
        return None
    return value / base


def _difference(value: float | None, base: float | None) -> float | None:
    return None if value is None or base is None else value - base
