"""Replays a loss scaler over the gradients of a recorded run: scale, skipped steps and underflow of every step.

The update of the scale is that of torch.amp.GradScaler, in FP32. A step is skipped where a gradient times the scale
overflows the format. The gradients are those of the recorded run: that a skipped step would have changed later ones is
not simulated.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from precgui.config.sections import ScalingConfig
from precgui.events import EXPONENT_BINS
from precgui.runs.tensors.what_if import BIAS, range_of
from precgui.sentences import L_

Values = NDArray[np.float64]
MOST_POLICIES = 3  # compared side by side
_KEYS = {
    "initial": "initial_scale", "growth": "growth_factor", "backoff": "backoff_factor", "interval": "growth_interval"
}  # fmt: skip
_BEYOND_FP32 = 2.0**128 - 2.0**103  # rounds to Inf from here on


@dataclass(frozen=True)
class GradientSequence:
    """The gradients of n steps, as far as a loss scaler depends on them.

    `amax` (n,) is the largest finite magnitude before scaling, NaN where nothing at all is known; `amax_measured` (n,)
    says where it was recorded and not interpolated. `always_bad` (n,) are steps with NaN or Inf at every scale.
    `skipped_at` and `taken_at` (n,) are the scales at which the run itself skipped or took a step in `own_format`, NaN
    elsewhere. `share_below` (m, 257) is the share of the elements that are not zero and below the lower edge of each
    bin of exponents, at the steps `share_steps` (m,).
    """

    steps: NDArray[np.int64]
    amax: Values
    amax_measured: NDArray[np.bool_]
    always_bad: NDArray[np.bool_]
    skipped_at: Values
    taken_at: Values
    own_format: str
    share_steps: NDArray[np.int64]
    share_below: Values
    notes: tuple[str, ...] = ()
    certainty: str = "estimate"

    @property
    def measured(self) -> int:
        """The number of steps of which the largest gradient was recorded."""
        return int(self.amax_measured.sum())


@dataclass(frozen=True)
class Simulation:
    """One policy over n steps: the scale of each step before its update, whether it is skipped, and the share of the
    gradient elements (0 to 1, NaN where no histogram is recorded) that become zero at that scale.
    """

    policy: ScalingConfig
    steps: NDArray[np.int64]
    scale: Values
    skipped: NDArray[np.bool_]
    underflow: Values
    final_scale: float

    @property
    def first_taken(self) -> int | None:
        """The first step that is not skipped; None where all are."""
        taken = np.flatnonzero(~self.skipped)
        return int(self.steps[taken[0]]) if len(taken) else None

    @property
    def mean_underflow(self) -> float:
        """The mean share that becomes zero over the steps that are taken, NaN without any."""
        known = self.underflow[~self.skipped & np.isfinite(self.underflow)]
        return float(known.mean()) if len(known) else float("nan")


def policy_of(text: str) -> ScalingConfig:
    """A policy from `initial=65536,growth=2,backoff=0.5,interval=2000`, parts may be left out. Raises ValueError.

    A scale may be written as 2^16.
    """
    values: dict[str, float] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, number = part.partition("=")
        if name.strip() not in _KEYS:
            raise ValueError(
                f"{part} is not a setting of the scaler; give any of {', '.join(_KEYS)}, each as NAME=NUMBER"
            )
        base, power, exponent = number.strip().partition("^")
        try:
            values[_KEYS[name.strip()]] = float(base) ** float(exponent) if power else float(number)
        except (ValueError, OverflowError, ZeroDivisionError):
            raise ValueError(f"{part}: {number or 'nothing'} is not a number; write such as initial=65536") from None
    return checked_policy(values)


def checked_policy(values: dict[str, float]) -> ScalingConfig:
    """A policy within the limits of the section [scaling] of a config. Raises ValueError, one sentence."""
    from pydantic import ValidationError

    try:
        return ScalingConfig.model_validate({"mode": "dynamic", **values})
    except ValidationError as error:
        first = error.errors()[0]
        short = {long: name for name, long in _KEYS.items()}.get(str(first["loc"][0]), str(first["loc"][0]))
        raise ValueError(f"{short}={first['input']:g}: {first['msg'][:1].lower()}{first['msg'][1:]}") from None


def simulate(
    gradients: GradientSequence, policy: ScalingConfig, format_name: str = "fp16", injected: Collection[int] = ()
) -> Simulation:
    """Run a policy over the gradients; `injected` are steps whose gradients become Inf. Raises ValueError for a format
    without exponents.
    """
    limits = overflow_limits(gradients, format_name)
    if injected:
        limits = np.where(np.isin(gradients.steps, list(injected)), 0.0, limits)
    scale, skipped, final = replay(limits, policy)
    return Simulation(
        policy, gradients.steps, scale, skipped, underflow_share(gradients, scale, format_name), final
    )  # fmt: skip


def replay(limits: Values, policy: ScalingConfig) -> tuple[Values, NDArray[np.bool_], float]:
    """Scale and skips of each step, and the scale after the last one; a step is skipped at a scale >= its limit.

    As torch.amp.GradScaler: FP32, no growth beyond the largest FP32 number. `static` keeps the scale, `none` is 1.
    """
    scale = 1.0 if policy.mode == "none" else float(np.float32(policy.initial_scale))
    dynamic = policy.mode in ("auto", "dynamic")
    growth, backoff, interval = policy.growth_factor, policy.backoff_factor, policy.growth_interval
    scales, skips, run = [], [], 0
    for limit in limits.tolist():
        bad = scale >= limit
        scales.append(scale)
        skips.append(bad)
        if not dynamic:
            continue
        if bad:
            scale, run = float(np.float32(scale * backoff)), 0
        elif run + 1 == interval:
            grown = scale * growth
            scale, run = float(np.float32(grown)) if grown < _BEYOND_FP32 else scale, 0
        else:
            run += 1
    return np.array(scales, np.float64), np.array(skips, bool), scale


@np.errstate(all="ignore")
def overflow_limits(gradients: GradientSequence, format_name: str) -> Values:
    """The least scale at which each step overflows the format, shape (n,): 0 for NaN or Inf at every scale.

    Where the run itself was made in the format, the scales at which it skipped or took the step are heeded.
    """
    limit = np.where(gradients.amax > 0, range_of(format_name).overflow / gradients.amax, np.inf)
    if format_name == gradients.own_format:
        limit = np.fmin(limit, gradients.skipped_at)
        limit = np.fmax(limit, np.nextafter(gradients.taken_at, np.inf))
    return np.where(gradients.always_bad, 0.0, limit)


def underflow_share(gradients: GradientSequence, scale: Values, format_name: str) -> Values:
    """The share of the elements that become zero in each step at its scale, shape (n,), NaN without histograms.

    Counted where the step has a histogram and the scale is a power of two; else interpolated between the two
    neighbouring histograms, and within an octave.
    """
    table, known = gradients.share_below, gradients.share_steps
    if not len(known):
        return np.full(len(scale), np.nan)
    with np.errstate(divide="ignore"):
        place = np.clip(range_of(format_name).zero_below - np.log2(scale) + BIAS, 0, EXPONENT_BINS)
    low = np.minimum(place.astype(np.intp), EXPONENT_BINS - 1)
    part = place - low
    after = np.clip(np.searchsorted(known, gradients.steps), 0, len(known) - 1)
    before = np.where(known[after] > gradients.steps, np.maximum(after - 1, 0), after)
    span = known[after] - known[before]
    weight = np.where(span > 0, (gradients.steps - known[before]) / np.maximum(span, 1), 0.0)
    ends = [table[row, low] * (1 - part) + table[row, low + 1] * part for row in (before, after)]
    share: Values = ends[0] * (1 - weight) + ends[1] * weight
    return share


def synthetic_gradients(steps: int = 1000, largest: float = 2.0**-3, fall: float = 100.0) -> GradientSequence:
    """Gradients whose logarithms are normally distributed and fall by a factor over the steps, with a spike of 2^10.

    A made-up sequence to try policies on, without noise: the same each time.
    """
    number = np.arange(1, steps + 1)
    middle = np.log2(largest) - np.log2(fall) * (number - 1) / max(steps - 1, 1)
    amax = 2.0 ** (middle + 1.5 * np.sin(number * 2.399963) ** 2)  # the golden angle: no short period
    amax[np.arange(0, steps, 1) == round(0.6 * steps)] *= 2.0**10
    rows = np.arange(0, steps, max(steps // 64, 1))
    edges = np.arange(EXPONENT_BINS + 1) - BIAS
    below = 1 / (1 + np.exp(-1.702 * (edges[None, :] - (middle[rows, None] - 14)) / 4))  # logistic, near the normal one
    none = np.full(steps, np.nan)
    return GradientSequence(
        number, amax, np.zeros(steps, bool), np.zeros(steps, bool), none, none, "", number[rows], below,
        (L_("The gradients are made up: they fall 100-fold, with one spike."),),
    )  # fmt: skip
