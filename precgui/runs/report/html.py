"""The report as one HTML file: no script, nothing from elsewhere, light and dark, and for printing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

from precgui.runs.figures import FIGURES
from precgui.runs.html_page import HtmlPage
from precgui.runs.line_styles import HUES
from precgui.runs.report.content import CLAIM_COLUMNS, MEMBER_COLUMNS, VERDICT_COLUMNS, ReportContent
from precgui.runs.report.energy_table import EnergyTable
from precgui.runs.report.group_table import MATRIX_COLUMNS, SettingsMatrix
from precgui.runs.report.pictures import interval_picture, loss_picture, pareto_picture
from precgui.runs.report.sixteen_bits import NOT_BOTH, TENSOR_COLUMNS, SixteenBits
from precgui.sentences import ENGLISH, L_, Sentence, Wording

_STYLE = """
:root { color-scheme: light dark; --fg: #1c2430; --bg: #ffffff; --line: #d8dde4; --muted: #596473; --good: #1b7837;
  --bad: #b2182b; --open: #8a6100; --c0: #0b6b7d; --c1: #b35806; --c2: #5e3c99; --c3: #1b7837; --c4: #b2182b;
  --c5: #2166ac; --c6: #7f6000; }
@media (prefers-color-scheme: dark) { :root { --fg: #e3e8ef; --bg: #14181e; --line: #323a46; --muted: #9aa5b4;
  --good: #6fcf8a; --bad: #f4818f; --open: #e3b341; --c0: #4fbccf; --c1: #f0a35e; --c2: #b9a1ea; --c3: #6fcf8a;
  --c4: #f4818f; --c5: #7fb8ef; --c6: #d8b94a; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--fg); background: var(--bg); max-width: 62rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; } .answer { font-size: 1.15rem;
  border-left: 4px solid var(--c0); padding-left: 1rem; } .muted, figcaption { color: var(--muted); }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; } th, td { text-align: left;
  vertical-align: top; padding: .25rem .7rem .25rem 0; border-bottom: 1px solid var(--line); }
th { font-weight: 600; } td:first-child { color: var(--muted); } .whole { white-space: nowrap; }
.url { color: var(--muted); font-size: .85em; overflow-wrap: anywhere; } .met { color: var(--good); }
.missed { color: var(--bad); } .undecided { color: var(--open); }
code { font-family: ui-monospace, monospace;
  overflow-wrap: anywhere; }
figure { margin: 1rem 0; } svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif;
  fill: var(--fg); } .axis { stroke: var(--muted); } .grid { stroke: var(--line); } .floor { fill: var(--line); }
