"""`precgui claims`: statements of guides that are wrong, with the bits, and those that a study measures."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from rich.text import Text

from precgui.cli.format_tables import console, print_json
from precgui.cli.parser import UserError
from precgui.formats.claims import CLAIMS, Claim
from precgui.runs.study.guide_claims import GuideClaim, guide_claims
from precgui.words import L_, _, translated

WRONG = L_("Statements that are wrong")
MEASURED = L_("Statements that a study measures here: precgui sweep, then precgui compare --groups")


def add_parsers(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command and set its `run`."""
    parser = subparsers.add_parser(
        "claims", help=_("statements of guides about precision that are wrong, with the bits, and those to be measured")
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help=_("only statements that hold all of these words"))
    parser.add_argument("--json", action="store_true", help=_("print one JSON document"))
    parser.set_defaults(run=run_claims)


def run_claims(args: argparse.Namespace) -> int:
    shown = str if args.json else translated  # JSON is the same in every language
    wrong = [claim for claim in CLAIMS if _holds(args.words, claim.claim, claim.truth, shown)]
    measured = [claim for claim in guide_claims() if _holds(args.words, claim.sentence, claim.source, shown)]
    if args.words and not wrong and not measured:
        raise UserError(
            _("no statement holds {words}; precgui claims lists all").format(words=_(" and ").join(args.words))
        )
    if args.json:
        print_json({"wrong": [_row(claim) for claim in wrong], "measured": [asdict(each) for each in measured]})
        return 0
    _print_wrong(wrong)
    _print_measured(measured)
    return 0


def _holds(words: Sequence[str], claim: str, truth: str, shown: Callable[[str], str]) -> bool:
    """Whether the English or the shown texts hold all words."""
    whole = " ".join((claim, truth, shown(claim), shown(truth))).lower()
    return all(word.lower() in whole for word in words)


def _row(claim: Claim) -> dict[str, Any]:
    return {
        "claim": claim.claim, "truth": claim.truth, "number": claim.number or None, "evidence": claim.evidence(),
        "rules": list(claim.rules),
    }  # fmt: skip


def _print_wrong(claims: Sequence[Claim]) -> None:
    screen = console()
    if claims:
        screen.print(Text(translated(WRONG), style="bold"))
    for claim in claims:
        screen.print(Text(f"✗ {translated(claim.claim)}", style="red"))
        screen.print(Text(f"  {translated(claim.truth)}"))
        for line in claim.evidence():
            screen.print(Text(f"    {translated(line)}", style="cyan"))


def _print_measured(claims: Sequence[GuideClaim]) -> None:
    screen = console()
    if claims:
        screen.print(Text(translated(MEASURED), style="bold"))
    for claim in claims:
        screen.print(Text(f"? {translated(claim.sentence)}"))
        screen.print(Text(f"  {translated(claim.cited)}", style="dim"))
