"""`precgui sweep ... --place login --slurm`: a sweep whose folder is at a place, where its blocks wait in a queue.

The folder here has the plan, the runs that have been brought home, and `queued.json`: the place, and the job in whose
folder there the sweep is. The same words with that folder ask the queue, and bring home what has ended since.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precgui.cli.parser import UserError
from precgui.cli.place_option import follow_command, run_source_there, without_place
from precgui.cli.terminal import say
from precgui.safe_open import read_text, replace_file
from precgui.sweeps.folder import MEMBERS, PLAN, QUEUED, SPEC, TARGETS
from precgui.sweeps.state import ENDED
from precgui.words import _

_MOST_BYTES = 4096
_JOB = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class QueuedSweep:
    """Where the folder of a sweep is: `name` in the folder of a job at a place."""

    place: str
    job: str
    name: str


def queued_at(folder: Path) -> QueuedSweep | None:
    """None where the sweep is none of a queue at a place."""
    try:
        kept = json.loads(read_text(folder / QUEUED, _MOST_BYTES))
        found = QueuedSweep(str(kept["place"]), str(kept["job"]), str(kept["name"]))
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return None
    from precgui.places.jobs import is_file_name

    return found if _JOB.fullmatch(found.job) and is_file_name(found.name) and "/" not in found.name else None


def submit_there(args: argparse.Namespace, words: Sequence[str]) -> int:
    """Plan the sweep and submit its blocks at the place. Returns the exit code of the command there."""
    home: Path | None = args.output
    if home is None or "," in args.place:
        raise UserError(_("--slurm at a place needs one place, and with -o the folder that the sweep shall have here"))

    def bring(job: Any) -> None:
        for name in job.files():
            if name in (f"{home.name}/{part}" for part in (SPEC, PLAN, TARGETS)):
                job.fetch(name, home / name.partition("/")[2])
        queued = {"place": args.place, "job": job.job, "name": home.name}
        replace_file(home / QUEUED, json.dumps(queued).encode())
        say(
            _("`precgui sweep {home} --place {place}` shows the runs and brings home those that have ended").format(
                home=home, place=args.place
            )
        )

    return run_source_there(args, words, bring)


def ask_queue(args: argparse.Namespace, words: Sequence[str]) -> int:
    """Run the words on the folder at the place, and bring home the runs that have ended. Returns their exit code."""
    home = Path(args.source)
    queued = queued_at(home)
    assert queued is not None
    if args.place != queued.place:
        raise UserError(
            _("the runs of {home} are in the queue at {place}; name it with --place {place}").format(
                home=home, place=queued.place
            )
        )
    there = [queued.name if word == args.source else word for word in without_place(words)]
    if not (args.slurm or args.jobs or args.cancel_jobs or args.plan):
        there.append("--plan")  # nothing is trained on the host of the queue itself
    code = follow_command(queued.place, there, of=queued.job)
    printed: list[str] = []

    def bring(job: Any) -> None:
        made = set(job.files())
        for name in _ended("".join(printed)):
            part = f"{MEMBERS}/{name}.h5"
            if f"{queued.name}/{part}" in made and not (home / part).exists():
                job.fetch(f"{queued.name}/{part}", home / part)
                say(f"{home / part}")

    asked = ["sweep", queued.name, "--plan", "--json"]
    return code or follow_command(queued.place, asked, of=queued.job, bring=bring, printed=printed)


def _ended(document: str) -> list[str]:
    """The names of the runs that have ended, of what `sweep --plan --json` has printed at a place."""
    from precgui.places.jobs import is_file_name

    try:
        members = json.loads(document)["members"]
        return [
            str(member["name"])
            for member in members
            if member["status"] in ENDED and is_file_name(str(member["name"])) and "/" not in str(member["name"])
        ]
    except (ValueError, RecursionError, KeyError, TypeError):
        raise UserError(_("the place printed no sweep; upgrade precgui there")) from None
