"""The answer of a study in words: which precision to use here, then a line each on metric, costs and failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from precgui.events import Metric
from precgui.runs.metric import decimals, in_text, signed, way_text, with_unit
from precgui.runs.study.result import Group, Study
from precgui.runs.verdict.judge import Verdict
from precgui.sentences import L_, Sentence, recased, together

_ONE_SEED = L_("Not decided: one seed of each is no measurement; more seeds decide.")
_ONE_GROUP = L_("There is one group only: nothing was compared. Add runs in another precision.")
_ERRORS = L_(
    "Each verdict is wrong in at most 5 % of such studies, all looks and arms counted, as long as the differences are "
    "not strongly skewed."
)
_SHARES = ("memory_saved", "energy_saved")  # targets whose values are shares of the baseline's


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
        return StudyAnswer(_ONE_GROUP)
    known = {group.group: group for group in study.groups if group.n + group.failed}
    missing = arms[0].baseline
    arms = [group for group in arms if group.baseline in known]
    if not arms:
        return StudyAnswer(
            Sentence("No run of the baseline {baseline} has ended: nothing was compared yet.", baseline=missing)
        )
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
        text = Sentence(
            "Not decided: the baseline {baseline} itself failed in {failed} of {n} runs, so that staying with it is no "
            "safe choice.",
            baseline=base.group,
            failed=base.failed,
            n=base.n + base.failed,
        )
        sound = ", ".join(group.group for group in arms if group.n and not group.failed)
        return together(text, Sentence("{names} came through in all runs.", names=sound)) if sound else text
    if base.n <= 1 and not any(group.failed for group in arms) and all(group.n <= 1 for group in arms):
        return _ONE_SEED
    return together(_stay(base, keeping, arms), *_why_not(arms, keeping, study))


def _stay(base: Group, keeping: Sequence[Group], arms: Sequence[Group]) -> str:
    """Whether to stay with the baseline: not decided where no arm was judged, and by no single run."""
    failed = any(group.failed and group.n + group.failed > 1 for group in arms)
    judged = keeping or failed or any(_word(group, "accuracy_lost") == "missed" for group in arms)
    return Sentence("Stay with {baseline} here.", baseline=base.group) if judged else L_("Not decided.")


def _use(group: Group, study: Study) -> str:
    speed = group.verdicts.get("speedup")
    text = Sentence(
        "Use {group} here. Against {baseline}, {change}, and it saves {savings}.",
        group=group.group,
        baseline=group.baseline,
        change=change_text(group, study),
        savings=together(*_savings(group), between=" and "),
    )
    if speed is None or speed.ci is None or speed.ci[0] <= 1 <= speed.ci[1]:
        return together(text, L_("Whether it is faster or slower was not shown."))
    return text


def answer_lines(group: Group, base: Group, study: Study) -> tuple[str, ...]:
    """One line each on the metric, time, memory, energy and failures of a group beside its baseline."""
    share, change = study.metric.get("unit") == "%", recased(change_text(group, study), "upper")
    titles = {"memory_saved": L_("Memory"), "energy_saved": L_("Energy")}
    lines = [
        _judged(change, group.verdicts.get("accuracy_lost"), is_share=share),
        _cost_line(L_("Time"), group, "speedup"),
        *(_cost_line(titles[name], group, name) for name in _SHARES if _is_measured(group, name)),
        Sentence(
            "Failures: {group}: {failures}; {base}: {base_failures} (95 % intervals).",
            group=group.group,
            failures=_failures(group),
            base=base.group,
            base_failures=_failures(base),
        ),
    ]
    is_tested = any(verdict.level for name, verdict in group.verdicts.items() if name != "failures")
    head = Sentence("{group} beside {base}:", group=group.group, base=base.group)
    return (head, *lines, *([_ERRORS] if is_tested else []))


def _is_measured(group: Group, target: str) -> bool:
    verdict = group.verdicts.get(target)
    return target == "memory_saved" or (verdict is not None and verdict.value is not None)


def _failures(group: Group) -> str:
    return group.success if group.n + group.failed else L_("has no run that ended")


def _cost_line(title: str, group: Group, target: str) -> Sentence:
    verdict = group.verdicts.get(target)
    if verdict is None:
        return Sentence("{title}: no target.", title=title)
    if verdict.value is None:
        return Sentence("{title}: {text}.", title=title, text=verdict.text)
    return _judged(Sentence("{title}: {text}", title=title, text=_cost_text(verdict)), verdict)


def _cost_text(verdict: Verdict) -> Sentence:
    """Such as "1.02x as fast [0.70, 1.48] (94.12 %)" or "73 % of the baseline's"."""
    value = verdict.value or 0.0
    if verdict.target == "speedup":
        return _speed(value, verdict.ci, level_text(verdict))
    digits = decimals(0, 100 * (value - 1), [100 * end for end in verdict.ci or ()])
    ends = f" [{', '.join(f'{100 * end:.{digits}f}' for end in verdict.ci)}]" if verdict.ci else ""
    return Sentence(
        "{share} % of the baseline's{interval}",
        share=f"{100 * value:.{digits}f}",
        interval=f"{ends}{level_text(verdict)}",
    )


def _judged(value: Sentence, verdict: Verdict | None, *, is_share: bool = False) -> Sentence:
    """A value with the number of pairs, the verdict on the target, and why it is less sure than it seems."""
    if verdict is None:
        return Sentence("{title}: no target.", title=value)
    if verdict.value is None or verdict.verdict == "not measurable":
        return Sentence("{title}: {text}.", title=value, text=verdict.text)
    word = verdict.text
    if verdict.caution:
        word = Sentence("{verdict}; {caution}", verdict=word, caution=verdict.caution)
    known = {"value": value, "target": _target_text(verdict, is_share), "verdict": word}
    if verdict.level:
        return Sentence("{value}, {count} pairs; target {target}: {verdict}.", count=verdict.n, **known)
    if verdict.n == 1 and verdict.why:
        return Sentence("{value}, {why}; target {target}: {verdict}.", why=verdict.why, **known)
    return Sentence("{value}; target {target}: {verdict}.", **known)


def _target_text(verdict: Verdict, is_share: bool) -> str:
    margin = verdict.margin or 0.0
    if verdict.target == "speedup":
        return f"{margin:.4g}x"
    if verdict.target != "accuracy_lost":
        return f"{100 * margin:.4g} %"
    if is_share:
        return Sentence("less than {margin:.4g} points lost", margin=100 * margin)
    return Sentence("less than {margin:.4g} lost", margin=margin)


def level_text(verdict: Verdict) -> str:
    """The confidence of an interval behind it, such as " (94.12 %)"."""
    return f" ({100 * verdict.level:.4g} %)" if verdict.level and verdict.ci else ""


def _speed(value: float, ci: tuple[float, float] | None, level: str) -> Sentence:
    """A speed-up with its interval, such as "1.02x as fast [0.70, 1.48]"."""
    digits = decimals(2, value - 1, ci or ())
    interval = f" [{ci[0]:.{digits}f}, {ci[1]:.{digits}f}]" if ci else ""
    return Sentence("{ratio}x as fast{interval}", ratio=f"{value:.{digits}f}", interval=f"{interval}{level}")


def change_text(group: Group, study: Study) -> Sentence:
    """The change of the metric with its interval, such as "accuracy changes by -0.14 points [-0.31, +0.03]"."""
    verdict, metric = group.verdicts.get("accuracy_lost"), Metric(**study.metric)
    if verdict is None or verdict.value is None:
        return Sentence("the change of {metric} is not known", metric=in_text(metric.title))
    factor, unit = (100, "points") if metric.unit == "%" else (1, metric.unit)
    factor *= -1 if metric.higher_is_better else 1  # the verdict counts losses as positive
    value, ends = factor * verdict.value, sorted(factor * end for end in verdict.ci) if verdict.ci else []
    digits = decimals(2, value, ends)
    interval = f" [{signed(ends[0], digits)}, {signed(ends[1], digits)}]{level_text(verdict)}" if ends else ""
    return Sentence(
        "{metric} changes by {change}{interval} ({way})",
        metric=in_text(metric.title),
        change=with_unit(signed(value, digits), unit),
        interval=interval,
        way=way_text(metric),
    )


def _is_useful(group: Group) -> bool:
    """Whether a group saves what was asked for, costs nothing more, and fails no more than its target allows."""
    return bool(_savings(group)) and not _losses(group) and _word(group, "failures") in ("met", "undecided", "")


def _savings(group: Group, words: Sequence[str] = ("met", "undecided")) -> list[Sentence]:
    """The costs that are surely below the baseline's, in words; by default those that miss no target."""
    parts = []
    for name in ("speedup", *_SHARES):
        verdict = group.verdicts.get(name)
        if verdict is None or verdict.value is None or verdict.verdict not in words:
            continue
        low, high = verdict.ci or (verdict.value, verdict.value)
        if name == "speedup" and low > 1 and verdict.ci:
            parts.append(Sentence("time: {speed}", speed=_cost_text(verdict)))
        elif name != "speedup" and high < 1:
            saved = 100 * (1 - verdict.value)
            share = f"{saved:.{decimals(0, saved)}f}"
            memory = Sentence("{share} % of the memory", share=share)
            saving = memory if name == "memory_saved" else Sentence("{share} % of the energy", share=share)
            once = verdict.n == 1 and verdict.why
            parts.append(Sentence("{value} ({remark})", value=saving, remark=verdict.why) if once else saving)
    return parts


