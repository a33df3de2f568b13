"""The answer of a study in words: which precision to use here, then a line each on metric, costs and failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from precgui.events import Metric
from precgui.runs.metric import decimals, in_text, signed, way_text
from precgui.runs.study.groups import Group, Study
from precgui.runs.verdict.judge import Verdict

_BASELINE_STAYS = "Stay with {baseline} here."
_NO_BASELINE = "No run of the baseline {baseline} has ended: nothing was compared yet."
_ONE_SEED = "Not decided: one seed of each is no measurement; more seeds decide."
_BASELINE_FAILS = (
    "Not decided: the baseline {baseline} itself failed in {failed} of {n} runs, so that staying with it is no safe "
    "choice."
)
_SOUND = "{names} came through in all runs."
_ERRORS = (
    "Each verdict is wrong in at most 5 % of such studies, all looks and arms counted, as long as the differences are "
    "not strongly skewed."
)
_SHARES = (("memory_saved", "memory"), ("energy_saved", "energy"))  # targets whose values are shares of the baseline's


@dataclass(frozen=True)
class StudyAnswer:
    """`text` says which precision to use; `lines` are about one arm beside its baseline, each with its level.

    `more_seeds` are those that would probably decide on the metric of every arm; 0 where all are decided.
    """

    text: str
    lines: tuple[str, ...] = ()
    more_seeds: int = 0


def answer(study: Study) -> StudyAnswer:
    """The answer of a study."""
    arms = [group for group in study.groups if group.baseline != group.group]
    if not arms:
        return StudyAnswer("There is one group only: nothing was compared. Add runs in another precision.")
    known = {group.group: group for group in study.groups if group.n + group.failed}
    missing = arms[0].baseline
    arms = [group for group in arms if group.baseline in known]
    if not arms:
        return StudyAnswer(_NO_BASELINE.format(baseline=missing))
    keeping = [group for group in arms if _word(group, "accuracy_lost") == "met"]
    useful = sorted((group for group in keeping if _is_useful(group)), key=_gain)
    subject = (useful or keeping or sorted(arms, key=lambda group: group.failed))[0]
    needed = [verdict.seeds_needed or 0 for group in arms if (verdict := group.verdicts.get("accuracy_lost"))]
    bases = [known[name] for name in dict.fromkeys(group.baseline for group in arms)]
    text = _headline(useful, keeping, arms, bases, study)
    return StudyAnswer(text, answer_lines(subject, known[subject.baseline], study), max(needed, default=0))


def _headline(
    useful: Sequence[Group], keeping: Sequence[Group], arms: Sequence[Group], bases: Sequence[Group], study: Study
) -> str:
    if useful:
        return _use(useful[0], study)
    base = next((group for group in bases if group.failed), bases[0])
    if base.failed:
        text = _BASELINE_FAILS.format(baseline=base.group, failed=base.failed, n=base.n + base.failed)
        sound = [group.group for group in arms if group.n and not group.failed]
        return f"{text} {_SOUND.format(names=', '.join(sound))}" if sound else text
    if base.n <= 1 and not any(group.failed for group in arms) and all(group.n <= 1 for group in arms):
        return _ONE_SEED
    return " ".join(part for part in (_stay(base, keeping, arms), _why_not(arms, keeping, study)) if part)


def _stay(base: Group, keeping: Sequence[Group], arms: Sequence[Group]) -> str:
    """Whether to stay with the baseline: not decided where no arm was judged, and by no single run."""
    failed = any(group.failed and group.n + group.failed > 1 for group in arms)
    judged = keeping or failed or any(_word(group, "accuracy_lost") == "missed" for group in arms)
    return _BASELINE_STAYS.format(baseline=base.group) if judged else "Not decided."


def _use(group: Group, study: Study) -> str:
    speed = group.verdicts.get("speedup")
    text = (
        f"Use {group.group} here. Against {group.baseline}, {change_text(group, study)}, and it saves "
        f"{' and '.join(_savings(group))}."
    )
    if speed is None or speed.ci is None or speed.ci[0] <= 1 <= speed.ci[1]:
        return f"{text} Whether it is faster or slower was not shown."
    return text


def answer_lines(group: Group, base: Group, study: Study) -> tuple[str, ...]:
    """One line each on the metric, time, memory, energy and failures of a group beside its baseline."""
    share = study.metric.get("unit") == "%"
    lines = [
        f"{_capital(change_text(group, study))}{_verdict_text(group.verdicts.get('accuracy_lost'), is_share=share)}.",
        _cost_line("Time", group, "speedup"),
        *(_cost_line(word.capitalize(), group, name) for name, word in _SHARES if _is_measured(group, name)),
        f"Failures: {group.group}: {_failures(group)}; {base.group}: {_failures(base)} (95 % intervals).",
    ]
    is_tested = any(verdict.level for name, verdict in group.verdicts.items() if name != "failures")
    return (f"{group.group} beside {base.group}:", *lines, *([_ERRORS] if is_tested else []))


def _is_measured(group: Group, target: str) -> bool:
    verdict = group.verdicts.get(target)
    return target == "memory_saved" or (verdict is not None and verdict.value is not None)


def _failures(group: Group) -> str:
    return group.success if group.n + group.failed else "has no run that ended"


def _cost_line(title: str, group: Group, target: str) -> str:
    verdict = group.verdicts.get(target)
    if verdict is None:
        return f"{title}: no target."
    if verdict.value is None:
        return f"{title}: {verdict.text}."
    return f"{title}: {_cost_text(verdict)}{_verdict_text(verdict)}."


def _cost_text(verdict: Verdict) -> str:
    """Such as "1.02x as fast [0.70, 1.48] (94.12 %)" or "73 % of the baseline's"."""
    value = verdict.value or 0.0
    if verdict.target == "speedup":
        return f"{speedup_text(value, verdict.ci)}{level_text(verdict)}"
    digits = decimals(0, 100 * (value - 1), [100 * end for end in verdict.ci or ()])
    ends = f" [{', '.join(f'{100 * end:.{digits}f}' for end in verdict.ci)}]" if verdict.ci else ""
    return f"{100 * value:.{digits}f} % of the baseline's{ends}{level_text(verdict)}"


def _verdict_text(verdict: Verdict | None, *, is_share: bool = False) -> str:
    """The number of pairs, the verdict on the target, and why it is less sure than it seems, behind a value."""
    if verdict is None:
        return ": no target"
    caution = f"; {verdict.caution}" if verdict.caution else ""
    if verdict.value is None or verdict.verdict == "not measurable":
        return f": {verdict.text}"
    pairs = f", {verdict.n} pairs" if verdict.level else f", {verdict.why}" if verdict.n == 1 and verdict.why else ""
    return f"{pairs}; target {_target_text(verdict, is_share)}: {verdict.text}{caution}"


def _target_text(verdict: Verdict, is_share: bool) -> str:
    margin = verdict.margin or 0.0
    if verdict.target == "speedup":
        return f"{margin:.4g}x"
    if verdict.target != "accuracy_lost":
        return f"{100 * margin:.4g} %"
    return f"less than {100 * margin:.4g} points lost" if is_share else f"less than {margin:.4g} lost"


def level_text(verdict: Verdict) -> str:
    """The confidence of an interval behind it, such as " (94.12 %)"."""
    return f" ({100 * verdict.level:.4g} %)" if verdict.level and verdict.ci else ""


def speedup_text(value: float, ci: tuple[float, float] | None) -> str:
    """A speed-up with its interval, such as "1.02x as fast [0.70, 1.48]"."""
    digits = decimals(2, value - 1, ci or ())
    interval = f" [{ci[0]:.{digits}f}, {ci[1]:.{digits}f}]" if ci else ""
    return f"{value:.{digits}f}x as fast{interval}"


def change_text(group: Group, study: Study) -> str:
    """The change of the metric with its interval, such as "accuracy changes by -0.14 points [-0.31, +0.03]"."""
    verdict, metric = group.verdicts.get("accuracy_lost"), Metric(**study.metric)
    if verdict is None or verdict.value is None:
        return f"the change of {in_text(metric.title)} is not known"
    factor, unit = (100, " points") if metric.unit == "%" else (1, f" {metric.unit}".rstrip())
    factor *= -1 if metric.higher_is_better else 1  # the verdict counts losses as positive
    value, ends = factor * verdict.value, sorted(factor * end for end in verdict.ci) if verdict.ci else []
    digits = decimals(2, value, ends)
    interval = f" [{signed(ends[0], digits)}, {signed(ends[1], digits)}]{level_text(verdict)}" if ends else ""
    return f"{in_text(metric.title)} changes by {signed(value, digits)}{unit}{interval} ({way_text(metric)})"


def _is_useful(group: Group) -> bool:
    """Whether a group saves what was asked for, costs nothing more, and fails no more than its target allows."""
    return bool(_savings(group)) and not _losses(group) and _word(group, "failures") in ("met", "undecided", "")


def _savings(group: Group, words: Sequence[str] = ("met", "undecided")) -> list[str]:
    """The costs that are surely below the baseline's, in words; by default those that miss no target."""
    parts = []
    for name in ("speedup", *(name for name, _ in _SHARES)):
        verdict = group.verdicts.get(name)
        if verdict is None or verdict.value is None or verdict.verdict not in words:
            continue
        low, high = verdict.ci or (verdict.value, verdict.value)
        if name == "speedup" and low > 1 and verdict.ci:
            parts.append(f"time: {_cost_text(verdict)}")
        elif name != "speedup" and high < 1:
            saved = 100 * (1 - verdict.value)
            parts.append(f"{saved:.{decimals(0, saved)}f} % of the {dict(_SHARES)[name]}{_source(verdict)}")
    return parts


