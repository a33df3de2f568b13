"""The precision advised for a run before it starts, from the decision tree and from runs timed on this machine."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from precgui.config.names import IMAGE_TASKS, MODELS
from precgui.config.tree import RunConfig
from precgui.hardware.advice import Situation, advise
from precgui.hardware.device import Device
from precgui.hardware.measured import gain
from precgui.runs.metric import decimals
from precgui.runs.step_times import TimedRow, step_time, timed_runs
from precgui.runs.timing import RunTiming, TimeSignal, clock_for, why_no_time
from precgui.runs.verdict.paired import paired_difference
from precgui.sentences import L_, Sentence, filled, together

_NO_PAIRS = L_("No difference was measured with this model: a study with {fewest} seeds at least measures one.")
SHORT_STEP_S = 0.005  # below it launches and data count, see `hardware.advice.SIZES`
_KINDS = {"segmentation": "segmentation", "detection": "detection", "gan": "gan", "cartpole": "rl"}
_SMALL_MODELS = ("cnn", "mlp", "linear")
_SIXTEEN_BITS = ("bf16-amp", "fp16-amp")


LEVEL = 0.95
FEWEST_PAIRS = 3


@dataclass(frozen=True)
class PairedSpeedup:
    """The geometric mean of the speed-ups of `n` pairs, above 1 is faster, with its 95 % t interval.

    Both are None where there are fewer than three pairs. `signal` is the time that was compared.
    """

    n: int
    ratio: float | None = None
    ci: tuple[float, float] | None = None
    signal: TimeSignal = "step_s"

    @property
    def differs(self) -> bool:
        """Whether a difference was measured."""
        return self.ci is not None and not self.ci[0] <= 1 <= self.ci[1]


def paired_speedup(config: RunConfig, precision: str, baseline: str = "fp32") -> PairedSpeedup:
    """The speed-up of a precision over the baseline in the study of this work that has the most pairs."""
    pairs = _pairs(timed_runs(config, precision), timed_runs(config, baseline))
    clock = clock_for([run for pair in pairs for run in pair])
    ratios = []
    for own, base in pairs:
        times = getattr(own, clock.signal), getattr(base, clock.signal)
        if times[0] and times[1]:
            ratios.append(math.log(times[1] / times[0]))
    if len(ratios) < FEWEST_PAIRS:
        return PairedSpeedup(len(ratios))
    spread = paired_difference(ratios)
    low, high = spread.interval(LEVEL)
    return PairedSpeedup(spread.n, math.exp(spread.mean), (math.exp(low), math.exp(high)), clock.signal)


def _pairs(own: list[TimedRow], base: list[TimedRow]) -> list[tuple[RunTiming, RunTiming]]:
    """Runs of one folder and seed, of the folder that has the most of them; the newest where a seed ran twice."""
    others = {(row.folder, row.seed): row.timing for row in base}
    mine = {(row.folder, row.seed): row.timing for row in own}
    both = [key for key in mine if key in others and not why_no_time(mine[key], others[key])]
    if not both:
        return []
    folder = Counter(key[0] for key in both).most_common(1)[0][0]
    return [(mine[key], others[key]) for key in both if key[0] == folder]


@dataclass(frozen=True)
class PrecisionAdvice:
    """`task` and `size` are keys of `hardware.advice`; `sentence` names the precision and what it rests on."""

    precision: str
    task: str
    size: str
    sentence: str


def precision_advice(
    config: RunConfig, device: Device, results: Sequence[Mapping[str, Any]], place: str = ""
) -> PrecisionAdvice | None:
    """The precision to start with for the work of `config`; None for a task that the decision tree does not know.

    `results` are the kept measurements of `bench`. A difference that a study of the same work measured here, in pairs,
    overrules the tree, also where it advises fp32; single runs do not, since each ran at a load of its own. With
    `place`, the name of the place of `device`, nothing that was measured here counts.
    """
    task = _task(config)
    if task is None:
        return None
    base = step_time(config, "fp32", place)
    size = _size(config, base.step_s if base is not None else None)
    advice = advise(Situation(device, task, size, gain(device.name, results)))
    if place:
        return PrecisionAdvice(advice.precision, task, size, together(_begin(advice.precision, place), advice.reason))
    other, speed = _other_precision(config, advice.precision)
    faster = speed.differs and speed.ratio is not None and speed.ratio > 1
    best = advice.precision
    if speed.differs:
        best = other if faster else "fp32"
    is_foretold = not speed.differs and (advice.precision != "fp32" or speed.ratio is None)
    measured = _measured(speed, other) if speed.n or advice.precision != "fp32" else ""
    return PrecisionAdvice(best, task, size, together(_begin(best), advice.reason if is_foretold else "", measured))


def _other_precision(config: RunConfig, advised: str) -> tuple[str, PairedSpeedup]:
    """The precision that is compared with fp32: the advised one, else that of 16 bits with the best measured speed."""
    names = _SIXTEEN_BITS if advised == "fp32" else (advised,)
    measured = [(name, paired_speedup(config, name)) for name in names]
    return max(measured, key=lambda each: (each[1].differs, each[1].ratio or 0.0, each[1].n))


def _begin(precision: str, place: str = "") -> Sentence:
    if place:
        return Sentence("Advised for this model at {place}: {precision}.", place=place, precision=precision)
    return Sentence("Advised for this model here: {precision}.", precision=precision)


def _measured(speed: PairedSpeedup, precision: str) -> str:
    """The measured speed-up in words, the same as Compare has it: with its interval, or that there is none."""
    if speed.ratio is None or speed.ci is None:
        return filled(_NO_PAIRS, fewest=FEWEST_PAIRS) if speed.n else L_("It was not timed with this model yet.")
    low, high = speed.ci
    digits = decimals(2, speed.ratio - 1, speed.ci)
    text = Sentence(
        "In {count} pairs of runs of the same work {precision} was {ratio}x as fast as fp32 [{low}, {high}] "
        "({level:.0f} %, {clock})",
        count=speed.n, precision=precision, ratio=f"{speed.ratio:.{digits}f}", low=f"{low:.{digits}f}",
        high=f"{high:.{digits}f}", level=100 * LEVEL,
        clock=L_("CPU time") if speed.signal == "cpu_s" else L_("time by the clock"),
    )  # fmt: skip
    if speed.differs:
        return Sentence("{measured}.", measured=text)
    return Sentence("{measured}: no difference was measured.", measured=text)


def _task(config: RunConfig) -> str | None:
    """The kind of work in the words of the advice."""
    if config.task in IMAGE_TASKS:
        return "classification"
    if config.task == "text":
        return "rnn" if _model(config) == "lstm" else "transformer"
    return _KINDS.get(config.task)


def _model(config: RunConfig) -> str:
    usual = MODELS.get(config.task, ("",))[0]
    return usual if config.model.name == "auto" else config.model.name


def _size(config: RunConfig, step_s: float | None) -> str:
    """The size class of a model by its timed FP32 step, else by its kind."""
    if step_s is not None:
        return "small" if step_s < SHORT_STEP_S else "large"
    return "small" if _model(config) in _SMALL_MODELS and config.model.size == "small" else "large"