def _losses(group: Group) -> list[Sentence]:
    """The costs that are surely above the baseline's, in words."""
    parts = []
    speed = group.verdicts.get("speedup")
    if speed and speed.value and speed.ci and speed.ci[1] < 1:
        low, high = (1 / end for end in reversed(speed.ci))
        parts.append(
            Sentence(
                "takes {ratio:.2f}x the time{interval}",
                ratio=1 / speed.value,
                interval=f" [{low:.2f}, {high:.2f}]{level_text(speed)}",
            )
        )
    for name in _SHARES:
        verdict = group.verdicts.get(name)
        if verdict is None or verdict.value is None:
            continue
        if (verdict.ci or (verdict.value,))[0] > 1 and (verdict.ci or verdict.n == 1):
            more = 100 * (verdict.value - 1)
            share = f"{more:.{decimals(0, more)}f}"
            memory = Sentence("needs {share} % more memory", share=share)
            parts.append(memory if name == "memory_saved" else Sentence("needs {share} % more energy", share=share))
    return parts


def _gain(group: Group) -> float:
    """Smaller is better: the surest speed-up first, then the memory."""
    speed, memory = group.verdicts.get("speedup"), group.verdicts.get("memory_saved")
    fast = speed.ci[0] if speed and speed.ci else 0.0
    return -fast if fast > 1 else (memory.value or 1.0) if memory else 1.0


