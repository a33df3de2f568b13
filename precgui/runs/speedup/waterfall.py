"""From the ratio of peaks to the observed speed-up, factor by factor; plain arithmetic on a kept profile.

With G the time of products, C of casts, R of all other operations, I between operations and D waiting for data, of FP32
(capital) and of the run (small letter), and r the ratio of peaks, the account goes through

    r  ->  (G + R) / (G / r + R)  ->  (G + R) / (g' + R)  ->  (G + R) / (g + R)  ->  (G + R) / (g + r_)
       ->  (G + R + C) / (g + r_ + c)  ->  ... + I / ... + i  ->  ... + D / ... + d  ->  observed

where g' is g without what padding would save. Each factor is the ratio of two neighbours, so that all of them multiply
to the observed speed-up; the last one is what the profile does not explain.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from precgui.runs.speedup.factor_texts import TEXTS, times_of, total_s
from precgui.runs.speedup.slower_modules import slower_modules
from precgui.runs.speedup.trials import Trial, trial_of
from precgui.runs.verdict.paired import paired_difference
from precgui.sentences import L_, Sentence, filled, recased, together

_BUSY = L_("Other programs were busy: this one had the CPU for {share:.0%} of its steps, so times are {clock}")
_BUSY_WALL = L_(
    "Other programs were busy: this one had the CPU for {share:.0%} of its steps, so wall times are not those of the "
    "run"
)
UNEXPLAINED_LIMIT = 0.05
_LEAST_ROUNDS = 3
_QUIET = 0.9  # share of the time of a step that its thread has the CPU when no other process competes
_CAUSE = 0.03  # a factor that loses less than this share is no cause
BOUNDS = ("peak", "amdahl")  # they say what is possible, the others what is lost of it


@dataclass(frozen=True, slots=True)
class Factor:
    """One factor of the account; `after` is the speed-up with all factors up to it. `cost` is the share of the run's
    step that it takes beyond the ideal (0 for a bound that is no loss), `settings` are config paths with values that
    change it, `trial` how they did beside those of the run."""

    key: str
    title: str
    value: float
    after: float
    detail: str = ""
    fix: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    cost: float = 0.0
    trial: Trial | None = None

    @property
    def remedy(self) -> str:
        """The fix, and what its settings gained where they were tried."""
        return together(self.fix, self.trial.in_words) if self.fix and self.trial is not None else self.fix

    @property
    def offered(self) -> Mapping[str, str]:
        """The settings to try, unless they were measured here and are no certain gain."""
        return self.settings if self.fix and (self.trial is None or self.trial.is_gain) else {}


@dataclass(frozen=True, slots=True)
class Waterfall:
    """Factors in order. `spread` is the range of the middle half of the rounds' speed-ups, as a share of the observed
    one, `interval` its 95 % by Student's t on the logarithms of the paired rounds; None of fewer than three.

    `uncertainty` is the share by which the unexplained part may be off. `caveat` says that the machine was busy.
    """

    factors: tuple[Factor, ...]
    observed: float
    modelled: float
    spread: float
    notes: tuple[str, ...] = ()
    interval: tuple[float, float] | None = None
    uncertainty: float = 0.0
    caveat: str = ""

    @property
    def speed_text(self) -> str:
        """The observed speed-up with its interval, such as "1.31 [1.28, 1.34]"."""
        if not self.interval:
            return f"{self.observed:.2f}"
        return f"{self.observed:.2f} [{self.interval[0]:.2f}, {self.interval[1]:.2f}]"

    @property
    def closing(self) -> str:
        """Whether the factors close, in a sentence."""
        if not self.closes:
            return Sentence(
                "Unexplained {share:+.1%}: the account does not close; profile again on a quiet machine or for longer.",
                share=self.unexplained,
            )
        if self.uncertainty > UNEXPLAINED_LIMIT:
            return Sentence(
                "Unexplained {share:+.1%}, but pairs of plain and profiled steps leave ±{open:.0%} open: profile again "
                "on a quiet machine or for longer.",
                share=self.unexplained, open=self.uncertainty,
            )  # fmt: skip
        return Sentence(
            "Unexplained {share:+.1%} (±{open:.1%}), so the account closes.",
            share=self.unexplained, open=self.uncertainty,
        )  # fmt: skip

    @property
    def unexplained(self) -> float:
        """observed / modelled - 1."""
        return self.observed / self.modelled - 1

    @property
    def closes(self) -> bool:
        """Whether what is not explained is within the limit."""
        return abs(self.unexplained) <= UNEXPLAINED_LIMIT

    def causes(self) -> list[Factor]:
        """Factors that take more than a few percent of the step, most first; Amdahl's bound comes last, as a limit."""
        costly = sorted((f for f in self.factors if f.cost > _CAUSE), key=lambda f: -f.cost)
        return costly + [f for f in self.factors if f.key == "amdahl" and f.value < 1 - _CAUSE]


