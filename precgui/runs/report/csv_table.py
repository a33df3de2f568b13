"""The figures of a study as CSV: a row for each group and figure, its verdicts below them, then a row for each run."""

from __future__ import annotations

from io import StringIO

from precgui.runs.csv_cells import write_table
from precgui.runs.study.groups import LEVEL, Group, Study

_HEADER = (
    "group", "precision", "baseline", "n", "failed", "figure", "mean", "sd", "ci_low", "ci_high",
    "difference", "ratio", "change_low", "change_high", "p_holm", "verdict", "why", "level",
)  # fmt: skip


def csv_table(study: Study) -> str:
    """The whole text; nothing is rounded."""
    text = StringIO()
    write_table(text, _HEADER, [*(row for group in study.groups for row in _rows(group)), *_members(study)])
    return text.getvalue()


def _rows(group: Group) -> list[list[object]]:
    head = [group.group, group.precision, group.baseline, group.n, group.failed]
    rows: list[list[object]] = []
    for name, m in group.metrics.items():
        ci, change = m.ci95 or ("", ""), m.difference_ci95 or m.ratio_ci95 or ("", "")
        level = LEVEL if m.ci95 or m.difference_ci95 or m.ratio_ci95 else ""
        why = m.withheld or m.once or ("the interval is cut to the possible range" if m.cut else "")
        rows.append([*head, name, m.mean, m.sd, *ci, m.difference, m.ratio, *change, m.p_holm, "", why, level])
    for target, v in group.verdicts.items():
        ci, why = v.ci or ("", ""), "; ".join(part for part in (v.why, v.caution) if part)
        rows.append([*head, target, v.value, "", *ci, "", "", "", "", "", v.text, why, v.level])
    return [["" if cell is None else cell for cell in row] for row in rows]


def _members(study: Study) -> list[list[object]]:
    """A row for each run: whether it is used, and why not, or how it failed."""
    blank = [""] * (len(_HEADER) - 9)
    return [
        [member.group, member.precision, "", "", "", f"member {member.run}", *blank, member.use, member.why, ""]
        for member in study.members
    ]
