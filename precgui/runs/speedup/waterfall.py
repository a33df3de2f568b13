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

from precgui.runs.speedup.slower_modules import slower_modules
from precgui.runs.speedup.trials import Trial, trial_of
from precgui.runs.verdict.paired import paired_difference

_BUSY = "Other programs were busy: this one had the CPU for {share:.0%} of its steps, so times are {clock}"
_BUSY_WALL = (
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
        return f"{self.fix} {self.trial.in_words}" if self.fix and self.trial is not None else self.fix

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
            return (
                f"Unexplained {self.unexplained:+.1%}: the account does not close; profile again on a quiet machine or "
                "for longer."
            )
        if self.uncertainty > UNEXPLAINED_LIMIT:
            return (
                f"Unexplained {self.unexplained:+.1%}, but pairs of plain and profiled steps leave "
                f"±{self.uncertainty:.0%} open: profile again on a quiet machine or for longer."
            )
        return f"Unexplained {self.unexplained:+.1%} (±{self.uncertainty:.1%}), so the account closes."

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
_PART_WORDS = {
    "products": "products", "casts": "casts", "others": "other operations", "gaps": "between operations and launches",
}  # fmt: skip


def waterfall(profile: Mapping[str, Any]) -> Waterfall:
    """The account of a profile (`precgui profile --json`). Raises KeyError or TypeError for anything else."""
    fp32, run = profile["fp32"], profile["run"]
    ratio = profile["peak"]["ratio"]
    r = float(ratio) if ratio else 1.0
    big, small = _times(fp32), _times(run)
    saved = min(sum(float(row["gain_s"]) for row in profile["padding"]), small["products"] * 0.99)
    reached = _reached(big, small, r, saved)
    observed = _total(fp32) / max(_total(run), 1e-12)
    costs, factors, before = _costs(big, small, r, saved), [], 1.0
    for key, value in reached:
        factors.append(_factor(profile, key, value / before, value, costs.get(key, 0.0)))
        before = value
    factors.append(_factor(profile, "unexplained", observed / before, observed, 0.0))
    rounds = [float(value) for value in profile["rounds"]]
    quarters = statistics.quantiles(rounds, n=4) if len(rounds) > 1 else [observed] * 3
    spread = (quarters[2] - quarters[0]) / observed
    notes = [] if ratio else [f"The ratio of peaks is not measured: {profile['peak']['note']}; 1 is taken."]
    uncertainty = math.hypot(*(float(side.get("uncertainty") or 0.0) for side in (fp32, run)))
    return Waterfall(
        tuple(factors), observed, before, spread, (*notes, *profile.get("notes", ())), _interval(rounds, observed),
        uncertainty, _caveat(profile),
    )  # fmt: skip


def repeated_sentence(profile: Mapping[str, Any]) -> str:
    """How far the parts of the step differ between accounts that were repeated; empty where there was one."""
    repeated = profile["run"].get("repeated") or {}
    ranges = [
        f"{_PART_WORDS[name]} {min(shares):.0%} to {max(shares):.0%}"
        for name, shares in repeated.items()
        if name in _PART_WORDS and len(shares) > 1 and max(shares) > _LEAST_PART
    ]
    count = max((len(shares) for shares in repeated.values()), default=0)
    if not ranges:
        return ""
    return f"Of the step, in {count} accounts one after the other: {', '.join(ranges)}."


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
    return (_BUSY_WALL if clock == "wall time" else _BUSY).format(share=share, clock=clock)


def _times(side: Mapping[str, Any]) -> dict[str, float]:
    return {
        "products": float(side["products_s"]), "casts": float(side["casts_s"]), "others": float(side["others_s"]),
        "gaps": float(side["gaps_s"]), "data": float(side["data_s"]),
    }  # fmt: skip


def _total(side: Mapping[str, Any]) -> float:
    return float(side["step_s"]) + float(side["data_s"])


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
    title, describe, fix = _TEXTS[key]
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


def _peak(profile: Mapping[str, Any]) -> str:
    peak = profile["peak"]
    if peak["ratio"] is None:
        return f"Not measured: {peak['note']}."
    size = peak["size"]
    if peak["ratio"] < 1:
        return (
            f"This device multiplies two {size} x {size} matrices in {peak['format']} at {peak['ratio']:.2g} times the "
            "rate of FP32, so products cannot become faster by the format."
        )
    return f"A product of two {size} x {size} matrices in {peak['format']} against FP32, measured on this device."


def _amdahl(profile: Mapping[str, Any]) -> str:
    big = _times(profile["fp32"])
    share = big["products"] / max(big["products"] + big["others"], 1e-12)
    return f"{share:.0%} of the time of operations in FP32 is products; only those become faster by the format."


def _products(profile: Mapping[str, Any]) -> str:
    r = profile["peak"]["ratio"] or 1.0
    rows = sorted(profile["layers"], key=lambda row: row["fp32_s"] / r - row["run_s"])
    named = [_layer(row) for row in rows[:3] if row["run_s"] > 1.1 * row["fp32_s"] / r]
    if not named:
        return "All products gain as much as the large square one."
    return f"Products that gain less than the large square one: {'; '.join(named)}."


def _layer(row: Mapping[str, Any]) -> str:
    gain = row["fp32_s"] / max(row["run_s"], 1e-12)
    sizes = " x ".join(str(size) for size in row["sizes"][0][1:]) if row["sizes"] else row["kind"]
    return f"{row['module'] or '(model)'} {row['phase']} ({sizes}) {gain:.2f} times"


def _alignment(profile: Mapping[str, Any]) -> str:
    rows = profile["padding"]
    if not rows:
        return "No large product has sizes that are no multiple of 8."
    reported = [f"{row['module'] or '(model)'} {row['phase']}: {_padded(row)} {_gained(row)}" for row in rows]
    return f"Tried on this device: {'; '.join(reported)}."


def _padded(row: Mapping[str, Any]) -> str:
    pairs = [f"{a} to {b}" for a, b in zip(row["sizes"], row["padded"], strict=True) if a != b]
    return ", ".join(pairs)


def _gained(row: Mapping[str, Any]) -> str:
    return f"saves {row['gain']:.0%} of its time" if row["gain"] > 0.01 else "saves nothing"


def _others(profile: Mapping[str, Any]) -> str:
    big, small = profile["fp32"]["kinds"], profile["run"]["kinds"]
    names = [k for k in small if k not in ("product", "convolution", "attention", "recurrent", "cast")]
    largest = sorted(names, key=lambda k: -(small[k] - big.get(k, 0.0)))[:2]
    text = ", ".join(f"{k} {_ms(big.get(k, 0.0))} to {_ms(small[k])}" for k in largest)
    return f"Operations without products, FP32 to the run: {text}." if text else "No other operations."


def _casts(profile: Mapping[str, Any]) -> str:
    total = _total(profile["run"])
    rows = [row for row in profile["operations"] if row["kind"] == "cast" and row["module"]]
    share = profile["run"]["casts_s"] / max(total, 1e-12)
    where = ", ".join(dict.fromkeys(f"{row['module']} ({row['format']})" for row in rows[:3]))
    return f"{share:.1%} of the step converts between formats{': ' + where if where else ''}."


def _gaps(profile: Mapping[str, Any]) -> str:
    fp32, run = profile["fp32"], profile["run"]
    shares = [side["gaps_s"] / max(_total(side), 1e-12) for side in (fp32, run)]
    return (
        f"{shares[1]:.0%} of the step (FP32: {shares[0]:.0%}) passes between operations or in starting them: "
        f"{run['calls']} calls a step."
    )


def _data(profile: Mapping[str, Any]) -> str:
    shares = [side["data_s"] / max(_total(side), 1e-12) for side in (profile["fp32"], profile["run"])]
    return f"{shares[1]:.0%} of the step (FP32: {shares[0]:.0%}) waits for the next batch."


def _unexplained(profile: Mapping[str, Any]) -> str:
    return "What the profiled step and the steps without the profiler do not agree on."


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def _say(sentence: str) -> Any:
    return lambda _: sentence


def _slow_fix(profile: Mapping[str, Any]) -> str:
    return f"Train in fp32 here, or on a device with fast products in {profile['peak']['format']}."


def _pad_fix(profile: Mapping[str, Any]) -> str:
    row = max(profile["padding"], key=lambda row: row["gain_s"], default=None)
    if row is None:
        return ""
    return f"Pad {row['module'] or 'this layer'}: {_padded(row)}; the added rows are never chosen."


def _batch_fix(profile: Mapping[str, Any]) -> str:
    batch = profile["settings"]["batch_size"]
    if profile["settings"]["compile"]:
        return f"Give the device more work at once: a batch of {4 * batch} instead of {batch}."
    return f"Give the device more work at once: a batch of {4 * batch} instead of {batch}, or torch.compile."


def _products_fix(profile: Mapping[str, Any]) -> str:
    slower = slower_modules(profile)
    return slower.remedy(profile["peak"]["format"]) if slower is not None else _batch_fix(profile)


def _fuse_fix(profile: Mapping[str, Any]) -> str:
    if profile["settings"]["compile"]:
        return "The step is compiled already: a wider model has a larger share of products."
    return "Fuse what is not a product: torch.compile, channels_last, a fused optimizer; or a wider model."


def _others_fix(profile: Mapping[str, Any]) -> str:
    if profile["settings"]["compile"]:
        return "Leave these operations in the format that is fast for them."
    return "Leave these operations in the format that is fast for them, or fuse them with torch.compile."


def _casts_fix(profile: Mapping[str, Any]) -> str:
    if profile["settings"]["compile"]:
        return "Convert once, outside of loops, or store weights in the format (bf16-pure, master weights)."
    return "Convert once, outside of loops; store weights in the format (bf16-pure, master weights) or compile."


def _data_fix(profile: Mapping[str, Any]) -> str:
    return "Load in the background: more loader processes, pinned memory on a GPU, decoded data kept."


_TEXTS: dict[str, tuple[str, Any, Any]] = {
    "peak": ("Ratio of peaks", _peak, _slow_fix),
    "amdahl": ("Share of products", _amdahl, _fuse_fix),
    "products": ("Products below the peak", _products, _products_fix),
    "alignment": ("Sizes that do not fit", _alignment, _pad_fix),
    "others": ("Other operations", _others, _others_fix),
    "casts": ("Casts", _casts, _casts_fix),
    "gaps": ("Launches and gaps", _gaps, _batch_fix),
    "data": ("Waiting for data", _data, _data_fix),
    "unexplained": ("Unexplained", _unexplained, _say("Profile again on a quiet machine.")),
}  # fmt: skip


def verdict(account: Waterfall, precision: str) -> str:
    """One sentence: the observed speed-up, and what loses most of the possible one."""
    causes = account.causes()
    possible = next((f.after for f in account.factors if f.key == "amdahl"), account.observed)
    first = f"{precision} runs {account.speed_text} times as fast as FP32 here"
    if causes and causes[0].key == "peak":
        text = (
            f"{first}; most is lost to: ratio of peaks, since its products are slower than those of FP32 on this "
            f"device, {causes[0].cost:.0%} of the step."
        )
    elif not causes or causes[0].key in BOUNDS:
        text = f"{first}; its share of products allows {possible:.2f}, and nothing else loses more than {_CAUSE:.0%}."
    else:
        text = (
            f"{first}, of {possible:.2f} that its share of products allows; most is lost to: "
            f"{causes[0].title.lower()}, {causes[0].cost:.0%} of the step."
        )
    return f"{text} {account.caveat}." if account.caveat else text


def rows(account: Waterfall) -> Sequence[dict[str, Any]]:
    """Plain values, with the keys of `precgui profile --json` under `waterfall`."""
    return [
        {"factor": f.key, "title": f.title, "value": f.value, "after": f.after, "cost": f.cost,
         "detail": f.detail, "fix": f.fix, "settings": dict(f.settings),
         "trial": asdict(f.trial) if f.trial is not None else None}
        for f in account.factors
    ]  # fmt: skip
