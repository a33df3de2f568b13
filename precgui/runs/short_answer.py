"""The comparison of two runs in one sentence: the metric, the memory and the speed of one beside the baseline's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from precgui.events import Metric
from precgui.runs.compared import Compared, RunComparison
from precgui.runs.metric import difference_text, in_text
from precgui.sentences import L_, Sentence, together

SEEDS = 3  # the fewest of a study that decides something
_SAME_SHARE = 0.01  # of the baseline's memory: a smaller difference is none


@dataclass(frozen=True)
class ShortAnswer:
    """`run` and `baseline` are names of the comparison; `seconds` is what `SEEDS` runs of each would take.

    `can_repeat`: the two differ in their precision alone, so that a study of both would decide.
    """

    sentence: str
    run: str
    baseline: str
    can_repeat: bool = False
    seconds: float | None = None


def short_answer(comparison: RunComparison, wanted: str = "") -> ShortAnswer | None:
    """The answer on the run `wanted`, else on the first that can be compared; None where the baseline is alone."""
    base = next(row for row in comparison.runs if row.run == comparison.baseline)
    others = [row for row in comparison.runs if row is not base]
    if not others:
        return None
    fair = [row for row in others if _is_fair(row)]
    row = next((row for row in others if row.run == wanted), (fair or others)[0])
    name = row.precision if row.precision != base.precision else row.run
    what = base.precision if row.precision != base.precision else base.run
    if row.withheld:
        why = Sentence("{run} is not comparable with {base}: {why}.", run=row.run, base=base.run, why=row.withheld)
        return ShortAnswer(why, row.run, base.run)
    sentence = Sentence(
        "{run} beside {base}: {metric}, {memory}, {speed}.",
        run=name,
        base=what,
        metric=_metric_part(row),
        memory=_memory_part(row),
        speed=_speed_part(row),
    )
    if row.differs_in:
        settings = Sentence("They differ in {settings}, too.", settings=", ".join(row.differs_in))
        sentence = together(sentence, settings)
    repeats = _is_fair(row) and row.precision != base.precision
    return ShortAnswer(sentence, row.run, base.run, repeats, _seconds((row, base)) if repeats else None)


def _is_fair(row: Compared) -> bool:
    return not row.withheld and not row.differs_in


def _metric_part(row: Compared) -> str:
    metric = Metric(**row.metric)
    if row.accuracy_delta is None or not math.isfinite(row.accuracy_delta):
        why = row.accuracy_withheld or L_("one of them has no value")
        return Sentence("no difference of {metric}: {why}", metric=in_text(metric.title), why=why)
    if abs(row.accuracy_delta) <= (row.accuracy_grain or 0.0) * 1.001:
        return Sentence("same {metric} (one seed)", metric=in_text(metric.title))
    change = difference_text(metric, row.accuracy_delta, "")
    return Sentence("{metric} {change} (one seed)", metric=in_text(metric.title), change=change)


def _memory_part(row: Compared) -> str:
    if row.emulated or row.costs_withheld:
        return L_("memory not measurable")
    if row.memory_ratio is None:
        return L_("memory not measured")
    change = row.memory_ratio - 1
    if abs(change) < _SAME_SHARE:
        return L_("same memory")
    share = 100 * abs(change)
    if change > 0:
        return Sentence("{share:.0f} % more memory", share=share)
    return Sentence("{share:.0f} % less memory", share=share)


def _speed_part(row: Compared) -> str:
    if row.costs_withheld:
        return Sentence("speed not measurable ({why})", why=row.costs_withheld)
    if row.speedup is None:
        return L_("speed not measured")
    if row.speedup_interval is None:
        return Sentence("speed not decided ({why})", why=row.why_no_interval)
    low, high = row.speedup_interval
    if low <= 1 <= high:
        return L_("speed not different")
    if row.speedup > 1:
        return Sentence("{ratio:.2g} times faster", ratio=row.speedup)
    return Sentence("{ratio:.2g} times slower", ratio=1 / row.speedup)


def _seconds(rows: Sequence[Compared]) -> float | None:
    times = [row.time_s for row in rows if row.time_s is not None]
    return SEEDS * sum(times) if len(times) == len(rows) else None
