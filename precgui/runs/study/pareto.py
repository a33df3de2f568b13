"""Which groups are beaten: another one has a better metric at a lower cost, surely or perhaps."""

from __future__ import annotations

import math
from typing import Literal

from precgui.runs.study.result import LEVEL, Group, GroupMetric, Study
from precgui.runs.verdict.paired import paired_difference

Domination = Literal["no", "perhaps", "surely"]
_FEWEST_PAIRS = 3
SIZE = "model_bytes"  # the only cost that emulated arithmetic has, too


def dominated(study: Study, cost: str) -> dict[str, Domination]:
    """Whether another group is better in both metric and cost, for each group that has both.

    `surely`: in both the 95 % t interval of the differences (of costs: of the log ratios) paired by seed holds no zero;
    where fewer than three seeds are common, the 95 % intervals of the two groups lie apart. `perhaps`: by the means
    alone. Emulated groups have no cost but the size of their model, and are left out of the others.
    """
    higher = bool(study.metric.get("higher_is_better", True))
    groups = [g for g in study.groups if has_point(g, cost)]
    return {group.group: _worst(study, group, groups, cost, higher) for group in groups}


def has_point(group: Group, cost: str) -> bool:
    """Whether the group has the metric and this cost, so that it is a point of the picture."""
    return (cost == SIZE or not group.emulated) and _known(group, "metric") and _known(group, cost)


def _known(group: Group, name: str) -> bool:
    return group.metrics[name].mean is not None


def _worst(study: Study, group: Group, others: list[Group], cost: str, higher: bool) -> Domination:
    levels = [_beaten_by(study, group, other, cost, higher) for other in others if other is not group]
    return "surely" if "surely" in levels else "perhaps" if "perhaps" in levels else "no"


def _beaten_by(study: Study, group: Group, other: Group, cost: str, higher: bool) -> Domination:
    worse_metric = _is_worse_paired(study, group, other, "metric", higher=higher)
    worse_cost = _is_worse_paired(study, group, other, cost, higher=False)
    if "no" in (worse_metric, worse_cost):
        return "no"
    return "surely" if worse_metric == worse_cost == "surely" else "perhaps"


def _is_worse_paired(study: Study, group: Group, other: Group, name: str, *, higher: bool) -> Domination:
    """Whether a figure is worse by its paired differences, or by the intervals where there are too few pairs."""
    own, best = (study.paired.get(each.group, {}).get(name, {}) for each in (group, other))
    common = sorted(own.keys() & best.keys())
    is_metric = name == "metric"
    if len(common) < _FEWEST_PAIRS or not (is_metric or min(*own.values(), *best.values()) > 0):
        return _is_worse(group.metrics[name], other.metrics[name], higher=higher)
    sign = 1 if higher else -1
    change = [own[key] - best[key] if is_metric else math.log(own[key] / best[key]) for key in common]
    spread = paired_difference([sign * each for each in change], study.grain if is_metric else 0.0)
    if spread.mean >= 0:
        return "no"
    return "surely" if spread.interval(LEVEL)[1] < 0 else "perhaps"


def _is_worse(own: GroupMetric, other: GroupMetric, *, higher: bool) -> Domination:
    """Whether the mean is worse, and surely so where the intervals do not meet."""
    sign = 1 if higher else -1
    mean, best = sign * (own.mean or 0.0), sign * (other.mean or 0.0)
    if mean >= best:
        return "no"
    if own.ci95 is None or other.ci95 is None:
        return "perhaps"
    return "surely" if max(sign * end for end in own.ci95) < min(sign * end for end in other.ci95) else "perhaps"
