"""The report as Markdown (GitHub's dialect), without pictures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from precgui.runs.report.content import MEMBER_COLUMNS, ReportContent


def markdown_report(content: ReportContent) -> str:
    """The whole text; what comes from files cannot make markup."""
    claims = [
        (claim.sentence, f"{claim.source}, {claim.url}", claim.verdict, claim.measured or claim.why, claim.group)
        for claim in content.claims
    ]
    verdicts = [(line.group, line.target, line.short, line.detail) for line in content.verdicts]
    parts = [
        f"# {_plain(content.title)}", f"**{_plain(content.answer)}**",
        "\n".join(f"- {_plain(line)}" for line in content.answer_lines), *map(_plain, content.notes),
        "## Groups", _table(("", *content.columns), [(label, *cells) for label, cells in content.rows]),
        "## Verdicts", _table(("group", "target", "verdict", "measured"), verdicts),
        "\n".join(f"- {_plain(rule)}" for rule in content.rules),
        "## Members", _table(MEMBER_COLUMNS, content.members),
        "## Claims of guides and papers",
        _table(("claim", "source", "here", "measured, or why not", "group"), claims),
        "## Machine and settings", _table(("", ""), content.facts),
        "## To repeat it", f"`{content.command.replace('`', '')}`",
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_line(head), "|" + "---|" * len(head), *(_line(row) for row in rows)]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_plain(cell) for cell in cells)} |"


def _plain(text: str) -> str:
    """A text on one line, with all markup of Markdown and HTML escaped."""
    return re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", " ".join(text.split()))
