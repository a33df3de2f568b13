"""Figures that several rules need: runs of skipped steps, growth of the loss, size of the updates, formats in use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from precgui.config.precision_traits import TRAITS
from precgui.runs.diagnosis.findings import REPLAY
from precgui.runs.diagnosis.measurements import Measurements, Values
from precgui.runs.diagnosis.nan_aware import largest, nonzero
from precgui.runs.recorded_facts import rows_of
from precgui.sentences import Sentence

FP16_LARGEST = 65504.0
FP16_SMALLEST = 2.0**-24
_MOST_OF_WEIGHTS = 0.05  # that an update at a rate to try may change
_USUAL_UPDATE = 1e-3  # of the weights, in a step
_LEAST_RATE = 1e-5  # of the one that was set
ALIKE = 0.02  # relative deviation of norms that were clipped to the same length
_MOSTLY = 0.8  # of the steps
_KNOWN = ("adam", "rmsprop", "lion", "adagrad", "lamb")  # optimizers that divide by the size of the gradients
_VARIED = 2.0  # quotient of large and small gradients
# Precisions whose range is that of FP16.
NARROW = tuple(name for name, row in TRAITS.items() if row.operand == "fp16")
_SIGNED_TASKS = ("gan", "cartpole")  # their losses are no measure of progress


@dataclass(frozen=True)
class Streak:
    """Steps skipped one after another; places in the signals, `last` included."""

    first: int
    last: int

    @property
    def length(self) -> int:
        return self.last - self.first + 1


FOREIGN = "(parameter "  # begins the name of a parameter of an optimizer that is not the model's


def streaks(m: Measurements) -> list[Streak]:
    """All runs of skipped steps."""
    edges = np.diff(np.concatenate(([0], m.skipped.astype(np.int8), [0])))
    return [
        Streak(int(a), int(b) - 1) for a, b in zip(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1), strict=True)
    ]


def rolling_median(values: Values, width: int) -> Values:
    """The median of the last `width` values at each place; fewer at the beginning. NaN are left out."""
    padded = np.concatenate((np.full(width - 1, np.nan), values))
    with np.errstate(all="ignore"):
        windows = np.lib.stride_tricks.sliding_window_view(padded, width)
        order = np.sort(windows, 1)  # NaN come last
    known = np.isfinite(windows).sum(1)
    middle: Values = order[np.arange(len(values)), np.maximum(known - 1, 0) // 2]
    return middle


@dataclass(frozen=True)
class Growth:
    """Loss and gradient norm up to a step: medians of the first steps, the least, and the last ones."""

    first_loss: float
    least_loss: float
    last_loss: float
    first_norm: float
    last_norm: float

    @property
    def loss_ratio(self) -> float:
        return self.last_loss / max(self.least_loss, 1e-30)

    @property
    def norm_ratio(self) -> float:
        return self.last_norm / max(self.first_norm, 1e-30)


@np.errstate(all="ignore")
def growth(m: Measurements, end: int) -> Growth | None:
    """The growth over the steps before place `end` that updated the weights; None below two with a finite loss."""
    taken = np.flatnonzero(m.finite_loss[:end] & ~m.skipped[:end])
    if len(taken) < 2:
        return None
    loss, norm = m.loss[taken], m.grad_norm[taken]
    norm = norm[np.isfinite(norm)]
    width = int(np.clip(len(loss) // 20, 1, 25))
    smooth = rolling_median(loss, width)
    edge = max(min(3, len(norm) // 2), 1)
    first = float(np.median(loss[:width]))
    return Growth(
        float(loss[0]) if first > 3 * loss[0] > 0 else first,  # the explosion may start in the first step
        float(np.min(smooth)),
        float(np.median(loss[-width:])),
        float(np.median(norm[:edge])) if len(norm) else np.nan,
        float(np.median(norm[-edge:])) if len(norm) else np.nan,
    )


@np.errstate(all="ignore")
def no_measure(m: Measurements) -> bool:
    """Losses that may rise in a healthy run: of adversaries and policies, or of changing sign."""
    return m.config.task in _SIGNED_TASKS or bool((m.loss[m.finite_loss] < 0).any())


def has_fallen(m: Measurements) -> bool:
    """Whether the loss is one that training lowers, and has fallen by a fifth."""
    fallen = growth(m, m.n)
    return fallen is not None and fallen.last_loss < 0.8 * fallen.first_loss and not no_measure(m)


def update_ratios(m: Measurements) -> tuple[Values, Values]:
    """Steps, and the L2 norm of all updates over that of all weights (of the tensors that were updated).

    NaN where all weights are zero: no update is large or small beside them.
    """
    updates, weights = m.table("update"), m.table("weight")
    if updates is None or weights is None:
        return np.empty(0), np.empty(0)
    known = {name: place for place, name in enumerate(weights.names)}
    pairs = [(place, known[name]) for place, name in enumerate(updates.names) if name in known]
    if not pairs:
        return np.empty(0), np.empty(0)
    size = updates.stat("l2")[:, [a for a, _ in pairs]]
    held = weights.stat("l2")[:, [b for _, b in pairs]]
    at = np.clip(np.searchsorted(weights.steps, updates.steps, side="right") - 1, 0, None)
    ratio = np.sqrt(np.nansum(size**2, 1) / nonzero(np.nansum(held[at] ** 2, 1)))
    return updates.steps.astype(np.float64), ratio


def narrow_range(m: Measurements) -> bool:
    """Whether activations and their gradients have the range of FP16: by the config, or by the digits recorded.

    Of a run with a schedule: in any of its phases.
    """
    return any(_is_narrow(part) for part in m.parts)


def _is_narrow(m: Measurements) -> bool:
    return m.precision in NARROW or bool(fp16_tensors(m, "activation") or fp16_tensors(m, "activation_gradient"))


def fp16_tensors(m: Measurements, kind: str) -> tuple[str, ...]:
    """The tensors of a kind that are in FP16 by the digits of their extremes."""
    table = m.table(kind)
    if table is None:
        return ()
    return tuple(name for name, result in zip(table.names, table.formats, strict=True) if result == "fp16")


def storage(m: Measurements) -> str:
    """The format in which most weights are stored: `bf16`, `fp16`, `fp32`, or empty where it is not known."""
    named = {"bf16-pure": "bf16", "fp16-pure": "fp16"}.get(m.precision, "")
    table = m.table("weight")
    if table is None:
        return named
    with np.errstate(all="ignore"):
        sizes = largest(table.stat("count"), 0)
    weight: dict[str, float] = {}
    for name, size in zip(table.formats, sizes.tolist(), strict=True):
        weight[name] = weight.get(name, 0.0) + size
    weight.pop("", None)
    return max(weight, key=lambda name: weight[name], default=named)


@lru_cache(maxsize=64)
def power(value: float) -> str:
    """A power of two as text, `2^k`; any other number as it is."""
    mantissa, exponent = np.frexp(value)
    return f"2^{int(exponent) - 1}" if mantissa == 0.5 else f"{value:.4g}"


def percent(share: float) -> str:
    """A share of 1 as a percentage with two significant digits."""
    value = 100 * share
    return "0 %" if value == 0 else f"{value:.0f} %" if value >= 10 else f"{value:.2g} %"


def median(values: Values) -> float:
    """The median of the finite values; NaN without any."""
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else float("nan")


@dataclass(frozen=True)
class ConstantNorm:
    """A norm that most steps have within ALIKE of each other: `norm`, and the `share` of the steps that have it."""

    norm: float
    share: float

    @property
    def is_clipped(self) -> bool:
        """Whether so many steps have it that gradients were clipped to it."""
        return self.share > _MOSTLY


def constant_norm(norms: Values) -> ConstantNorm | None:
    """The norm near the top of these, all positive, and how many are the same; None of fewer than ten."""
    if len(norms) < 10:
        return None
    limit = float(np.quantile(norms, 0.9))
    return ConstantNorm(limit, float((np.abs(norms / limit - 1) < ALIKE).mean()))


def learning_ends(m: Measurements) -> int:
    """The last step with at least 5 % of the fall of the loss still ahead; what happens later harms little."""
    finite = np.flatnonzero(m.finite_loss)
    if len(finite) < 5:
        return int(m.steps[-1]) if m.n else 0
    width = int(np.clip(len(finite) // 20, 1, 25))
    smooth = rolling_median(m.loss[finite], width)
    first, least = float(smooth[min(width, len(smooth)) - 1]), float(smooth.min())
    ahead = np.flatnonzero(smooth > least + 0.05 * max(first - least, 0.0))
    return int(m.steps[finite[ahead[-1]]]) if len(ahead) else int(m.steps[finite[-1]])


def is_adaptive(m: Measurements) -> bool:
    """Whether the optimizer divides by the size of the gradients, so that all elements move alike.

    Adam with an epsilon above the size of the gradients does not.
    """
    name, eps = optimizer_of(m)
    if _steps_of_the_rate(m, name):
        return True
    if not divides_by_gradients(name):
        return False
    table = m.table("gradient")
    return table is None or not eps > median(table.stat("rms"))


def divides_by_gradients(optimizer: str) -> bool:
    """Whether an optimizer of this class divides by the size of the gradients."""
    return any(word in optimizer.lower() for word in _KNOWN)


@np.errstate(all="ignore")
def _steps_of_the_rate(m: Measurements, name: str) -> bool:
    """Whether an optimizer of no known kind moves elements by the rate, whatever the gradients are, as a sign does.

    In 16 bits a step is one distance between two numbers, hence up to twice the rate.
    """
    table, gradients = m.table("update"), m.table("gradient")
    if table is None or gradients is None or divides_by_gradients(name) or "sgd" in name.lower():
        return False
    rates = np.interp(table.steps, m.steps, np.nan_to_num(m.lr)) if m.n else np.zeros(len(table.steps))
    ratio = table.stat("amax") / np.where(rates > 0, rates, np.nan)[:, None]
    moved = np.isfinite(ratio) & (ratio > 0)
    spread = gradients.stat("amax")
    sizes = spread[np.isfinite(spread) & (spread > 0)]
    varied = len(sizes) > 0 and np.quantile(sizes, 0.9) > _VARIED * np.quantile(sizes, 0.1)
    return bool(moved.sum() > 8 and varied and ((ratio > 0.45) & (ratio < 2.2))[moved].mean() > _MOSTLY)


def optimizer_of(m: Measurements) -> tuple[str, float]:
    """Class and epsilon of the (first) optimizer; NaN where it has none."""
    if not m.own_loop:
        return m.config.optimizer.name, m.config.optimizer.eps if m.config.optimizer.name == "adamw" else float("nan")
    first = next(iter(recorded_optimizers(m)), {})
    eps = first.get("eps")
    return str(first.get("name", "")), float(eps) if isinstance(eps, int | float) else float("nan")


def epsilons(m: Measurements) -> list[float]:
    """The epsilon of each optimizer, and of each of its groups that has another one; nothing of those without any."""
    every = [row for each in recorded_optimizers(m) for row in (each, *groups_of(each))]
    return [float(eps) for row in every if isinstance(eps := row.get("eps"), int | float)]


def groups_of(optimizer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The settings of its parameter groups that differ."""
    groups = optimizer.get("groups")
    return [each for each in groups.values() if isinstance(each, Mapping)] if isinstance(groups, Mapping) else []