_LEAST_PART = 0.01  # of the step, from which a part is named
_PART_RANGES = {
    "products": L_("products {least:.0%} to {most:.0%}"),
    "casts": L_("casts {least:.0%} to {most:.0%}"),
    "others": L_("other operations {least:.0%} to {most:.0%}"),
    "gaps": L_("between operations and launches {least:.0%} to {most:.0%}"),
}


def waterfall(profile: Mapping[str, Any]) -> Waterfall:
    """The account of a profile (`precgui profile --json`). Raises KeyError or TypeError for anything else."""
    fp32, run = profile["fp32"], profile["run"]
    ratio = profile["peak"]["ratio"]
    r = float(ratio) if ratio else 1.0
    big, small = times_of(fp32), times_of(run)
    saved = min(sum(float(row["gain_s"]) for row in profile["padding"]), small["products"] * 0.99)
    reached = _reached(big, small, r, saved)
    observed = total_s(fp32) / max(total_s(run), 1e-12)
    costs, factors, before = _costs(big, small, r, saved), [], 1.0
    for key, value in reached:
        factors.append(_factor(profile, key, value / before, value, costs.get(key, 0.0)))
        before = value
    factors.append(_factor(profile, "unexplained", observed / before, observed, 0.0))
    rounds = [float(value) for value in profile["rounds"]]
    quarters = statistics.quantiles(rounds, n=4) if len(rounds) > 1 else [observed] * 3
    spread = (quarters[2] - quarters[0]) / observed
    unknown = L_("The ratio of peaks is not measured: {reason}; 1 is taken.")
    notes = [] if ratio else [filled(unknown, reason=profile["peak"]["note"])]
    uncertainty = math.hypot(*(float(side.get("uncertainty") or 0.0) for side in (fp32, run)))
    return Waterfall(
        tuple(factors), observed, before, spread, (*notes, *profile.get("notes", ())), _interval(rounds, observed),
        uncertainty, _caveat(profile),
    )  # fmt: skip


def repeated_sentence(profile: Mapping[str, Any]) -> str:
    """How far the parts of the step differ between accounts that were repeated; empty where there was one."""
    repeated = profile["run"].get("repeated") or {}
    ranges = [
        filled(_PART_RANGES[name], least=min(shares), most=max(shares))
        for name, shares in repeated.items()
        if name in _PART_RANGES and len(shares) > 1 and max(shares) > _LEAST_PART
    ]
    count = max((len(shares) for shares in repeated.values()), default=0)
    if not ranges:
        return ""
    return Sentence(
        "Of the step, in {count} accounts one after the other: {ranges}.",
        count=count, ranges=together(*ranges, between=", "),
    )  # fmt: skip


def _interval(rounds: Sequence[float], observed: float) -> tuple[float, float] | None:
    """95 % around the observed speed-up, from its paired rounds."""
    if len(rounds) < _LEAST_ROUNDS or min(rounds) <= 0:
        return None
    low, high = paired_difference([math.log(value) for value in rounds]).interval(0.95)
    return min(math.exp(low), observed), max(math.exp(high), observed)


def _caveat(profile: Mapping[str, Any]) -> str:
    """A caveat for a machine on which other programs ran; empty for a quiet one."""
    share = profile.get("cpu_share")
    if not isinstance(share, int | float) or share >= _QUIET:
        return ""
    clock = str(profile.get("clock", "wall time"))
    return filled(_BUSY_WALL if clock == "wall time" else _BUSY, share=share, clock=clock)


