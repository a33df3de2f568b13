"""One run as a self-contained HTML page for any browser and for printing, without script: diagnosis, loss and facts."""

from __future__ import annotations

from html import escape
from pathlib import Path

import numpy as np

from precgui import __version__
from precgui.harmless_text import harmless
from precgui.runs.caveats import arithmetic_of
from precgui.runs.diagnosis import BLAME, Finding, examine
from precgui.runs.errors import RunFileError
from precgui.runs.facts import FactGroup, RunFact, run_facts
from precgui.runs.run import Run

_COLUMNS = 400  # of the picture of the loss: each shows the least and the largest loss of its steps
_WIDTH, _HEIGHT = 800, 200
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
"""


def write_page(run: Run, path: Path) -> list[Path]:
    """Write the page of a run; returns the file. Raises RunFileError when it cannot be written or is there already."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(page(run))
    except FileExistsError:
        raise RunFileError(f"{path} already exists; choose another name.") from None
    except OSError as error:
        raise RunFileError(f"{path} cannot be written: {error.strerror}; choose another folder.") from None
    return [path]


def page(run: Run) -> str:
    """The HTML of a run. All text of the file is escaped and harmless; nothing is loaded from anywhere."""
    title = escape(run.title)
    reported = escape(arithmetic_of(run).caveat)
    caveat = f'<p class="caveat">{reported}</p>' if reported else ""
    groups = "".join(_group(group) for group in run_facts(run))
    return harmless(
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<style>{_STYLE}</style></head><body><h1>{title}</h1>"
        f'<p class="muted">{escape(run.config.precision)}, {escape(run.created)}, precgui {__version__}</p>'
        f"{caveat}{_diagnosis(run)}{_loss_picture(run)}{groups}</body></html>\n"
    )


def _diagnosis(run: Run) -> str:
    """The verdict, and each problem with its proof and fix: what somebody who opens the page wants to know first."""
    found = examine(run)
    return f"<h2>{escape(found.sentence)}</h2>{''.join(map(_finding, found.problems))}"


def _finding(finding: Finding) -> str:
    blame = BLAME[finding.precision_is_to_blame].capitalize()
    lines = (
        *(proof.text for proof in finding.evidence),
        f"Fix: {finding.fix}",
        f"{blame}. {finding.certainty.capitalize()}, confidence {finding.confidence:.0%}.",
    )
    text = "".join(f"<p>{escape(line)}</p>" for line in lines)
    head = f"<p><b>{escape(finding.title)}</b>, {escape(finding.steps)}</p>"
    return f'<div class="finding {finding.severity}">{head}{text}</div>'


def _group(group: FactGroup) -> str:
    opened = " open" if group.open else ""
    rows = "".join(_row(fact) for fact in group.facts)
    return f"<details{opened}><summary>{escape(group.title)}</summary><table>{rows}</table></details>"


def _row(fact: RunFact, depth: int = 0) -> str:
    kinds = " ".join(kind for kind, there in (("in", depth), ("changed", fact.changed)) if there)
    own = f'<tr><td class="{kinds}">{escape(fact.name)}</td><td>{escape(fact.value)}</td></tr>'
    return own + "".join(_row(inside, depth + 1) for inside in fact.facts)


def _loss_picture(run: Run) -> str:
    """The training loss as an area between the extremes of the steps of each column; empty without a finite loss."""
    steps, loss = run.series("loss")
    finite = np.isfinite(loss)
    steps, loss = steps[finite], loss[finite]
    if len(loss) < 2 or loss.max() == loss.min():
        return ""
    edges = np.unique(np.linspace(0, len(loss), min(_COLUMNS, len(loss)), endpoint=False).astype(int))
    x = _WIDTH * (steps[edges] - steps[0]) / (steps[-1] - steps[0])
    scaled = _HEIGHT * (loss.max() - loss) / (loss.max() - loss.min())
    upper, lower = np.minimum.reduceat(scaled, edges), np.maximum.reduceat(scaled, edges)
    points = [f"{a:.1f},{b:.1f} {a:.1f},{c:.1f}" for a, b, c in zip(x, upper, lower, strict=True)]
    text = f"Training loss, {loss.max():.4g} to {loss.min():.4g}, steps {steps[0]:.0f} to {steps[-1]:.0f}"
    left_out = len(finite) - len(loss)
    if left_out:
        text = f"{text}; {left_out} steps with NaN or Inf are not drawn"
    box = f"0 -4 {_WIDTH} {_HEIGHT + 8}"
    line = f'<polyline points="{" ".join(points)}"/>'
    return f'<figure><svg viewBox="{box}" role="img">{line}</svg><figcaption class="muted">{text}</figcaption></figure>'
