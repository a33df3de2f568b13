"""`precgui places`: the machines that train for this one (docs/places.md)."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from precgui.cli.console import HarmlessConsole
from precgui.cli.parser import UserError
from precgui.cli.terminal import say
from precgui.hardware.readings import gibibytes
from precgui.places.contact import no_torch
from precgui.places.messages import JobLine
from precgui.places.settings import (
    NamedPlace,
    add_place,
    command_place,
    place_called,
    places,
    places_file,
    remove_place,
    ssh_place,
)
from precgui.places.trial import PlaceAnswer, answer_of, answers_of, jobs_of
from precgui.words import _, translated

_SSH = "ssh:"
_SHOWN_DIGITS = 12  # of the 32 of a job; `attach` takes the beginning of a name


def add_parsers(subparsers: Any) -> None:
    """Add `places` to the command line."""
    parser = subparsers.add_parser("places", help=_("machines that train for this one, over ssh or any command"))
    parser.set_defaults(run=lambda args: _list(as_json=False))
    actions = parser.add_subparsers(metavar="ACTION")
    add = actions.add_parser("add", help=_("add a place, and ask it for its hello"))
    add.add_argument("name", help=_("the name that it shall have here"))
    add.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="ssh:HOST | COMMAND ...",
        help=_("a host that ssh knows, or the words of a command that starts `precgui serve --stdio`"),
    )  # fmt: skip
    add.add_argument(
        "--precgui", default="precgui", metavar="WORDS",
        help=_("precgui there, before ssh:HOST, e.g. --precgui ~/env/bin/precgui or --precgui 'python3 -m precgui'"),
    )  # fmt: skip
    add.add_argument("--untested", action="store_true", help=_("add it without asking it"))
    add.set_defaults(run=_add)
    for name, call, text in (
        ("test", _test, _("ask a place for its hello: devices, versions, free memory")),
        ("remove", _remove, _("forget a place; what is there stays")),
        ("jobs", _jobs, _("runs and commands at a place")),
    ):
        action = actions.add_parser(name, help=text)
        action.add_argument("name")
        action.add_argument("--json", action="store_true", help=_("print one JSON document and nothing else"))
        action.set_defaults(run=call)
    listing = actions.add_parser("list", help=_("all places, each asked for its hello"))
    listing.add_argument("--json", action="store_true", help=_("print one JSON document and nothing else"))
    listing.set_defaults(run=lambda args: _list(as_json=args.json))
    _add_attach(actions)
    _add_files(actions)


def _add_files(actions: Any) -> None:
    opening = actions.add_parser(
        "open", help=_("print the path of a copy of the file of a run at a place, which is only read and fetched once")
    )
    opening.add_argument("name")
    opening.add_argument("job", metavar="JOB", help=_("its name, or the beginning of it"))
    opening.set_defaults(run=_open)
    fetch = actions.add_parser(
        "fetch", help=_("list the files of a job, such as checkpoints, or bring some of them home")
    )
    fetch.add_argument("name")
    fetch.add_argument("job", metavar="JOB", help=_("its name, or the beginning of it"))
    fetch.add_argument("files", nargs="*", metavar="FILE", help=_("as the list names it; without one they are listed"))
    fetch.add_argument(
        "-o", "--output", type=Path, default=Path(), metavar="DIR", help=_("default: the present folder")
    )
    fetch.set_defaults(run=_fetch)


def _add_attach(actions: Any) -> None:
    attach = actions.add_parser("attach", help=_("follow a run at a place to its end, and bring its file home"))
    attach.add_argument("name")
    attach.add_argument(
        "job", metavar="JOB", help=_("its name, or the beginning of it, as `precgui places jobs` shows it")
    )
    attach.add_argument("-o", "--output", type=Path, metavar="RUN.h5", help=_("the run file; must not exist yet"))
    attach.add_argument("--stop", action="store_true", help=_("ask it to end first"))
    attach.add_argument("--json", action="store_true", help=_("print one JSON document and nothing else"))
    attach.set_defaults(run=_attach)


def _add(args: argparse.Namespace) -> int:
    words: list[str] = args.command
    if len(words) == 1 and words[0].startswith(_SSH):
        place = ssh_place(args.name, words[0].removeprefix(_SSH), args.precgui)
    else:
        place = command_place(args.name, words)
    if args.name in places():
        raise UserError(
            _("there is a place {name} already; remove it first with `precgui places remove`").format(name=args.name)
        )
    answer = None if args.untested else answer_of(place)
    if answer is not None and answer.hello is None:
        raise UserError(
            _("{why}; {name} was not added (--untested adds a place without asking it)").format(
                why=translated(answer.why), name=place.name
            )
        )
    add_place(place)
    can_train = answer is None or answer.hello is None or answer.hello.torch
    if can_train:
        text, why = _("{name} is in {file}; precgui run --place {name} trains there"), ""
    else:
        text, why = _("{name} is in {file}; {why}"), translated(no_torch(place))
    say(text.format(name=place.name, file=places_file(), why=why))
    return 0


def _test(args: argparse.Namespace) -> int:
    """Returns 1 where the place does not answer."""
    answer = answer_of(place_called(args.name))
    if args.json:
        print(json.dumps(answer.document(), indent=1))
    else:
        _show([answer])
    return int(answer.hello is None)


def _remove(args: argparse.Namespace) -> int:
    remove_place(args.name)
    if args.json:
        print(json.dumps({"removed": args.name}))
    return 0


def _list(*, as_json: bool) -> int:
    answers = answers_of(list(places().values()))
    if as_json:
        print(json.dumps({"places": [answer.document() for answer in answers]}, indent=1))
    elif answers:
        _show(answers)
    else:
        say(_("no place has been added; `precgui places add NAME ssh:HOST` adds one (docs/places.md)"))
    return 0


def _show(answers: list[PlaceAnswer]) -> None:
    table = Table(
        _("Place"), _("Devices"), _("Free memory"), "precgui, torch", _("Command"), box=None, header_style="bold"
    )
    for answer in answers:
        place, hello = escape(answer.place.name), answer.hello
        if hello is None:
            table.add_row(place, f"[red]{escape(translated(answer.why))}", "", "", escape(answer.place.text))
            continue
        names = "\n".join(f"{device.id}  {device.name}" for device in hello.devices)
        free = "\n".join(gibibytes(device.free_bytes) if device.free_bytes else "" for device in hello.devices)
        versions = ", ".join((hello.precgui, hello.torch or _("no torch")))
        table.add_row(place, escape(names), free, escape(versions), escape(answer.place.text))
    HarmlessConsole().print(table)


def _jobs(args: argparse.Namespace) -> int:
    lines = jobs_of(place_called(args.name))
    if args.json:
        from dataclasses import asdict

        from precgui.sanitize import sanitize_tree

        rows = [sanitize_tree({**asdict(line), "files": list(line.files)}) for line in lines]
        print(json.dumps({"jobs": rows}, indent=1))
        return 0
    table = Table(box=None, header_style="bold")
    for title, fold in ((_("Job"), False), (_("Title"), True), (_("Started"), False), ("", False), (_("Files"), True)):
        table.add_column(title, no_wrap=not fold, overflow="fold")
    for line in lines:
        state = "[green]" + _("running") if line.is_running else _("ended")
        started = line.started[:16].replace("T", " ")
        table.add_row(line.job[:_SHOWN_DIGITS], escape(line.title), started, state, escape(", ".join(line.files[:3])))
    HarmlessConsole().print(table if lines else _("No jobs at {name}.").format(name=args.name))
    return 0


def _attach(args: argparse.Namespace) -> int:
    from precgui.cli.place_run import attach

    place = place_called(args.name)
    line = _job_called(place, args.job)
    if line.kind != "run":
        raise UserError(_("{job} is a command, and only a run can be followed again").format(job=line.job))
    return attach(place, line, args)


def _job_called(place: NamedPlace, beginning: str) -> JobLine:
    """The job of a place whose name begins like this. Raises UserError."""
    if not beginning:
        raise UserError(
            _("the name of a job is empty; `precgui places jobs {name}` shows the names").format(name=place.name)
        )
    found = [line for line in jobs_of(place) if line.job.startswith(beginning)]
    if len(found) != 1:
        raise UserError(
            _("{found} jobs at {name} begin with {beginning}; `precgui places jobs {name}` shows all").format(
                found=len(found), name=place.name, beginning=beginning
            )
        )
    return found[0]


def _open(args: argparse.Namespace) -> int:
    from precgui.places.opened import opened_there

    place = place_called(args.name)
    say(opened_there(place, _job_called(place, args.job)))
    return 0


def _fetch(args: argparse.Namespace) -> int:
    from precgui.places.jobs import is_file_name
    from precgui.places.placed_job import PlacedJob

    place = place_called(args.name)
    line = _job_called(place, args.job)
    if not args.files:
        for name in line.files:
            say(name)
        return 0
    if unknown := [name for name in args.files if name not in line.files or not is_file_name(name)]:
        raise UserError(
            _("the job {job} has no file {unknown}; without a FILE they are listed").format(
                job=line.job[:_SHOWN_DIGITS], unknown=unknown[0]
            )
        )
    job = PlacedJob(place, line.job)
    try:
        job.open()
        for name in args.files:
            job.fetch(name, args.output / name)
            say(f"{args.output / name}")
    finally:
        job.close()
    return 0
