"""The figures of a study as CSV: one row for each group and figure, with the verdicts below them."""

from __future__ import annotations

from io import StringIO

from precgui.runs.csv_cells import write_table
from precgui.runs.study.groups import Group, Study

_HEADER = (
    "group", "precision", "baseline", "n", "failed", "figure", "mean", "sd", "ci_low", "ci_high",
    "difference", "ratio", "change_low", "change_high", "p_holm", "verdict", "why",
)  # fmt: skip


def csv_table(study: Study) -> str:
    """The whole text; nothing is rounded."""
    text = StringIO()
    write_table(text, _HEADER, (row for group in study.groups for row in _rows(group)))
    return text.getvalue()


def _rows(group: Group) -> list[list[object]]:
    head = [group.group, group.precision, group.baseline, group.n, group.failed]
    rows: list[list[object]] = []
    for name, m in group.metrics.items():
        ci, change = m.ci95 or ("", ""), m.difference_ci95 or m.ratio_ci95 or ("", "")
        rows.append([*head, name, m.mean, m.sd, *ci, m.difference, m.ratio, *change, m.p_holm, "", m.withheld])
    for target, v in group.verdicts.items():
        rows.append([*head, target, v.value, "", *(v.ci or ("", "")), "", "", "", "", "", v.text, v.why])
    return [["" if cell is None else cell for cell in row] for row in rows]
