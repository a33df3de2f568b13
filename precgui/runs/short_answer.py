"""The comparison of two runs in one sentence: the metric, the memory and the speed of one beside the baseline's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from precgui.events import Metric
from precgui.runs.compared import Compared, RunComparison
from precgui.runs.metric import difference_text, in_text

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
        return ShortAnswer(f"{row.run} is not comparable with {base.run}: {row.withheld}.", row.run, base.run)
    parts = [part for part in (_metric_part(row), _memory_part(row), _speed_part(row)) if part]
    sentence = f"{name} beside {what}: {', '.join(parts)}."
    if row.differs_in:
        sentence += f" They differ in {', '.join(row.differs_in)}, too."
    repeats = _is_fair(row) and row.precision != base.precision
    return ShortAnswer(sentence, row.run, base.run, repeats, _seconds((row, base)) if repeats else None)


def _is_fair(row: Compared) -> bool:
    return not row.withheld and not row.differs_in


def _metric_part(row: Compared) -> str:
    metric = Metric(**row.metric)
    if row.accuracy_delta is None or not math.isfinite(row.accuracy_delta):
        return f"no difference of {in_text(metric.title)}: {row.accuracy_withheld or 'one of them has no value'}"
    if abs(row.accuracy_delta) <= (row.accuracy_grain or 0.0) * 1.001:
        return f"same {in_text(metric.title)} (one seed)"
    return f"{in_text(metric.title)} {difference_text(metric, row.accuracy_delta, '')} (one seed)"


def _memory_part(row: Compared) -> str:
    if row.emulated or row.costs_withheld:
        return "memory not measurable"
    if row.memory_ratio is None:
        return "memory not measured"
    change = row.memory_ratio - 1
    if abs(change) < _SAME_SHARE:
        return "same memory"
    return f"{abs(change):.0%} ".replace("%", " %") + ("more memory" if change > 0 else "less memory")


def _speed_part(row: Compared) -> str:
    if row.costs_withheld:
        return f"speed not measurable ({row.costs_withheld})"
    if row.speedup is None:
        return "speed not measured"
    if row.speedup_interval is None:
        return f"speed not decided ({row.why_no_interval})"
    low, high = row.speedup_interval
    if low <= 1 <= high:
        return "speed not different"
    return f"{row.speedup:.2g} times faster" if row.speedup > 1 else f"{1 / row.speedup:.2g} times slower"


def _seconds(rows: Sequence[Compared]) -> float | None:
    times = [row.time_s for row in rows if row.time_s is not None]
    return SEEDS * sum(times) if len(times) == len(rows) else None
