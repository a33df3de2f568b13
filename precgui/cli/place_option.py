"""`--place NAME`: a command of precgui that runs at a place, its output shown here as it comes."""

from __future__ import annotations

import argparse
import shutil
import sys
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from precgui import config
from precgui.cli.parser import UserError
from precgui.cli.terminal import say

_CONFIG_FILE = "config.toml"
_STOPPED = 130


def add_place_option(
    parser: argparse.ArgumentParser, run_there: Callable[[argparse.Namespace, Sequence[str]], int] | None = None
) -> None:
    """Add the option; `run_there` takes the arguments and the words of the command line, and returns the exit code."""
    parser.add_argument("--place", metavar="NAME", help="run it at this place (precgui places)")
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


def run_config_there(args: argparse.Namespace, words: Sequence[str]) -> int:
    """Run the words with the config or recipe that they name, which is sent as a file; what `-o` names comes home."""
    name = "source" if hasattr(args, "source") else "config"
    source: str = getattr(args, name)
    if Path(source).is_dir() or source.endswith(".h5"):
        raise UserError(f"{source} is on this machine, which {args.place} does not read; name a config or a recipe")
    requested = config.load(source)
    tasks = _tasks(source, args)
    if own := next(filter(config.is_own_task, tasks), ""):
        raise UserError(f"{own} is a task of your own, which only `precgui run --place {args.place} --own-code` sends")
    output = getattr(args, "output", None)
    if output is not None and output.exists():
        raise UserError(f"{output} is there already; choose another name")
    rest = without_place(words)
    rest[rest.index(source) if source in rest else 1 : rest.index(source) + 1 if source in rest else 1] = [_CONFIG_FILE]
    if output is not None:
        rest = _with_output(rest, str(output), output.name)
    text = config.to_toml(requested).encode()
    return follow_command(args.place, rest, {_CONFIG_FILE: text}, output)


def _tasks(source: str, args: argparse.Namespace) -> list[str]:
    """All that the words of a profile or a sweep train."""
    from precgui.sweeps.spec import parse_vary

    varied = dict(parse_vary(text) for text in getattr(args, "vary", ()))
    return [config.load(source, args.settings).task, *map(str, varied.get("task", ()))]


def _with_output(words: list[str], given: str, name: str) -> list[str]:
    return [name if word == given else f"--output={name}" if word == f"--output={given}" else word for word in words]


def follow_command(
    place: str, words: Sequence[str], files: dict[str, bytes] | None = None, home: Path | None = None
) -> int:
    """Run the words at a place and print what they print; `home` takes the files that they make. Returns their code."""
    import hashlib

    from precgui.places.messages import SentFile, StartCommand
    from precgui.places.placed_job import PlacedJob
    from precgui.places.settings import place_called

    sent = tuple(SentFile(name, hashlib.sha256(data).hexdigest(), data) for name, data in (files or {}).items())
    columns = shutil.get_terminal_size().columns
    job = PlacedJob(place_called(place), order=StartCommand(uuid.uuid4().hex, tuple(words), columns, sent))
    try:
        job.open()
        code = _relay(job)
        if home is not None and code == 0:
            _bring_files(job, home)
    finally:
        job.close()
    return code


def _relay(job: Any) -> int:
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
        if isinstance(message, JobOutput):
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
            say(f"precgui: {state or 'the link is there again'}", file=sys.stderr)


def _bring_files(job: Any, home: Path) -> None:
    """The file `home.name` of the job to `home`, or each file in the folder of this name into it."""
    from precgui.places.jobs import is_file_name

    for name in filter(is_file_name, job.files()):
        if name == home.name:
            job.fetch(name, home)
        elif name.startswith(f"{home.name}/"):
            job.fetch(name, home / name.partition("/")[2])