def _why_not(arms: Sequence[Group], keeping: Sequence[Group], study: Study) -> list[str]:
    """Sentences on why no arm takes the place of the baseline."""
    parts: list[str] = [
        Sentence(
            "{group} saves {savings}, but {losses}: use it only where that saving is needed.",
            group=group.group,
            savings=together(*_savings(group), between=" and "),
            losses=together(*_losses(group), between=" and "),
        )
        for group in keeping
        if _savings(group) and _losses(group)
    ]
    idle = [group for group in keeping if not _savings(group)]
    if idle:
        names = ", ".join(group.group for group in idle)
        parts.append(
            Sentence(
                "No loss beyond the target was found in {names}, but no saving that was asked for, either.",
                names=names,
            )
        )
        parts += [_small_effects(group) for group in idle if _savings(group, ["missed"]) or _losses(group)]
    parts += [_why_not_kept(group, study) for group in arms if group not in keeping and _word(group, "accuracy_lost")]
    return parts


def _small_effects(group: Group) -> Sentence:
    """A sentence on an arm that saves less than was asked for, or costs more."""
    saved = together(*_savings(group, ["missed"]), between=" and ")
    less = Sentence("saves {savings}, less than the target", savings=saved) if saved else ""
    effects = together(less, *_losses(group), between=", and ")
    return Sentence("{group} {effects}.", group=group.group, effects=effects)


def _why_not_kept(group: Group, study: Study) -> Sentence:
    """A sentence on an arm of which it is not shown that it keeps the metric."""
    verdict = group.verdicts["accuracy_lost"]
    if group.failed:
        return Sentence("{group}: {failures}.", group=group.group, failures=group.success)
    if verdict.verdict == "missed":
        return Sentence("{group} misses the target: {change}.", group=group.group, change=change_text(group, study))
    return Sentence("{group} is {verdict}.", group=group.group, verdict=verdict.text)


def _word(group: Group, target: str) -> str:
    verdict = group.verdicts.get(target)
    return verdict.verdict if verdict else ""
