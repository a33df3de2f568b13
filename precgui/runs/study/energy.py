"""The energy of the groups of a study: measured, expected, above idle, by power limit, and what it costs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean

from precgui.errors import SentenceError
from precgui.runs.study.guide_claims import guide_claims
from precgui.runs.study.result import BASELINE, LEVEL, Group, Study
from precgui.runs.study.run_figures import RunFigures
from precgui.runs.verdict.paired import paired_difference
from precgui.sentences import L_, Sentence

JOULES_PER_KWH = 3.6e6
LIMIT = "power.limit_w"
_FEWEST = 3  # pairs, for an interval
Interval = tuple[float, float]


class PriceError(SentenceError):
    """No price."""


@dataclass(frozen=True)
class EnergyPrice:
    """The price of a kilowatt-hour; `currency` is any word, also none."""

    per_kwh: float
    currency: str = ""

    def of(self, joules: float | None) -> float | None:
        """The costs of so many joules."""
        return None if joules is None else joules / JOULES_PER_KWH * self.per_kwh

    def __str__(self) -> str:
        return f"{self.per_kwh:g} {self.currency}".strip()


def parse_price(text: str) -> EnergyPrice:
    """A price of a kilowatt-hour such as `0.30 EUR` or `0.12`. Raises PriceError."""
    result = re.fullmatch(r"\s*(\d{1,9}(?:[.,]\d{1,9})?)\s*([^\d\s][^\d\n]{0,11})?\s*", text)
    if result is None:
        raise PriceError(
            Sentence(
                "{price} is no price of a kilowatt-hour; write one such as 0.30 EUR", price=repr(text.strip()[:40])
            )
        )
    return EnergyPrice(float(result[1].replace(",", ".")), (result[2] or "").strip())


@dataclass(frozen=True)
class LimitRatio:
    """A group beside the same precision at the largest power limit, in pairs of one seed; below 1 is less."""

    group: str
    energy: float
    energy_ci95: Interval | None
    time: float | None
    time_ci95: Interval | None


@dataclass(frozen=True)
class GroupEnergy:
    """Means over the runs that came through; None stands for "not measured", and `why` has the reason by field.

    `saved` is the measured share of the baseline's energy, `expected_saved` that which the speed-up alone would save at
    the baseline's power, `guides` what guides say of the precision. `to_loss_j` is the median until the loss that every
    run of the baseline reached. Costs are in the currency of the price.
    """

    group: str
    precision: str
    limit_w: float | None
    idle_w: float | None
    power_w: float | None
    joules_per_sample: float | None
    net_joules_per_sample: float | None
    saved: float | None
    saved_ci95: Interval | None
    expected_saved: float | None
    guides: tuple[str, ...]
    run_j: float | None
    to_loss_j: float | None
    run_cost: float | None
    to_loss_cost: float | None
    beside_limit: LimitRatio | None
    why: Mapping[str, str] = field(default_factory=dict)


def study_energy(study: Study, runs: Sequence[RunFigures], price: EnergyPrice | None = None) -> list[GroupEnergy]:
    """The energy of each group, in the order of the study."""
    of = {g.group: [run for run in runs if run.group == g.group and run.kind == "run"] for g in study.groups}
    return [_of_group(group, of, study, price) for group in study.groups]


def _of_group(
    group: Group, of: Mapping[str, Sequence[RunFigures]], study: Study, price: EnergyPrice | None
) -> GroupEnergy:
    runs = [run for run in of[group.group] if run.came_through]
    no_energy = next(
        (run.why_no_energy for run in runs if run.why_no_energy), "" if runs else L_("no run came through")
    )
    no_idle = no_energy or next((run.why_no_idle for run in runs if run.why_no_idle), "")
    run_j, idle_w = _mean([run.energy_j for run in runs]), _mean([run.idle_w for run in runs])
    energy, steps = group.metrics["joules_per_sample"], group.metrics["step_s"]
    is_baseline = group.baseline == group.group
    saved = None if energy.ratio is None else 1 - energy.ratio
    ends = energy.ratio_ci95
    reached = group.to_loss
    to_loss_j = None if reached is None else reached.energy_j
    no_loss = no_energy or (L_("no loss is common to the groups") if reached is None else reached.in_words)
    why = {
        "idle_w": no_idle, "power_w": no_energy, "joules_per_sample": no_energy, "net_joules_per_sample": no_idle,
        "saved": no_energy or energy.withheld, "expected_saved": steps.withheld, "run_j": no_energy,
        "to_loss_j": no_loss, "run_cost": no_energy, "to_loss_cost": no_loss,
    }  # fmt: skip
    figures = {
        "idle_w": idle_w, "power_w": group.metrics["power_w"].mean, "joules_per_sample": energy.mean,
        "net_joules_per_sample": group.metrics["net_joules_per_sample"].mean, "saved": saved,
        "expected_saved": None if steps.ratio is None else 1 - steps.ratio, "run_j": run_j, "to_loss_j": to_loss_j,
        "run_cost": price.of(run_j) if price else None, "to_loss_cost": price.of(to_loss_j) if price else None,
    }  # fmt: skip
    if is_baseline:
        why |= dict.fromkeys(("saved", "expected_saved"), BASELINE)
    if price is None:
        why |= dict.fromkeys(("run_cost", "to_loss_cost"), L_("no price is set"))
    return GroupEnergy(
        group=group.group, precision=group.precision, limit_w=_limit(of[group.group]), guides=_expected(group),
        saved_ci95=None if ends is None else (1 - ends[1], 1 - ends[0]),
        beside_limit=_beside_limit(group, of, study),
        why={key: why[key] for key, own in figures.items() if own is None},
        **figures,
    )  # fmt: skip


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return mean(there) if there and len(there) == len(values) else None


def _limit(runs: Sequence[RunFigures]) -> float | None:
    limits = {run.settings.get(LIMIT) for run in runs}
    limit = next(iter(limits)) if len(limits) == 1 else None
    return float(limit) if isinstance(limit, int | float) else None


def _expected(group: Group) -> tuple[str, ...]:
    """The ranges that guides and papers name for the precision."""
    if group.baseline == group.group:
        return ()
    claims = [c for c in guide_claims() if c.quantity == "energy_saved" and group.precision in c.precisions]
    return tuple(_range(claim.low, claim.high) for claim in claims)


def _range(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        more = Sentence("more than {share:g} %", share=100 * (low or 0))
        return more if low is not None else Sentence("less than {share:g} %", share=100 * (high or 0))
    return Sentence("{low:g} to {high:g} %", low=100 * low, high=100 * high)


def _beside_limit(group: Group, of: Mapping[str, Sequence[RunFigures]], study: Study) -> LimitRatio | None:
    """The ratios to the group that differs in the power limit alone and has the largest; None for that one itself."""
    alike = [name for name, runs in of.items() if runs and _other_settings(runs[0]) == _other_settings_of(of, group)]
    largest = max(alike, key=lambda name: math.inf if _limit(of[name]) is None else _limit(of[name]) or 0.0, default="")
    if len(alike) < 2 or largest == group.group:
        return None
    energy, time = (_ratio(study, group.group, largest, key) for key in ("joules_per_sample", "step_s"))
    if energy is None:
        return None
    return LimitRatio(largest, *energy, *(time or (None, None)))


def _other_settings(run: RunFigures) -> tuple[str, str]:
    return run.precision, repr(sorted((key, repr(value)) for key, value in run.settings.items() if key != LIMIT))


def _other_settings_of(of: Mapping[str, Sequence[RunFigures]], group: Group) -> tuple[str, str] | None:
    runs = of[group.group]
    return _other_settings(runs[0]) if runs else None


def _ratio(study: Study, group: str, base: str, figure: str) -> tuple[float, Interval | None] | None:
    own, other = study.paired[group].get(figure, {}), study.paired[base].get(figure, {})
    logs = [math.log(own[seed] / other[seed]) for seed in own if other.get(seed, 0) > 0 and own[seed] > 0]
    if not logs:
        return None
    if len(logs) < _FEWEST:
        return math.exp(mean(logs)), None
    low, high = paired_difference(logs).interval(LEVEL)
    return math.exp(mean(logs)), (math.exp(low), math.exp(high))
