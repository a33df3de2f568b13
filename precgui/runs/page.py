"""One run as a self-contained HTML page for any browser and for printing, without script.

Verdict and findings first, then pictures of loss, loss scale and exponents, the machine, and all facts folded.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from precgui import __version__
from precgui.examples import title_for_reader
from precgui.runs.caveats import arithmetic_of
from precgui.runs.diagnosis import Finding, blame_sentence, examine
from precgui.runs.errors import RunFileError
from precgui.runs.facts import FactGroup, RunFact
from precgui.runs.html_page import HtmlPage
from precgui.runs.models.model_facts import file_facts
from precgui.runs.run import Run
from precgui.runs.run_pictures import curve_picture, exponent_picture
from precgui.sanitize import sanitize
from precgui.sentences import ENGLISH, L_, Sentence, Wording, recased, together

_STYLE = """
:root { color-scheme: light dark; --line: #d8dde4; --muted: #596473; --accent: #0b6b7d; }
@media (prefers-color-scheme: dark) { :root { --line: #323a46; --muted: #9aa5b4; --accent: #4fbccf; } }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; } td { padding: .2rem .5rem .2rem 0; vertical-align: top; }
tr { border-bottom: 1px solid var(--line); } td:first-child { width: 45%; color: var(--muted); }
td.in { padding-left: 1.5rem; } td.changed { font-weight: 600; color: inherit; }
summary, h2 { font-size: 1.1rem; font-weight: 600; margin: 1.2rem 0 .4rem; } .muted { color: var(--muted); }
.finding { border-left: 4px solid var(--accent); padding-left: .8rem; margin: .8rem 0; } .finding p { margin: .2rem 0; }
.error { border-color: #b3261e; } .warning { border-color: #b07000; }
.caveat { border-left: 4px solid #b07000; padding-left: .8rem; } td { overflow-wrap: anywhere; }
polyline, path { fill: none; stroke: var(--accent); stroke-width: 1.2; } svg { width: 100%; height: auto; }
rect { fill: var(--accent); } line.limit { stroke: #b07000; stroke-width: 1; stroke-dasharray: 5 3; }
svg text { font-size: 11px; fill: var(--muted); } figure { margin: 1rem 0; }
details { border-bottom: 1px solid var(--line); }
"""


def write_page(run: Run, path: Path, wording: Wording = ENGLISH) -> list[Path]:
    """Write the page of a run; returns the file. Raises RunFileError when it cannot be written or is there already."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(page(run, wording))
    except FileExistsError:
        raise RunFileError(Sentence("{file} already exists; choose another name.", file=path)) from None
    except OSError as error:
        raise RunFileError(
            Sentence("{file} cannot be written: {why}; choose another folder.", file=path, why=error.strerror)
        ) from None
    return [path]


def page(run: Run, wording: Wording = ENGLISH) -> str:
    """The HTML of a run. All text of the file is escaped and harmless; nothing is loaded from anywhere."""
    return sanitize(_RunPage(wording).of(run))


class _RunPage(HtmlPage):
    """The page of a run in one language."""

    def of(self, run: Run) -> str:
        title = escape(title_for_reader(run.title, run.path, self._wording.shown))
        reported = self._text(arithmetic_of(run).caveat)
        caveat = f'<p class="caveat">{reported}</p>' if reported else ""
        details, groups = self._head(L_("Details")), "".join(self._group(group) for group in file_facts(run))
        return (
            f'<!DOCTYPE html><html lang="{self._wording.language}"><head><meta charset="utf-8"><title>{title}</title>'
            f"<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
            f"<style>{_STYLE}</style></head><body><h1>{title}</h1>"
            f'<p class="muted">{escape(run.config.precision)}, {escape(run.created)}, precgui {__version__}</p>'
            f"{caveat}{self._diagnosis(run)}{self._pictures(run)}{self._machine(run)}"
            f"{details}{groups}</body></html>\n"
        )

    def _diagnosis(self, run: Run) -> str:
        """The verdict, and each problem with its proof and fix: first of what somebody who opens the page wants."""
        found = examine(run)
        return f"{self._head(found.sentence)}{''.join(map(self._finding, found.problems))}"

    def _finding(self, finding: Finding) -> str:
        confidence = Sentence(
            "{certainty}, confidence {confidence:.0%}.",
            certainty=recased(finding.certainty, "upper"),
            confidence=finding.confidence,
        )
        lines = (
            *(proof.text for proof in finding.evidence),
            Sentence("Fix: {fix}", fix=finding.fix),
            together(blame_sentence(finding), confidence),
        )
        text = "".join(f"<p>{self._text(line)}</p>" for line in lines)
        steps = self._text(Sentence(", {steps}", steps=finding.steps))
        head = f"<p><b>{self._text(finding.title)}</b>{steps}</p>"
        return f'<div class="finding {finding.severity}">{head}{text}</div>'

    def _pictures(self, run: Run) -> str:
        """Loss, loss scale where it moves, and the exponents of the gradients."""
        loss, scale = run.series("loss"), run.series("scale")
        positive = loss[1][np.isfinite(loss[1])]
        base = 10 if len(positive) and positive.min() > 0 and positive.max() > 10 * positive.min() else 0
        parts = (
            curve_picture(L_("Training loss"), *loss, base=base, wording=self._wording),
            curve_picture(L_("Loss scale"), *scale, base=2, wording=self._wording),
            exponent_picture(run, wording=self._wording),
        )
        return "".join(parts)

    def _machine(self, run: Run) -> str:
        """Where the run trained, in one line."""
        known = (
            run.environment.get("device_name"), _name_of(run.machine.get("cpu")), run.machine.get("os"),
            _version_of(run.environment),
        )  # fmt: skip
        words = [str(each) for each in dict.fromkeys(known) if each]
        return self._head(L_("Machine")) + f"<p>{escape('; '.join(words))}</p>" if words else ""

    def _group(self, group: FactGroup) -> str:
        rows = "".join(self._row(fact) for fact in group.facts)
        return f"<details><summary>{self._text(group.title)}</summary><table>{rows}</table></details>"

    def _row(self, fact: RunFact, depth: int = 0) -> str:
        kinds = " ".join(kind for kind, there in (("in", depth), ("changed", fact.changed)) if there)
        own = f'<tr><td class="{kinds}">{self._text(fact.name)}</td><td>{self._text(fact.value)}</td></tr>'
        return own + "".join(self._row(inside, depth + 1) for inside in fact.facts)


def _name_of(cpu: object) -> object:
    return cpu.get("name") if isinstance(cpu, Mapping) else cpu


def _version_of(environment: Mapping[str, Any]) -> str:
    libraries = environment.get("libraries")
    torch = libraries.get("torch") if isinstance(libraries, Mapping) else None
    return f"torch {torch}" if torch else ""
