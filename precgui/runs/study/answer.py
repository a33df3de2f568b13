"""The answer of a study in words: which precision to use here, the cost, the saving, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence

from precgui.events import Metric
from precgui.runs.metric import in_text, signed, way_text
from precgui.runs.study.groups import Group, Study

_BASELINE_STAYS = "Stay with {baseline} here."
_NO_BASELINE = "No run of the baseline {baseline} has ended: nothing was compared yet."
_SHARES = (("memory_saved", "memory"), ("energy_saved", "energy"))  # targets whose values are shares of the baseline's


def answer(study: Study) -> str:
    """The answer of a study in at most three sentences."""
    arms = [group for group in study.groups if group.baseline != group.group]
    if not arms:
        return "There is one group only: nothing was compared. Add runs in another precision."
    baseline = arms[0].baseline
    if baseline not in {group.group for group in study.groups}:
        return _NO_BASELINE.format(baseline=baseline)
    keeping = [group for group in arms if _word(group, "accuracy_lost") == "met"]
    useful = sorted((group for group in keeping if _saving(group) and not _losses(group)), key=_gain)
    if useful:
        return _use(useful[0], study)
    return " ".join(
        part for part in (_BASELINE_STAYS.format(baseline=baseline), _why_not(arms, keeping, study)) if part
    )


def _use(group: Group, study: Study) -> str:
    seeds = group.verdicts["accuracy_lost"].n
    return (
        f"Use {group.group} here. Against {group.baseline}, {change_text(group, study)}, and it saves "
        f"{' and '.join(_saving(group))}. {seeds} seeds of each were compared in pairs; each statement is wrong in at "
        f"most 5 % of such studies. {group.success}."
    )


def change_text(group: Group, study: Study) -> str:
    """The change of the metric with its interval, such as "accuracy changes by -0.14 points [-0.31, +0.03]"."""
    verdict, metric = group.verdicts["accuracy_lost"], Metric(**study.metric)
    if verdict.value is None:
        return "the change of the metric is not known"
    factor, unit = (100, " points") if metric.unit == "%" else (1, f" {metric.unit}".rstrip())
    factor *= -1 if metric.higher_is_better else 1  # the verdict counts losses as positive
    ends = sorted(factor * end for end in verdict.ci) if verdict.ci else []
    interval = f" [{signed(ends[0], 2)}, {signed(ends[1], 2)}]" if ends else ""
    return (
        f"{in_text(metric.title)} changes by {signed(factor * verdict.value, 2)}{unit}{interval} ({way_text(metric)})"
    )


def _saving(group: Group) -> list[str]:
    """The costs that are surely below the baseline's, in words."""
    parts = []
    speed = group.verdicts.get("speedup")
    if speed and speed.value and speed.ci and speed.ci[0] > 1:
        parts.append(f"time: {speed.value:.2f}x as fast [{speed.ci[0]:.2f}, {speed.ci[1]:.2f}]")
    for name, word in _SHARES:
        verdict = group.verdicts.get(name)
        if verdict and verdict.value and verdict.ci and verdict.ci[1] < 1:
            parts.append(f"{100 * (1 - verdict.value):.0f} % of the {word}")
    return parts


def _losses(group: Group) -> list[str]:
    """The costs that are surely above the baseline's, in words."""
    parts = []
    speed = group.verdicts.get("speedup")
    if speed and speed.value and speed.ci and speed.ci[1] < 1:
        low, high = (1 / end for end in reversed(speed.ci))
        parts.append(f"takes {1 / speed.value:.2f}x the time [{low:.2f}, {high:.2f}]")
    for name, word in _SHARES:
        verdict = group.verdicts.get(name)
        if verdict and verdict.value and verdict.ci and verdict.ci[0] > 1:
            parts.append(f"needs {100 * (verdict.value - 1):.0f} % more {word}")
    return parts


def _gain(group: Group) -> float:
    """Smaller is better: the surest speed-up first, then the memory."""
    speed, memory = group.verdicts.get("speedup"), group.verdicts.get("memory_saved")
    fast = speed.ci[0] if speed and speed.ci else 0.0
    return -fast if fast > 1 else (memory.value or 1.0) if memory else 1.0


def _why_not(arms: Sequence[Group], keeping: Sequence[Group], study: Study) -> str:
    parts = [
        f"{group.group} saves {' and '.join(_saving(group))}, but {' and '.join(_losses(group))}: use it only where "
        "that saving is needed."
        for group in keeping
        if _saving(group)
    ]
    idle = [group for group in keeping if not _saving(group)]
    if idle:
        names = ", ".join(group.group for group in idle)
        parts.append(
            f"No loss beyond the target was found in {names}, but no saving that could be measured here, either."
        )
    for group in arms:
        verdict = group.verdicts.get("accuracy_lost")
        if group in keeping or verdict is None:
            continue
        if group.failed:
            parts.append(f"{group.group}: {group.success}.")
        elif verdict.verdict == "missed":
            parts.append(f"{group.group} misses the target: {change_text(group, study)}.")
        else:
            parts.append(f"{group.group} is {verdict.text}.")
    return " ".join(parts)


def _word(group: Group, target: str) -> str:
    verdict = group.verdicts.get(target)
    return verdict.verdict if verdict else ""