def recorded_optimizers(m: Measurements) -> list[Mapping[str, Any]]:
    """The settings of each optimizer, by the config or as recorded of a loop of one's own."""
    if not m.own_loop:
        return [m.config.optimizer.model_dump()]
    recorder = m.environment.get("recorder")
    return rows_of(recorder.get("optimizers")) if isinstance(recorder, Mapping) else []


def has_no_optimizer(m: Measurements) -> bool:
    """Whether a recorder was told that the loop updates its weights by itself."""
    recorder = m.environment.get("recorder")
    return isinstance(recorder, Mapping) and recorder.get("optimizers") == []


def base_rate(m: Measurements) -> float:
    """The learning rate that was set; in a loop of one's own the median of the recorded ones."""
    return median(m.lr) if m.own_loop or m.imported else m.config.optimizer.lr


def lower_rate(m: Measurements) -> float:
    """The learning rate to try after a divergence: the power of ten of the one that was set, a tenth at most, at which
    the first recorded update would have changed the weights by at most 5 %. 0 where no rate is known.

    Where the weights before that update are not recorded, those after it stand for them.
    """
    rate, began = base_rate(m), first_update(m)
    later = update_ratios(m)[1]
    known = later[np.isfinite(later) & (later > 0)]
    first = began[1] if began is not None else float(known[0]) if len(known) else 0.0
    factor = 10.0 ** np.floor(np.log10(_MOST_OF_WEIGHTS / first)) if first > 0 else 0.1
    return float(rate * np.clip(factor, _LEAST_RATE, 0.1)) if np.isfinite(rate) and rate > 0 else 0.0