def _reached(big: Mapping[str, float], small: Mapping[str, float], r: float, saved: float) -> list[tuple[str, float]]:
    """The speed-up after each factor."""
    whole = big["products"] + big["others"]
    times = [
        ("peak", whole, whole / r),
        ("amdahl", whole, big["products"] / r + big["others"]),
        ("products", whole, small["products"] - saved + big["others"]),
        ("alignment", whole, small["products"] + big["others"]),
        ("others", whole, small["products"] + small["others"]),
    ]
    slow, fast = whole, small["products"] + small["others"]
    for key in ("casts", "gaps", "data"):
        slow, fast = slow + big[key], fast + small[key]
        times.append((key, slow, fast))
    return [(key, a / max(b, 1e-12)) for key, a, b in times]


def _costs(big: Mapping[str, float], small: Mapping[str, float], r: float, saved: float) -> dict[str, float]:
    """Shares of the run's step that would not be there if products gained the ratio of peaks, other operations took no
    longer than in FP32, and nothing was converted, started or waited for.

    Where the format is slower than FP32 (r < 1), all that products take beyond their time in FP32 is the cost of that.
    """
    whole = max(sum(small.values()), 1e-12)
    beyond = small["products"] - saved - big["products"] / max(r, 1.0)
    seconds = {
        "peak": beyond if r < 1 else 0.0, "products": 0.0 if r < 1 else beyond, "alignment": saved,
        "others": small["others"] - big["others"], "casts": small["casts"], "gaps": small["gaps"],
        "data": small["data"],
    }  # fmt: skip
    return {key: max(0.0, value) / whole for key, value in seconds.items()}


def _factor(profile: Mapping[str, Any], key: str, value: float, after: float, cost: float) -> Factor:
    title, describe, fix = TEXTS[key]
    mendable = cost > _CAUSE or (key in ("amdahl", "unexplained") and value < 1 - _CAUSE)
    remedy, settings = fix(profile) if mendable else "", _settings(profile, key)
    trial = trial_of(profile, settings) if settings else None
    return Factor(key, title, value, after, describe(profile), remedy, settings, cost, trial)


def _settings(profile: Mapping[str, Any], key: str) -> dict[str, str]:
    settings = profile["settings"]
    results: dict[str, str] = {}
    slower = slower_modules(profile) if key == "products" else None
    if slower is not None:
        kept = settings.get("keep_fp32", ())  # files of before have none
        results["precision_options.keep_fp32"] = ",".join(dict.fromkeys((*kept, *slower.patterns)))
    elif key in ("gaps", "products"):
        results["data.batch_size"] = str(4 * int(settings["batch_size"]))
    if key == "peak":
        results["precision"] = "fp32"
    if key == "data":
        results["data.workers"] = str(max(2, 2 * int(settings["workers"])))
    if key in ("casts", "others", "amdahl") and not settings["compile"]:
        results["train.compile"] = "true"
    return results


def verdict(account: Waterfall, precision: str) -> str:
    """One sentence: the observed speed-up, and what loses most of the possible one."""
    text = _first_sentence(account, precision)
    return together(text, Sentence("{caveat}.", caveat=account.caveat)) if account.caveat else text


def _first_sentence(account: Waterfall, precision: str) -> Sentence:
    causes = account.causes()
    possible = next((f.after for f in account.factors if f.key == "amdahl"), account.observed)
    first = Sentence(
        "{precision} runs {times} times as fast as FP32 here", precision=precision, times=account.speed_text
    )
    if causes and causes[0].key == "peak":
        return Sentence(
            "{speed}; most is lost to: ratio of peaks, since its products are slower than those of FP32 on this "
            "device, {cost:.0%} of the step.",
            speed=first, cost=causes[0].cost,
        )  # fmt: skip
    if not causes or causes[0].key in BOUNDS:
        return Sentence(
            "{speed}; its share of products allows {possible:.2f}, and nothing else loses more than {least:.0%}.",
            speed=first, possible=possible, least=_CAUSE,
        )  # fmt: skip
    return Sentence(
        "{speed}, of {possible:.2f} that its share of products allows; most is lost to: {cause}, {cost:.0%} of the "
        "step.",
        speed=first, possible=possible, cause=recased(causes[0].title, "lower"), cost=causes[0].cost,
    )  # fmt: skip


def rows(account: Waterfall) -> Sequence[dict[str, Any]]:
    """Plain values, with the keys of `precgui profile --json` under `waterfall`."""
    return [
        {"factor": f.key, "title": f.title, "value": f.value, "after": f.after, "cost": f.cost,
         "detail": f.detail, "fix": f.fix, "settings": dict(f.settings),
         "trial": asdict(f.trial) if f.trial is not None else None}
        for f in account.factors
    ]  # fmt: skip
