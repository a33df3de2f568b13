"""A command of precgui at a place whose output is wanted here as a whole: what the window asks of other machines."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from precgui.places.contact import ContactError
from precgui.places.jobs import RUN_FILE, is_file_name
from precgui.places.messages import CommandEnded, JobOutput, SentFile, StartCommand
from precgui.places.placed_job import Detached, JobError, PlacedJob
from precgui.places.settings import NamedPlace
from precgui.sanitize import one_line, sanitize_tree
from precgui.sentences import Sentence

MOST_CHARACTERS = 32 << 20
CODES_WITH_FILES = (0, 1)  # 1: there are problems, or a plan could not be shown to keep the metric
_COLUMNS = 200
_POLL_S = 0.2


def printed_there(
    place: NamedPlace,
    words: Sequence[str],
    files: Sequence[SentFile] = (),
    look: Callable[[], object] = lambda: None,
) -> str:
    """Run `precgui WORDS` at a place; returns what it printed, and removes its job there. `look` is called often.

    Raises ContactError, JobError for a command that failed, and whatever `look` raises: the command is stopped then.
    """
    job = PlacedJob(place, order=StartCommand(uuid.uuid4().hex, tuple(words), _COLUMNS, tuple(files)))
    try:
        job.open()
        printed, said, code = _heard(job, look)
        with suppress(ContactError, JobError):
            job.remove()
    finally:
        job.close()
    if code:
        raise failed_there(place, said, code)
    return printed


def bring_results(job: PlacedJob, path: Path) -> int:
    """Fetch the results that lie beside the file of a run, to the same names beside `path`; returns how many."""
    prefix = f"{RUN_FILE}."
    names = [name for name in job.files() if name.startswith(prefix) and name.endswith(".json") and is_file_name(name)]
    for name in names:
        job.fetch(name, path.with_name(path.name + name.removeprefix(RUN_FILE)), may_replace=lambda path: True)
    return len(names)


def failed_there(place: NamedPlace, said: str, code: int) -> JobError:
    """The error of a command that ended with a code; `said` is what it printed on standard error."""
    lines = said.strip().splitlines()
    if not lines:
        return JobError(Sentence("{place}: exit code {code}", place=place.name, code=code))
    text = one_line(lines[-1].removeprefix("precgui: "), 400)
    return JobError(Sentence("{place}: {message}", place=place.name, message=text))


def document_there(
    place: NamedPlace,
    words: Sequence[str],
    files: Sequence[SentFile] = (),
    look: Callable[[], object] = lambda: None,
) -> Any:
    """The JSON document that `precgui WORDS` prints at a place, its texts harmless. Raises as `printed_there`."""
    try:
        return sanitize_tree(json.loads(printed_there(place, words, files, look), parse_constant=_refuse))
    except (ValueError, RecursionError):
        raise JobError(Sentence("{name} printed no JSON document; upgrade precgui there", name=place.name)) from None


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _heard(job: PlacedJob, look: Callable[[], object]) -> tuple[str, str, int]:
    """The texts of both streams of the command, and its exit code."""
    texts: dict[str, list[str]] = {"stdout": [], "stderr": []}
    size = 0
    try:
        while True:
            look()
            message = job.receive(_POLL_S)
            if isinstance(message, JobOutput):
                texts[message.stream].append(message.text)
                size += len(message.text)
                if size > MOST_CHARACTERS:
                    raise JobError(
                        Sentence(
                            "{name} prints more than {most} million characters",
                            name=job.place.name,
                            most=MOST_CHARACTERS >> 20,
                        )
                    )
            elif isinstance(message, CommandEnded):
                return "".join(texts["stdout"]), "".join(texts["stderr"]), message.exit_code
    except (ContactError, Detached):
        raise
    except BaseException:
        with suppress(ContactError, JobError):
            job.stop_now()
        raise
