"""`precgui diagnose`: verdicts on recorded runs with their proof; the exit code says whether there are problems."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from precgui.cli.console import HarmlessConsole
from precgui.cli.terminal import say_notes
from precgui.config.names import OWN_LOOP
from precgui.formats.checkpoints.contents import open_checkpoint
from precgui.formats.checkpoints.suffixes import is_checkpoint
from precgui.formats.weight_formats import DEFAULT, weight_format
from precgui.words import L_, _, translated

if TYPE_CHECKING:
    from precgui.runs.diagnosis import Diagnosis, Finding

_EVENT_FILES = "*tfevents*"
_COLOURS = {L_("error"): "red", L_("warning"): "yellow", L_("info"): "cyan"}


def add_parsers(subparsers: Any) -> None:
    """Add `diagnose` to the command line."""
    parser = subparsers.add_parser(
        "diagnose",
        help=_("say whether runs, or the weights of a model, are healthy, and if not: why, with proof and fix"),
        epilog=_("Exit code: 0 all runs are healthy, 1 there are problems, 2 the command cannot be understood."),
    )
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="RUN.h5|MODEL",
        help=_("run files, TensorBoard event files, or models as precgui model reads them"),
    )  # fmt: skip
    parser.add_argument("--ruled-out", action="store_true", help=_("list what is ruled out, too, each with its number"))
    parser.add_argument("--json", action="store_true", help=_("print one JSON document and nothing else"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Diagnose each run and report; 0 when all are healthy, else 1. Raises SentenceError for a file that is no run."""
    reported = [(path, *_diagnosis(path)) for path in args.files]
    if args.json:
        documents = [_as_json(path, outcome) for path, outcome, _settable in reported]
        print(
            json.dumps(
                documents[0] if len(documents) == 1 else {"runs": documents}, ensure_ascii=False, allow_nan=False
            )
        )
    else:
        console = HarmlessConsole(highlight=False, soft_wrap=True)
        for path, result, is_settable in reported:
            _print(console, path, result, ruled_out=args.ruled_out, settings=is_settable)
    return 0 if all(result.verdict == "healthy" for path, result, _settable in reported) else 1


def _diagnosis(path: Path) -> tuple[Diagnosis, bool]:
    """The diagnosis, and whether `--set` can change what it is of: a loop of one's own has no such settings."""
    from precgui.runs.diagnosis import examine
    from precgui.runs.open import open_run_or_events
    from precgui.runs.recorded_facts import breaks_sentence

    if is_checkpoint(path) and not any(path.glob(_EVENT_FILES)):
        return _of_model(path), False
    with open_run_or_events(path) as opened:
        result = examine(opened)
        sentence = breaks_sentence(opened)
        broke_off = [_("The run {sentence}.").format(sentence=translated(sentence))] if sentence else []
        say_notes(path, [*opened.notes, *broke_off])
        return result, opened.config.task != OWN_LOOP


def _of_model(path: Path) -> Diagnosis:
    """The findings on a trained model, which is scanned in the usual formats; nothing is kept."""
    from precgui.model_job import scan_model
    from precgui.runs.diagnosis import examine_scan
    from precgui.runs.models.model_file import scan_of

    checkpoint, formats = open_checkpoint(path), [weight_format(name) for name in DEFAULT]
    say_notes(path, checkpoint.notes)
    surveys = scan_model(checkpoint, formats, None, lambda share: None)[0]
    return examine_scan(scan_of(checkpoint, formats, surveys))


def _as_json(path: Path, result: Diagnosis) -> dict[str, Any]:
    from precgui.runs.diagnosis import as_json

    return {
        "run": str(path),
        "verdict": result.verdict,
        "sentence": result.sentence,
        "findings": [as_json(each) for each in result.findings],
        "ruled_out": [{"rule": each.rule, "why": each.why} for each in result.ruled_out],
        "not_told": [{"rule": each.rule, "needs": each.needs} for each in result.undecided],
    }


def _print(console: Console, path: Path, diagnosis: Diagnosis, *, ruled_out: bool, settings: bool) -> None:
    colour = {"healthy": "green", "problems": "red"}.get(diagnosis.verdict, "yellow")
    console.print(f"[bold]{escape(str(path))}[/]: [{colour}]{escape(translated(diagnosis.sentence))}[/]")
    for each in diagnosis.findings:
        _print_finding(console, each, settings=settings)
    for reported in diagnosis.ruled_out if ruled_out else ():
        text = _("ruled out: {rule}, {why}").format(rule=reported.rule, why=escape(translated(reported.why)))
        console.print(f"  [dim]{text}[/]")
    for missing in diagnosis.undecided:
        text = _("not told: {rule}; record {needs}").format(rule=missing.rule, needs=escape(translated(missing.needs)))
        console.print(f"  [dim]{text}[/]")


def _print_finding(console: Console, finding: Finding, *, settings: bool) -> None:
    from precgui.formats.claims import claims_about
    from precgui.runs.diagnosis import blame_sentence

    severity, title, steps = (translated(text) for text in (finding.severity, finding.title, finding.steps))
    what = _("[bold]{title}[/] ({rule}, {steps})").format(title=escape(title), rule=finding.rule, steps=steps)
    console.print(f"  [{_COLOURS[finding.severity]}]{severity}[/] {what}")
    for each in finding.evidence:
        console.print(f"    {escape(translated(each.text))}")
    console.print("    " + _("Fix: {fix}").format(fix=escape(translated(finding.fix))))
    for name, value in finding.config_change.items() if settings else ():
        console.print(f"      --set {escape(name)}={escape(_setting(value))}")
    if finding.is_problem:
        console.print(f"    {escape(translated(blame_sentence(finding)))}")
        certainty = translated(finding.certainty)
        text = _("{certainty}, confidence {confidence:.0%}.")
        text = text.format(certainty=certainty[:1].upper() + certainty[1:], confidence=finding.confidence)
        console.print(f"    {text}")
    for claim in claims_about(finding.rule):
        console.print(f"    [dim]{escape(translated(claim.sentence))}[/]")
    if finding.needs:
        text = _("To be surer: {needs}.").format(needs=escape(translated(finding.needs)))
        console.print(f"    {text}")


def _setting(value: Any) -> str:
    """A value as text that `--set` accepts."""
    if isinstance(value, bool):
        return str(value).lower()
    return (
        ",".join(map(str, value))
        if isinstance(value, list)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )
