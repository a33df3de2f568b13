"""The signals that can be plotted: words, unit, axis, and the sentence for a signal that was not measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from precgui.events import NO_METRIC, POWER_SIGNALS, STATE_SIGNALS, Incident
from precgui.runs.baseline import LOSS_GAP, LOSS_MEAN
from precgui.runs.figures import FIGURES, Figure
from precgui.runs.metric import in_text, metric_of, shared
from precgui.runs.run import SignalSource
from precgui.runs.signals import Axis
from precgui.words import L_, Sentence, _, translated

Scale = Literal["linear", "log2", "log10"]
_BASES: dict[Scale, float] = {"log2": 2.0, "log10": 10.0}
_NOT_YET = L_("No run has recorded this signal yet.")
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, slots=True)
class Signal:
    """One choice of a plot. `series` are names of recorded series, the main one first; `factor` turns the recorded
    unit into the shown one; `log` is the logarithmic scale that suits it, None where none does; `ended`: where a run
    ends is marked, so that one that is behind another can be told from one that is over; `noisy`: smoothing says more
    than each value does."""

    key: str
    title: str
    axis: str
    series: tuple[str, ...]
    labels: tuple[str, ...] = ("",)
    unit: str = ""
    factor: float = 1.0
    scale: Scale = "linear"
    log: Scale | None = "log10"
    absent: str = _NOT_YET
    ended: bool = False
    noisy: bool = True


def _signal(key: str, figure: Figure, axis: str, absent: str = _NOT_YET) -> Signal:
    """The series behind a figure, which bears its name and unit."""
    unit, series = figure.unit, (figure.key,)
    named = Sentence("{quantity} ({unit})", quantity=axis, unit=unit)
    return Signal(key, figure.title, named, series, unit=unit, factor=figure.scale, absent=absent)


READ_AT_ONCE = 8  # runs whose files are read in one turn of the event loop; some 8 ms each
EVENTS = "events"
_ONE_PROCESS = L_("These runs were trained by one process each, or have no step yet.")
METRIC = "val_accuracy"  # whatever the tasks of the runs measure
SIGNALS: dict[str, Signal] = {
    signal.key: signal
    for signal in (
        Signal("loss", L_("Loss"), L_("Loss"), ("loss", "val_loss"), (L_("training"), L_("validation"))),
        Signal("scale", L_("Loss scale"), L_("Loss scale"), ("scale",), scale="log2", log="log2", noisy=False),
        Signal(EVENTS, L_("Events: NaN, Inf, skipped steps"), "", (), log=None),
        Signal("power", L_("Power"), L_("Power (W)"), ("power_w",), unit="W"),
        Signal("lr", L_("Learning rate"), L_("Learning rate"), ("lr",), noisy=False),
        Signal("grad_norm", L_("Gradient norm"), L_("Gradient norm"), ("grad_norm",), scale="log10",
               absent=L_("The gradient norm was not recorded in these runs.")),
        Signal("weight_norm", L_("Weight norm"), L_("Weight norm"), ("weight_norm",), noisy=False,
               absent=L_("The weights were not measured in these runs: record.tensors, record.weights_every.")),
        Signal("throughput", L_("Throughput"), L_("Samples/s"), ("samples_per_s",), unit="samples/s"),
        _signal("memory", FIGURES["memory_bytes"], L_("Memory"),
               absent=L_("Memory was not measured step by step: a CPU keeps no count. "
                         "One step was; its peak is in Compare.")),
        _signal("step_time", FIGURES["step_s"], L_("Step")),
        Signal("data_wait", L_("Waiting for data"), L_("Waiting (ms)"), ("data_s",), unit="ms", factor=1e3,
               absent=L_("The time waited for data is not in these files.")),
        _signal("cpu_time", FIGURES["cpu_s"], L_("CPU"),
               absent=L_("The CPU time of steps is not in these files: they were written by an older version or a loop "
                         "of one's own.")),
        Signal("load", L_("Load of the machine"), L_("Load"), ("load",),
               absent=L_("The load of the machine is not in these files.")),
        Signal(METRIC, L_("Validation metric"), L_("Metric of the task"), ("val_accuracy",),
               absent=L_("No validation yet: its first value comes at the end of the first epoch.")),
        Signal("zeros", L_("Zero weights"), L_("Weights (%)"), ("zeros_by_mask", "zeros_by_rounding"),
               (L_("zeros by mask"), L_("zeros by rounding")), unit="%", factor=100.0, noisy=False,
               absent=L_("Zero weights are counted in pruned runs only; choose a method under Pruning in Run.")),
        _signal("tensor_use", FIGURES["tensor_use"], L_("Busy")),
        Signal("sm_use", L_("SMs busy"), L_("Busy (%)"), ("sm_use",), unit="%", factor=100.0),
        Signal("dram_use", L_("Memory bandwidth used"), L_("Used (%)"), ("dram_use",), unit="%", factor=100.0),
        Signal("utilisation", L_("Utilisation of devices"), L_("Utilisation (%)"), ("utilisation",), unit="%",
               factor=100.0),
        Signal("sent", L_("Gradients sent in a step"), L_("Sent (MB)"), ("sent_bytes",), unit="MB", factor=1e-6,
               noisy=False, absent=_ONE_PROCESS),
        Signal("gradient_error", L_("Error of the reduced gradient"), L_("Relative L2"), ("gradient_error",),
               scale="log10", absent=_ONE_PROCESS),
        Signal("rank_wait", L_("Waiting for other ranks"), L_("Waiting (ms)"), ("rank_wait_s",), unit="ms",
               factor=1e3, absent=_ONE_PROCESS),
        Signal("clock", L_("SM clock"), L_("SM clock (MHz)"), ("clock_mhz",), unit="MHz"),
        Signal("clock_held", L_("Clock held back"), L_("1 = held"), ("clock_held",), noisy=False),
        Signal("temperature", L_("Temperature"), L_("Temperature (°C)"), ("temperature_c",), unit="°C"),
    )
}  # fmt: skip
BASELINE_SIGNALS: dict[str, Signal] = {  # of runs.baseline.BaselineComparison
    LOSS_MEAN: Signal(LOSS_MEAN, L_("Training loss"), L_("Loss"), (LOSS_MEAN,), scale="log10", ended=True),
    LOSS_GAP: Signal(LOSS_GAP, L_("Loss minus the baseline's"), L_("Difference"), (LOSS_GAP,), log=None, ended=True,
                     absent=L_("No run of the same work has a step in common with the baseline.")),
}  # fmt: skip


def suited(signal: Signal, runs: Sequence[SignalSource]) -> Signal:
    """The signal in the words of these runs: their tasks say what the metric is, unless they measure different ones."""
    if signal.key != METRIC:
        return signal
    metric = shared(metric_of(run.environment) for run in runs)
    if metric is None or metric.name == NO_METRIC:
        return SIGNALS[METRIC]
    name = translated(metric.title)
    axis = _("{quantity} ({unit})").format(quantity=name, unit=metric.unit) if metric.unit else name
    title = _("Validation: {metric}").format(metric=in_text(name))
    return replace(signal, title=title, axis=axis, unit=metric.unit, factor=100.0 if metric.unit == "%" else 1.0)


def devices_of(signal: Signal, run: SignalSource) -> list[str] | None:
    """The devices that a signal has a line for each; None for a signal of the run itself."""
    name = signal.series[0] if signal.series else ""
    if name in POWER_SIGNALS:
        return run.power_devices()
    return run.state_devices() if name in STATE_SIGNALS or name == "clock_held" else None


class RecordedSignals:
    """Which signals of runs a plot would show something of. Rows of a run only ever come: each is looked at once."""

    def __init__(self) -> None:
        self._looks: WeakKeyDictionary[SignalSource, dict[str, _Look]] = WeakKeyDictionary()

    def read(self, runs: Sequence[SignalSource]) -> tuple[list[SignalSource], bool]:
        """The runs that have been looked at before, and READ_AT_ONCE more; whether others are left."""
        for run in [run for run in runs if run not in self._looks][:READ_AT_ONCE]:
            self._looks[run] = {}
        known = [run for run in runs if run in self._looks]
        return known, len(known) < len(runs)

    def has(self, key: str, runs: Sequence[SignalSource]) -> bool:
        """Whether any of the runs has it: a loss scale that moves, an event above a note, a finite value."""
        if key == "loss":
            return True
        looks = [self._look(key, run) for run in runs]
        return any(look.moves if key == "scale" else look.is_finite for look in looks)

    def _look(self, key: str, run: SignalSource) -> _Look:
        look = self._looks.setdefault(run, {}).setdefault(key, _Look())
        if key == EVENTS:
            look.count(run.events(since=look.rows))
        elif not look.moves:
            look.add(run.series(SIGNALS[key].series[0], "time_s")[1])
        return look


@dataclass(slots=True)
class _Look:
    """The least and the largest finite value of the rows that were looked at."""

    rows: int = 0
    least: float = math.inf
    most: float = -math.inf

    @property
    def is_finite(self) -> bool:
        return self.least <= self.most

    @property
    def moves(self) -> bool:
        return self.least < self.most

    def add(self, values: NDArray[np.float64]) -> None:
        """`values`: all rows so far, shape (rows,)."""
        fresh = values[self.rows :]
        finite = fresh[np.isfinite(fresh)]
        self.rows = len(values)
        if len(finite):
            self.least, self.most = min(self.least, float(finite.min())), max(self.most, float(finite.max()))

    def count(self, fresh: Sequence[Incident]) -> None:
        """Look at further events for one above a note."""
        self.rows += len(fresh)
        if any(event.severity != "info" for event in fresh):
            self.least = self.most = 0.0


DEFAULT_SIGNALS = ("loss", "scale", EVENTS, "power")


def to_plot(values: NDArray[np.float64], factor: float, scale: Scale) -> NDArray[np.float64]:
    """Recorded values in the coordinates of the plot; what has no logarithm becomes NaN."""
    displayed = values if factor == 1.0 else values * factor
    if scale == "linear":
        return displayed
    positive = np.where(displayed > 0, displayed, np.nan)
    return np.asarray(np.log2(positive) if scale == "log2" else np.log10(positive))


def from_plot(value: float, scale: Scale) -> float:
    """A coordinate of the plot in the shown unit; Inf where a float does not reach."""
    try:
        return value if scale == "linear" else float(_BASES[scale] ** value)
    except OverflowError:
        return math.inf


def number(value: float, digits: int = 7) -> str:
    """A value for people: `digits` significant digits, NaN and Inf in words, a true minus sign."""
    if math.isnan(value):
        return "NaN"
    text = "Inf" if math.isinf(value) else f"{abs(value):.{digits}g}"
    return f"−{text}" if value < 0 else text


def grouped(value: float) -> str:
    """A whole number with thin spaces between thousands."""
    return f"{value:,.0f}".replace(",", "\u2009").replace("-", "−")


def power_label(exponent: int, base: int) -> str:
    return f"{base}{str(exponent).translate(_SUPERSCRIPTS)}"


def signal_text(value: float, signal: Signal) -> str:
    """A recorded value as the readout shows it: in the unit of the plot, a loss scale also as a power of two."""
    text = number(value * signal.factor)
    if signal.key == "scale" and value > 0 and math.isfinite(value) and math.frexp(value)[0] == 0.5:
        return f"{text} = {power_label(math.frexp(value)[1] - 1, 2)}"
    return f"{text} {signal.unit}".rstrip()


def duration(seconds: float) -> str:
    """Seconds as `12.5 s`, `3:07` or `1:02:45`."""
    if abs(seconds) < 60:
        return f"{seconds:.4g} s"
    minutes, remainder = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{remainder:02d}" if hours else f"{minutes}:{remainder:02d}"


def place_text(x: float, over: Axis) -> str:
    """A place on the x axis in words: `step 1 200` or `time 3:07`."""
    if over == "time_s":
        return _("time {time}").format(time=duration(x))
    return _("step {step}").format(step=grouped(x) if x == round(x) else f"{x:.1f}")
