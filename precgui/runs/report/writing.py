"""Writes the report of a study into a new file: HTML, Markdown or CSV, and the page on FP16 and BF16."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from io import StringIO
from pathlib import Path
from typing import Literal

from precgui.runs.csv_cells import write_table
from precgui.runs.errors import RunFileError
from precgui.runs.report.content import CLAIM_COLUMNS, MEMBER_COLUMNS, VERDICT_COLUMNS, ReportContent
from precgui.runs.report.group_table import MATRIX_COLUMNS
from precgui.runs.report.html import html_report, sixteen_bits_report
from precgui.runs.study.result import LEVEL, Group, Study
from precgui.sanitize import sanitize
from precgui.sentences import ENGLISH, L_, Sentence, Wording

ReportKind = Literal["html", "markdown", "csv", "sixteen bits"]


_HEADER = (
    "group", "precision", "baseline", "n", "failed", "figure", "mean", "sd", "ci_low", "ci_high",
    "difference", "ratio", "change_low", "change_high", "p_holm", "verdict", "why", "level",
)  # fmt: skip


def markdown_report(content: ReportContent, wording: Wording = ENGLISH) -> str:
    """The whole text; what comes from files cannot make markup."""
    return _MarkdownPage(wording).report(content)


class _MarkdownPage:
    """A report in one language."""

    def __init__(self, wording: Wording) -> None:
        self._wording = wording

    def report(self, content: ReportContent) -> str:
        """The whole report."""
        claims = [
            (claim.sentence, f"{self._wording.shown(claim.source)}, {claim.url}", claim.verdict,
             claim.measured or claim.why, claim.group)
            for claim in content.claims
        ]  # fmt: skip
        verdicts = [(line.group, line.target, line.short, line.detail) for line in content.verdicts]
        parts = [
            f"# {self._plain(content.title)}", f"**{self._plain(content.answer)}**", self._list(content.answer_lines),
            *map(self._plain, content.notes),
            *self._sixteen_bits(content),
            self._head(L_("Groups")),
            self._table(("", *content.columns), [(label, *cells) for label, cells in content.rows]),
            *self._matrix(content),
            self._head(L_("Energy")), self._energy(content),
            self._head(L_("Verdicts")), self._table(VERDICT_COLUMNS, verdicts), self._list(content.rules),
            self._head(L_("Members")), self._table(MEMBER_COLUMNS, content.members),
            self._head(L_("Claims of guides and papers")), self._table(CLAIM_COLUMNS, claims),
            self._head(L_("Machine and settings")), self._table(("", ""), content.facts),
            self._head(L_("To repeat it")), f"`{content.command.replace('`', '')}`",
        ]  # fmt: skip
        return "\n\n".join(part for part in parts if part) + "\n"

    def _head(self, title: str) -> str:
        return f"## {self._plain(title)}"

    def _list(self, sentences: Iterable[str]) -> str:
        return "\n".join(f"- {self._plain(line)}" for line in sentences)

    def _matrix(self, content: ReportContent) -> list[str]:
        matrix = content.matrix
        if matrix is None:
            return []
        rows = [(settings, figure, *cells) for settings, figure, cells in matrix.rows]
        return [self._head(L_("Settings by precision")), self._table((*MATRIX_COLUMNS, *matrix.precisions), rows)]

    def _energy(self, content: ReportContent) -> str:
        energy = content.energy
        if not energy.is_measured:
            return self._plain(energy.why_not_measured)
        return self._table(("", *energy.columns), [(title, *cells) for title, cells in energy.rows])

    def _sixteen_bits(self, content: ReportContent) -> list[str]:
        page = content.sixteen_bits
        if page is None:
            return []
        own = self._table(("", "FP16", "BF16"), [(label, *cells) for label, cells in page.rows])
        return [
            self._head(L_("FP16 or BF16 here")), f"**{self._plain(page.sentence)}**", self._list(page.caveats), own,
        ]  # fmt: skip

    def _table(self, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
        lines = [self._line(head), "|" + "---|" * len(head), *(self._line(row) for row in rows)]
        return "\n".join(lines)

    def _line(self, cells: Sequence[str]) -> str:
        return f"| {' | '.join(self._plain(cell) for cell in cells)} |"

    def _plain(self, text: str) -> str:
        """A text on one line, with all markup of Markdown and HTML escaped."""
        return re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", " ".join(self._wording.shown(text).split()))


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
        why = m.withheld or m.once or (L_("the interval is cut to the possible range") if m.cut else "")
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


def write_report(content: ReportContent, kind: ReportKind, path: Path, wording: Wording = ENGLISH) -> None:
    """Write a new file, a page in this language; CSV is the same in all.

    Raises RunFileError for a file that exists already and for a place that cannot be written.

    Raises ValueError for the page on FP16 and BF16 of a study without both.
    """
    text = csv_table(content.study) if kind == "csv" else _page(content, kind, wording)
    try:
        with path.open("x", encoding="utf-8", newline="") as file:
            file.write(text)
    except FileExistsError:
        raise RunFileError(
            Sentence("{file} already exists; choose another name or delete it first.", file=path)
        ) from None
    except OSError as error:
        raise RunFileError(
            Sentence("{file} cannot be written: {why}; choose another place.", file=path, why=error.strerror)
        ) from None


def _page(content: ReportContent, kind: ReportKind, wording: Wording) -> str:
    """The page, in which no text of a file acts on the terminal that shows it, or turns the direction of writing."""
    forms = {"html": html_report, "markdown": markdown_report, "sixteen bits": sixteen_bits_report}
    return sanitize(forms[kind](content, wording))
