"""A trained model for work at a place: sent where it is small, taken as it is there where it is there."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precgui.config import is_own_task
from precgui.config.new_places import place_fault
from precgui.errors import SentenceError
from precgui.places.jobs import RUN_FILE
from precgui.places.orders import MOST_SENT_BYTES
from precgui.places.placed_task import TaskPlace
from precgui.places.settings import NamedPlace
from precgui.planner.ledger import mib
from precgui.runs.file.reader import open_run
from precgui.sentences import L_, Sentence

_HUGGING_FACE = "hf:"


class ModelError(SentenceError):
    """A model cannot be used at a place."""


@dataclass(frozen=True, slots=True)
class ModelThere:
    """`source` and `task` as they are named there, the files here that are sent for it, and the run whose model it is.

    `run` is the file here of the run `run_id`; None where it is none.
    """

    source: str
    task: str
    files: tuple[Path, ...]
    run_id: str = ""
    run: Path | None = None


def model_there(place: NamedPlace, source: str, task: str = "") -> ModelThere:
    """The model that `source` names: `PLACE:PATH` is there, a run file is that of a run there, others are sent.

    Raises SentenceError for what is not there, and for what is too large to be sent.
    """
    head = _HUGGING_FACE if source.startswith(_HUGGING_FACE) else ""
    named = source.removeprefix(head)
    task_name, files = _task_there(task)
    if named.startswith(f"{place.name}:"):
        there = named.partition(":")[2]
        _require_small(place, files)
        return ModelThere(head + (there if there.startswith(("/", "~")) else f"~/{there}"), task_name, files)
    path = Path(named).expanduser()
    if path.suffix == ".h5":
        if files:
            raise ModelError(L_("a run at a place brings its own task; leave the task out"))
        with open_run(path) as saved:
            return ModelThere(RUN_FILE, task_name, (), saved.run_id, path)
    if not path.exists():
        raise ModelError(
            Sentence(
                "there is no {path} on this machine; a model that is at {place} is named {place}:PATH",
                path=path,
                place=place.name,
            )
        )
    own = (path,) if path.is_file() else tuple(sorted(each for each in path.iterdir() if each.is_file()))
    _require_small(place, (*own, *files))
    return ModelThere(head + (path.name if path.is_file() else "."), task_name, (*own, *files))


def _task_there(task: str) -> tuple[str, tuple[Path, ...]]:
    """The task as it is named there, and its file of code or its config."""
    file, _, function = task.rpartition(":")
    if is_own_task(task) and file.endswith(".py"):
        return f"{Path(file).name}:{function}", (Path(file).expanduser(),)
    if task.endswith(".toml"):
        return Path(task).name, (Path(task).expanduser(),)
    return task, ()


def _require_small(place: NamedPlace, files: tuple[Path, ...]) -> None:
    """Raises ModelError, OSError."""
    size = sum(path.stat().st_size for path in files)
    if size > MOST_SENT_BYTES:
        raise ModelError(
            Sentence(
                "{path} has {size}, and at most {most} are sent; copy it to {place}, such as with scp, and name it "
                "{place}:PATH",
                path=files[0] if len(files) == 1 else files[0].parent,
                size=mib(size),
                most=mib(MOST_SENT_BYTES),
                place=place.name,
            )
        )


def quantize_there(place: NamedPlace, order: Mapping[str, Any], output: Path) -> tuple[TaskPlace, dict[str, Any], Path]:
    """The place for `quantize_job.serve` and all that it needs, the order as it is there, and a free path here.

    `output` gets a number where it is taken. Raises SentenceError, OSError.
    """
    model = model_there(place, order["source"], order["task"])
    output = _free(output)
    homes = [output]
    if folder := order["folder"]:
        if fault := place_fault(folder):
            raise ModelError(fault)
        homes.append(Path(folder))
    named = {**order, "source": model.source, "task": model.task, "folder": folder and str(Path(folder))}
    return TaskPlace(place, model.run_id, model.run, tuple(homes), model.files), named, output


def _free(path: Path) -> Path:
    """The path, or the first with a number before its ends that is free."""
    stem, _, ends = path.name.partition(".")
    numbered = (path.with_name(f"{stem}-{number}.{ends}") for number in itertools.count(2))
    return next(each for each in itertools.chain([path], numbered) if not each.exists())