.ci { stroke: var(--c0); stroke-width: 2; } .dot { fill: var(--c0); } polyline { fill: none; stroke-width: 1.6; }
.band { stroke: none; opacity: .15; } .pale line, .pale circle, polyline.pale { opacity: .6; }
.d1 line, polyline.d1 { stroke-dasharray: 6 3; } .d2 line, polyline.d2 { stroke-dasharray: 2 2; }
.d3 line, polyline.d3 { stroke-dasharray: 8 3 2 3; }
@media print { :root { color-scheme: light; --fg: #000; --bg: #fff; --line: #bbb; --muted: #444; --good: #1b7837;
  --bad: #b2182b; --open: #8a6100; --c0: #0b6b7d; --c1: #b35806; --c2: #5e3c99; --c3: #1b7837; --c4: #b2182b;
  --c5: #2166ac; --c6: #7f6000; } body { max-width: none; margin: 0; font-size: 9.5pt; }
  .answer { font-size: 11pt; } thead { display: table-header-group; }
  h2 { break-after: avoid; } figure, tr { break-inside: avoid; } }
"""
_COLOURS = "\n".join(
    f".c{n} {{ stroke: var(--c{n}); }} .c{n} circle, .c{n} text, polygon.c{n} {{ fill: var(--c{n}); stroke: none; }}"
    for n in range(HUES)
)
_LONGEST_WORD = 24
_EAST_ASIAN = re.compile("[\u2e80-\uffef]")  # written without spaces: it may be broken anywhere
_WORDS = {
    "met": "met", "missed": "missed", "undecided": "undecided",
    "holds here": "met", "does not hold here": "missed", "not decided here": "undecided",
}  # fmt: skip


def html_report(content: ReportContent, wording: Wording = ENGLISH) -> str:
    """The whole page; every text of a file is escaped."""
    return _StudyPage(wording).report(content)


def sixteen_bits_report(content: ReportContent, wording: Wording = ENGLISH) -> str:
    """The page "FP16 or BF16 here" alone. Raises ValueError for a study without both."""
    if content.sixteen_bits is None:
        raise ValueError(NOT_BOTH)
    return _StudyPage(wording).sixteen_bits_page(content, content.sixteen_bits)


class _StudyPage(HtmlPage):
    """The page of a study in one language."""

    def report(self, content: ReportContent) -> str:
        """The whole report."""
        share = content.study.metric.get("unit") == "%"
        factor, unit = (100, L_("points")) if share else (1, str(content.study.metric.get("unit") or ""))
        metric_title, shown = str(content.study.metric.get("title") or L_("Metric")), self._wording.shown
        loss = FIGURES["val_loss"]
        with_twin = Sentence(
            "{figure} less the baseline's, 95 % intervals; the grey band is the rounding twin's", figure=metric_title
        )
        without = Sentence("{figure} less the baseline's, 95 % intervals", figure=loss.title)
        pictures = [
            interval_picture(content.study, "metric", factor, shown(unit), shown(with_twin)),
            interval_picture(content.study, loss.key, 1, "", shown(without)),
            *(pareto_picture(content.study, FIGURES[key], self._wording) for key in ("cpu_s", "memory_bytes")),
            loss_picture(content.study, content.runs, self._wording),
        ]
        body = [
            f"<h1>{self._text(content.title)}</h1>",
            f'<p class="answer">{self._text(content.answer)}</p>',
            f'<ul class="lines">{"".join(f"<li>{self._text(line)}</li>" for line in content.answer_lines)}</ul>',
            *(f"<p>{self._text(note)}</p>" for note in content.notes),
            self._head(L_("Groups")),
            self._table(("", *content.columns), [(label, *cells) for label, cells in content.rows]),
            *self._matrix(content.matrix),
            self._head(L_("Energy")), self._energy(content.energy),
            self._head(L_("Verdicts")), self._verdicts(content), self._list(content.rules),
            *self._sixteen_bits(content.sixteen_bits),
            self._head(L_("Pictures")), *pictures,
            self._head(L_("Claims of guides and papers")), self._claims(content),
            self._head(L_("Machine and settings")), self._table(("", ""), content.facts),
            self._head(L_("To repeat it")), f"<p><code>{escape(content.command)}</code></p>",
            self._head(L_("Members")), self._table(MEMBER_COLUMNS, content.members),
            self._head(L_("Runs")), self._runs(content),
        ]  # fmt: skip
        return self._page(content.title, "".join(body))

    def sixteen_bits_page(self, content: ReportContent, page: SixteenBits) -> str:
        """The page on FP16 and BF16."""
        body = (
            f"<h1>{self._text(content.title)}</h1>", *self._sixteen_bits(page),
            f"<p>{self._text(content.answer)}</p>", loss_picture(content.study, content.runs, self._wording),
            self._list(content.rules), self._head(L_("Machine and settings")), self._table(("", ""), content.facts),
            self._head(L_("To repeat it")), f"<p><code>{escape(content.command)}</code></p>",
        )  # fmt: skip
        return self._page(Sentence("FP16 or BF16: {study}", study=content.title), "".join(body))

    def _matrix(self, matrix: SettingsMatrix | None) -> list[str]:
        if matrix is None:
            return []
        rows = [(settings, figure, *cells) for settings, figure, cells in matrix.rows]
        return [self._head(L_("Settings by precision")), self._table((*MATRIX_COLUMNS, *matrix.precisions), rows)]

    def _energy(self, energy: EnergyTable) -> str:
        if not energy.is_measured:
            return f'<p class="muted">{self._text(energy.why_not_measured)}</p>'
        return self._table(("", *energy.columns), [(title, *cells) for title, cells in energy.rows])

    def _sixteen_bits(self, page: SixteenBits | None) -> list[str]:
        """The verdict on FP16 and BF16 with all that it rests on; nothing for a study without both."""
        if page is None:
            return []
        tensors = self._table(TENSOR_COLUMNS, page.tensors) if page.tensors else ""
        source = page.gradients.run if page.gradients is not None else page.no_gradients
        return [
            self._head(L_("FP16 or BF16 here")),
            f'<p class="answer">{self._text(page.sentence)}</p>{self._list(page.caveats)}',
            self._table(("", "FP16", "BF16"), [(label, *cells) for label, cells in page.rows]),
            self._head(L_("BF16 beside FP16")), self._table(("", "BF16"), page.beside),
            self._head(L_("Gradients that become zero in FP16")),
            f'<p class="muted">{self._text(source)}</p>{tensors}',
        ]  # fmt: skip

    def _page(self, title: str, body: str) -> str:
        return (
            f'<!DOCTYPE html><html lang="{self._wording.language}"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
            f"<title>{self._text(title)}</title><style>{_STYLE}{_COLOURS}</style></head><body>{body}</body></html>\n"
        )

    def _table(self, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
        lines = ("".join(self._cell(cell) for cell in row) for row in rows)
        return self._rows(head, lines)

    def _rows(self, head: Sequence[str], lines: Iterable[str]) -> str:
        """A table of finished cells, whose head is repeated on each printed page."""
        cells = "".join(f"<th>{self._text(name)}</th>" for name in head)
        top = f"<thead><tr>{cells}</tr></thead>" if any(head) else ""
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        return f'<div class="wide"><table>{top}<tbody>{body}</tbody></table></div>'

    def _cell(self, text: str) -> str:
        """A cell in the colour of its word. A single word, such as the name of a precision, is not broken."""
        shown = self._wording.shown(text)
        words = [name for start, name in _WORDS.items() if text.startswith(start)][:1]
        short = " " not in shown and not _EAST_ASIAN.search(shown) and len(shown) <= _LONGEST_WORD
        words += ["whole"] if short or text == "not measurable" else []
        return f'<td class="{" ".join(words)}">{_escaped(shown)}</td>' if words else f"<td>{_escaped(shown)}</td>"

    def _verdicts(self, content: ReportContent) -> str:
        rows = [(line.group, line.target, line.short, line.detail) for line in content.verdicts]
        return self._table(VERDICT_COLUMNS, rows)

    def _claims(self, content: ReportContent) -> str:
        rows = (
            "".join(
                (
                    self._cell(claim.sentence),
                    f'<td>{self._text(claim.source)} <span class="url">{escape(claim.url)}</span></td>',
                    *map(self._cell, (claim.verdict, claim.measured or claim.why, claim.group)),
                )
            )
            for claim in content.claims
        )  # fmt: skip
        return self._rows(CLAIM_COLUMNS, rows)

    def _runs(self, content: ReportContent) -> str:
        loss, cpu = FIGURES["val_loss"], FIGURES["cpu_s"]
        rows = [
            (run.name, run.group, run.kind, str(run.seed), run.status, _number(run.metric_value),
             _number(run.val_loss), _number(run.cpu_s, cpu.scale))
            for run in content.runs
        ]  # fmt: skip
        head = (L_("run"), L_("group"), L_("kind"), L_("seed"), L_("status"), L_("metric"), loss.in_words, cpu.axis)
        return self._table(head, rows)

    def _list(self, sentences: Iterable[str]) -> str:
        return f'<ul class="muted">{"".join(f"<li>{self._text(sentence)}</li>" for sentence in sentences)}</ul>'


def _escaped(text: str) -> str:
    """Escaped, with the parts of a number on one line: its spread, its unit, its count, its interval."""
    kept = re.sub(r"(?<=[\d.]) (?=(±|%|x|pp|ms|MiB|mJ|s|J|points)(\W|$))|(?<=±) |(?<=n) (?==)|(?<==) ", "\u00a0", text)
    return escape(re.sub(r"(\[[^\]]*,) (?=[^\]]*\])", "\\1\u00a0", kept))


def _number(value: float | None, factor: float = 1.0) -> str:
    return L_("not measured") if value is None else f"{factor * value:.5g}"
