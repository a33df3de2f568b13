"""The cells of Compare > Groups: one figure of each group beside its baseline's, in finished texts. No Qt."""

from __future__ import annotations

import math
from collections.abc import Sequence

from precgui.runs.figures import Figure
from precgui.runs.metric import decimals, signed
from precgui.runs.report.group_table import speed_or_share
from precgui.runs.study.answer import level_text
from precgui.runs.study.pairs import NOT_MEASURED
from precgui.runs.study.result import Group, GroupMetric, Study
from precgui.runs.verdict.judge import Verdict
from precgui.sentences import L_, Sentence, together

COLUMNS = (
    L_("Group"), L_("Runs"), L_("Mean"), L_("95 % interval"), L_("Difference"), L_("Its interval"), L_("Verdict"),
    L_("Reason"),
)  # fmt: skip
UNKNOWN = "–"
_NO_RULE = L_("no target")


def group_row(group: Group, figure: Figure, study: Study) -> tuple[str, ...]:
    """The cells of one group, as in `COLUMNS`."""
    own = group.metrics[figure.key]
    is_base = group.baseline == group.group
    runs = Sentence("{n} of {runs}", n=own.n, runs=group.n + group.failed)
    mean = UNKNOWN if own.mean is None else figure.with_unit(_plain(own.mean, figure))
    head = (
        Sentence("{name} (baseline)", name=group.group) if is_base else group.group,
        own.once or runs,
        mean,
        _ends(own, figure),
    )
    if is_base:
        return (*head, UNKNOWN, UNKNOWN, UNKNOWN, _why_no_mean(own))
    change, interval = _change(own, figure, group.verdicts.get(figure.target), study)
    return (*head, change, interval, *_verdict(group, figure, study))


def _change(own: GroupMetric, figure: Figure, verdict: Verdict | None, study: Study) -> tuple[str, str]:
    """The change and its interval: that of the verdict, with its level, where the figure was judged, else of 95 %."""
    judged = verdict if verdict is not None and verdict.ci is not None and verdict.level else None
    level = level_text(judged) if judged is not None else " (95 %)"
    if own.ratio is not None:
        ratio, ci = speed_or_share(own, figure)
        if judged is not None and judged.value is not None and math.isclose(judged.value, ratio):
            ci = judged.ci
        else:
            level = " (95 %)"
        digits = decimals(2, ratio - 1, ci or ())
        text = f"{ratio:.{digits}f}x"
        if figure.target == "speedup":
            text = Sentence("speed-up {ratio}", ratio=text)
        return text, UNKNOWN if ci is None else _range([f"{end:.{digits}f}x" for end in ci], level)
    if own.difference is not None:
        value, ends = figure.scale * own.difference, [figure.scale * end for end in own.difference_ci95 or ()]
        if judged is not None and judged.ci is not None:  # it counts losses as positive
            sign = -1 if study.metric.get("higher_is_better", True) else 1
            ends = sorted(sign * figure.scale * end for end in judged.ci)
        digits = decimals(figure.digits, value, ends)
        interval = _range([signed(end, digits) for end in ends], level) if ends else UNKNOWN
        return figure.difference_with_unit(signed(value, digits)), interval
    return UNKNOWN, UNKNOWN


def _verdict(group: Group, figure: Figure, study: Study) -> tuple[str, str]:
    """The verdict in words and its reason, or why there is no difference."""
    own, verdict = group.metrics[figure.key], group.verdicts.get(figure.target)
    withheld = "" if own.withheld in ("", NOT_MEASURED) else Sentence("withheld: {why}", why=own.withheld)
    rounding = L_("not more than rounding alone") if own.within_rounding else ""
    if verdict is None:
        return _NO_RULE, withheld or rounding or _why_no_mean(own)
    why = "" if verdict.verdict == "not measurable" and verdict.why == own.withheld and withheld else verdict.why
    words = verdict.verdict if verdict.verdict == "not measurable" else verdict.text
    return words, together(withheld, why, rounding, between="; ")


def _why_no_mean(own: GroupMetric) -> str:
    return L_("not measured") if own.mean is None else ""


def _plain(value: float, figure: Figure) -> str:
    scaled = figure.scale * value
    return f"{scaled:.{decimals(figure.digits, scaled)}f}"


def _ends(own: GroupMetric, figure: Figure) -> str:
    """The interval of a mean, with a word where it ends at the last possible value."""
    if own.ci95 is None:
        return UNKNOWN
    scaled = [figure.scale * end for end in own.ci95]
    digits = decimals(figure.digits, scaled[1] - scaled[0], scaled)
    text = _range([f"{end:.{digits}f}" for end in scaled])
    return Sentence("{interval} (cut to the possible range)", interval=text) if own.cut else text


def _range(ends: Sequence[str], level: str = "") -> Sentence:
    """An interval with its level, such as " (95 %)"."""
    return Sentence("{low} to {high}{level}", low=ends[0], high=ends[1], level=level)
