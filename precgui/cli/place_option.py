"""`--place NAME`: a command of precgui that runs at a place, its output shown here as it comes."""

from __future__ import annotations

import argparse
import shutil
import sys
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from precgui import config
from precgui.cli.parser import UserError
from precgui.cli.terminal import say
from precgui.words import L_, _, translated

_CONFIG_FILE = "config.toml"


def add_place_option(
    parser: argparse.ArgumentParser,
    run_there: Callable[[argparse.Namespace, Sequence[str]], int] | None = None,
    about: str = L_("run it at this place (precgui places)"),
) -> None:
    """Add the option; `run_there` takes the arguments and the words of the command line, and returns the exit code."""
    parser.add_argument("--place", metavar="NAME", help=translated(about))
    parser.set_defaults(run_there=run_there or run_words_there)


def without_place(words: Sequence[str]) -> list[str]:
    """The words of the command line without `--place NAME`."""
    kept, skip = [], False
    for word in words:
        if skip or word == "--place":
            skip = not skip
        elif not word.startswith("--place="):
            kept.append(word)
    return kept


def run_words_there(args: argparse.Namespace, words: Sequence[str]) -> int:
    """Run the same words at the place. Returns their exit code."""
    return follow_command(args.place, without_place(words))


def run_source_there(args: argparse.Namespace, words: Sequence[str], bring: Callable[[Any], None] | None = None) -> int:
    """Run the words with the config, recipe or run file that they name. Returns their exit code.

    A config or recipe is sent as a file. A run file must be of a run that was trained at the place: its file there is
    taken. What `-o` and `--sweep` name comes home, or what `bring` fetches from the job.
    """
    name = next(name for name in ("source", "config", "file") if hasattr(args, name))
    source = str(getattr(args, name))
    homes = [path for path in (getattr(args, "output", None), getattr(args, "sweep", None)) if path is not None]
    for home in homes:
        if home.exists():
            raise UserError(_("{home} is there already; choose another name").format(home=home))
    rest = without_place(words)
    for home in homes:
        rest = _with_output(rest, str(home), home.name)
    if source.endswith(".h5"):
        return _run_file_there(args.place, Path(source), rest, homes)
    if Path(source).is_dir():
        raise UserError(
            _("{source} is on this machine, which {place} does not read; name a config or a recipe").format(
                source=source, place=args.place
            )
        )
    requested = config.load(source)
    tasks = _tasks(source, args)
    if own := next(filter(config.is_own_task, tasks), ""):
        raise UserError(
            _("{own} is a task of your own, which only `precgui run --place {place} --own-code` sends").format(
                own=own, place=args.place
            )
        )
    rest[rest.index(source) if source in rest else 1 : rest.index(source) + 1 if source in rest else 1] = [_CONFIG_FILE]
    text = config.to_toml(requested).encode()
    return follow_command(args.place, rest, {_CONFIG_FILE: text}, homes, bring=bring)


def _run_file_there(place: str, path: Path, words: list[str], homes: Sequence[Path]) -> int:
    """Run words on the file that a run has at its place; what they keep beside it comes home, beside the file here."""
    from precgui.places.jobs import RUN_FILE

    run_id = placed_run(place, path)
    there = [RUN_FILE if word == str(path) else word for word in words]
    return follow_command(place, there, homes=homes, of=run_id, beside=path)


def placed_run(place: str, path: Path) -> str:
    """The name of the run in a file here, which the place has, too. Raises SentenceError."""
    from precgui.places.settings import place_called
    from precgui.places.trial import job_of_run
    from precgui.runs.file.reader import open_run

    with open_run(path) as saved:
        run_id, where = saved.run_id, str(saved.environment.get("place") or "")
    job_of_run(place_called(place), run_id, path, where)
    return run_id


def _tasks(source: str, args: argparse.Namespace) -> list[str]:
    """All that the words of a profile or a sweep train."""
    from precgui.sweeps.spec import parse_vary

    varied = dict(parse_vary(text) for text in getattr(args, "vary", ()))
    return [config.load(source, args.settings).task, *map(str, varied.get("task", ()))]


def _with_output(words: list[str], given: str, name: str) -> list[str]:
    return [name if word == given else f"--output={name}" if word == f"--output={given}" else word for word in words]


def follow_command(
    place: str,
    words: Sequence[str],
    files: dict[str, bytes] | None = None,
    homes: Sequence[Path] = (),
    *,
    of: str = "",
    beside: Path | None = None,
    bring: Callable[[Any], None] | None = None,
    printed: list[str] | None = None,
) -> int:
    """Run the words at a place and print what they print; `homes` take the files that they make. Returns their code.

    `of` is a job there in whose folder they run; results that they keep beside the file of a run come beside the file
    `beside`. `bring` takes the job instead, to fetch what it wants; `printed` takes what is printed.
    """
    import hashlib

    from precgui.places.command import CODES_WITH_FILES
    from precgui.places.messages import SentFile, StartCommand
    from precgui.places.placed_job import PlacedJob
    from precgui.places.settings import place_called

    sent = tuple(SentFile(name, hashlib.sha256(data).hexdigest(), data) for name, data in (files or {}).items())
    columns = shutil.get_terminal_size().columns
    job = PlacedJob(place_called(place), order=StartCommand(uuid.uuid4().hex, tuple(words), columns, sent, of))
    try:
        job.open()
        code = _relay(job, printed)
        if code in CODES_WITH_FILES:
            if beside is not None or bring is not None:
                job.job = of or job.job
            (bring or partial(_bring_files, homes=homes, beside=beside))(job)
    finally:
        job.close()
    return code


def _relay(job: Any, printed: list[str] | None) -> int:
    from precgui.places.messages import CommandEnded, JobOutput

    shown = LinkWords()
    asked = False
    while True:
        try:
            message = job.receive(0.2)
        except KeyboardInterrupt:
            if asked:
                raise
            asked = True
            job.stop()
            continue
        shown.show(job.state)
        if isinstance(message, JobOutput) and message.stream == "stdout" and printed is not None:
            printed.append(message.text)
        elif isinstance(message, JobOutput):
            say(message.text, file=sys.stdout if message.stream == "stdout" else sys.stderr, end="", flush=True)
        elif isinstance(message, CommandEnded):
            return message.exit_code


class LinkWords:
    """Says on stderr that the link is lost, and that it is there again."""

    def __init__(self) -> None:
        self._was_lost = False

    def show(self, state: str) -> None:
        """`state` is that of a `PlacedJob`."""
        if bool(state) != self._was_lost:
            self._was_lost = bool(state)
            say("precgui: " + (translated(state) or _("the link is there again")), file=sys.stderr)


def _bring_files(job: Any, homes: Sequence[Path], beside: Path | None) -> None:
    """The files of the job: one with the name of a home to it, those in a folder of this name into it.

    Of a run, also the results beside its file.
    """
    from precgui.places.command import bring_results
    from precgui.places.jobs import is_file_name

    for name in filter(is_file_name, job.files() if homes else ()):
        for home in homes:
            if name == home.name:
                job.fetch(name, home)
            elif name.startswith(f"{home.name}/"):
                job.fetch(name, home / name.partition("/")[2])
    if beside is not None:
        bring_results(job, beside)