def first_update(m: Measurements) -> tuple[int, float] | None:
    """The step of the first recorded update, and its L2 norm over that of the weights before it (all tensors).

    None where it is not finite, or no weights before it are recorded.
    """
    updates, weights = m.table("update"), m.table("weight")
    if updates is None or weights is None or not len(updates.steps) or not len(weights.steps):
        return None
    step, size, held = int(updates.steps[0]), float(updates.total_l2[0]), float(weights.total_l2[0])
    if not weights.steps[0] < step or not held > 0 or not np.isfinite(size) or bool(updates.bad[0].any()):
        return None
    return step, size / held


def higher_rate(m: Measurements) -> float:
    """The learning rate to try where steps are too small: the power of ten of the one that was set, ten at least, at
    which a step would change the weights by about a thousandth (L2 norms). 0 where no rate is known."""
    rate, typical = base_rate(m), median(update_ratios(m)[1])
    factor = 10.0 ** np.round(np.log10(_USUAL_UPDATE / typical)) if typical > 0 else 100.0
    return float(rate * max(factor, 10.0)) if np.isfinite(rate) and rate > 0 else 0.0


def replay(m: Measurements, step: int) -> str:
    """The way to decide whether precision is to blame in a step: a replay, or in a loop of one's own a shadow of it."""
    if m.own_loop:
        return Sentence(
            "step {step} inside precgui.shadow, in the loop itself (docs/shadow.md), decides",
            step=step,
        )
    return Sentence("{replay} --step {step} computes the step in FP64 and decides", replay=REPLAY, step=step)
