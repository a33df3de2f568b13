"""Which groups are beaten: another one has a better metric at a lower cost, surely or perhaps."""

from __future__ import annotations

from typing import Literal

from precgui.runs.study.groups import Group, GroupMetric, Study

Domination = Literal["no", "perhaps", "surely"]
COSTS = ("cpu_s", "step_s", "memory_bytes", "joules_per_sample", "model_bytes")
SIZE = "model_bytes"  # the only cost that emulated arithmetic has, too


def dominated(study: Study, cost: str) -> dict[str, Domination]:
    """Of each group that has the metric and this cost whether another one is better in both.

    `surely`: the 95 % intervals lie apart in both. `perhaps`: by the means alone. Emulated groups have no cost but the
    size of their model, and are left out of the others.
    """
    higher = bool(study.metric.get("higher_is_better", True))
    groups = [g for g in study.groups if has_point(g, cost)]
    return {group.group: _worst(group, groups, cost, higher) for group in groups}


def has_point(group: Group, cost: str) -> bool:
    """Whether the group has the metric and this cost, so that it is a point of the picture."""
    return (cost == SIZE or not group.emulated) and _known(group, "metric") and _known(group, cost)


def _known(group: Group, name: str) -> bool:
    return group.metrics[name].mean is not None


def _worst(group: Group, others: list[Group], cost: str, higher: bool) -> Domination:
    levels = [_beaten_by(group, other, cost, higher) for other in others if other is not group]
    return "surely" if "surely" in levels else "perhaps" if "perhaps" in levels else "no"


def _beaten_by(group: Group, other: Group, cost: str, higher: bool) -> Domination:
    worse_metric = _is_worse(group.metrics["metric"], other.metrics["metric"], higher=higher)
    worse_cost = _is_worse(group.metrics[cost], other.metrics[cost], higher=False)
    if "no" in (worse_metric, worse_cost):
        return "no"
    return "surely" if worse_metric == worse_cost == "surely" else "perhaps"


def _is_worse(own: GroupMetric, other: GroupMetric, *, higher: bool) -> Domination:
    """Whether the mean is worse, and surely so where the intervals do not meet."""
    sign = 1 if higher else -1
    mean, best = sign * (own.mean or 0.0), sign * (other.mean or 0.0)
    if mean >= best:
        return "no"
    if own.ci95 is None or other.ci95 is None:
        return "perhaps"
    return "surely" if max(sign * end for end in own.ci95) < min(sign * end for end in other.ci95) else "perhaps"