def _source(verdict: Verdict) -> str:
    return f" ({verdict.why})" if verdict.n == 1 and verdict.why else ""


def _losses(group: Group) -> list[str]:
    """The costs that are surely above the baseline's, in words."""
    parts = []
    speed = group.verdicts.get("speedup")
    if speed and speed.value and speed.ci and speed.ci[1] < 1:
        low, high = (1 / end for end in reversed(speed.ci))
        parts.append(f"takes {1 / speed.value:.2f}x the time [{low:.2f}, {high:.2f}]{level_text(speed)}")
    for name, word in _SHARES:
        verdict = group.verdicts.get(name)
        if verdict is None or verdict.value is None:
            continue
        if (verdict.ci or (verdict.value,))[0] > 1 and (verdict.ci or verdict.n == 1):
            parts.append(f"needs {100 * (verdict.value - 1):.{decimals(0, 100 * (verdict.value - 1))}f} % more {word}")
    return parts


def _gain(group: Group) -> float:
    """Smaller is better: the surest speed-up first, then the memory."""
    speed, memory = group.verdicts.get("speedup"), group.verdicts.get("memory_saved")
    fast = speed.ci[0] if speed and speed.ci else 0.0
    return -fast if fast > 1 else (memory.value or 1.0) if memory else 1.0


def _why_not(arms: Sequence[Group], keeping: Sequence[Group], study: Study) -> str:
    parts = [
        f"{group.group} saves {' and '.join(_savings(group))}, but {' and '.join(_losses(group))}: use it only where "
        "that saving is needed."
        for group in keeping
        if _savings(group) and _losses(group)
    ]
    idle = [group for group in keeping if not _savings(group)]
    if idle:
        names = ", ".join(group.group for group in idle)
        parts.append(f"No loss beyond the target was found in {names}, but no saving that was asked for, either.")
        for group in idle:
            saved = _savings(group, ["missed"])
            words = [*([f"saves {' and '.join(saved)}, less than the target"] if saved else []), *_losses(group)]
            parts += [f"{group.group} {', and '.join(words)}."] if words else []
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


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
