"""TensorBoard event files in: their scalars as a run to compare with. The files are data of others, never trusted."""

from __future__ import annotations

import hashlib
from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any, cast

import numpy as np

from precgui.config.tree import RunConfig
from precgui.config.validation import ConfigError, build_accepted
from precgui.events import Status
from precgui.runs.errors import RunFileError
from precgui.runs.file import json_text
from precgui.runs.file.reader import ENDED
from precgui.runs.tensorboard import event_file
from precgui.runs.tensorboard.export import ABOUT_TAG
from precgui.runs.tensorboard.imported_run import UNKNOWN_PRECISION, ImportedRun, Scalars
from precgui.runs.tensorboard.tags import OWN_TAGS, choose, listed, shows_training
from precgui.safe_open import open_regular
from precgui.sentences import Sentence, together

# Keras and others give training and validation a folder each.
_PARTS = ("train", "training", "validation", "val", "eval", "test")
_LARGEST_SCALAR = 16  # bytes


@dataclass(frozen=True)
class EventScalars:
    """The scalars of event files, by tag; `about` is what precgui itself wrote beside them, else empty."""

    path: Path
    scalars: Mapping[str, Scalars]
    about: Mapping[str, Any]
    begin_s: float
    notes: Sequence[str]

    def choose(self, requested: Mapping[str, str]) -> dict[str, str]:
        """The tag of each signal: as `requested`, else by its name. Raises RunFileError."""
        try:
            return choose(self.scalars, requested)
        except RunFileError as error:
            raise RunFileError(Sentence("{path}: {error}", path=self.path, error=error)) from None

    def run(self, requested: Mapping[str, str]) -> ImportedRun:
        """The scalars as a run. Raises RunFileError when none of them is a loss or the metric."""
        chosen = self.choose(requested)
        if not shows_training(chosen):
            raise RunFileError(
                Sentence(
                    "{file} holds no scalar that looks like a loss, but {names}; say which one is it with --tag "
                    "loss=NAME.",
                    file=self.path,
                    names=listed(self.scalars),
                )
            )
        return _run(self, chosen)


def open_events(path: Path, tags: Mapping[str, str] | None = None) -> ImportedRun:
    """Read the scalars of an event file, or of all that lie in a folder, as one run.

    `tags` says which scalar is which signal (`{"loss": "my/loss"}`) where their names do not, or that none is (`""`).
    Raises RunFileError, one sentence with the cure, when there is nothing to show; `notes` say what was taken, and what
    was cut or damaged.
    """
    return read_events(path).run(tags or {})


def read_events(path: Path) -> EventScalars:
    """Read the scalars of an event file, or of all that lie in a folder. Raises RunFileError when there are none."""
    event_file.event_type()  # says first what is missing
    reading = _Reading()
    for file, part in _files(path):
        reading.take(file, part)
    result = reading.scalars()
    if not result:
        if reading.damage:
            raise RunFileError(
                Sentence(
                    "{file} holds no scalars ({damage}); choose another event file.", file=path, damage=reading.damage
                )
            )
        raise RunFileError(Sentence("{file} holds no scalars; choose another event file.", file=path))
    return EventScalars(path, result, reading.about, reading.begin_s(), reading.notes)


def event_files(folder: Path) -> list[Path]:
    """The event files that lie in a folder itself, oldest first. Raises RunFileError."""
    try:
        return sorted(each for each in folder.iterdir() if event_file.is_event_file(each))
    except OSError as error:
        raise RunFileError(
            Sentence("{path} cannot be read: {why}; check its permissions.", path=folder, why=error.strerror)
        ) from None


def _files(path: Path) -> Iterator[tuple[Path, str]]:
    """Event files with the part of the training that their folder names."""
    if not path.is_dir():
        yield path, ""
        return
    parts = {"": path, **{name: path / name for name in _PARTS if (path / name).is_dir()}}
    files = [(file, part) for part, folder in parts.items() for file in event_files(folder)]
    if not files:
        raise RunFileError(_without_events(path))
    yield from files


def _without_events(folder: Path) -> str:
    """A sentence on a folder in which no event file lies, with what to name instead."""
    if below := sorted(str(each.relative_to(folder)) for each in folder.glob("*/") if event_files(each)):
        return Sentence(
            "{folder} holds no TensorBoard event file; choose one of {names} in it.",
            folder=folder,
            names=", ".join(below[:8]),
        )
    if runs := min((*folder.glob("*.h5"), *folder.glob("*/*.h5")), default=None):
        return Sentence("{folder} is a folder; name the run files in it, such as {file}.", folder=folder, file=runs)
    return Sentence(
        "{folder} is a folder with neither run files (.h5) nor TensorBoard event files; name a run file.", folder=folder
    )


class _Reading:
    """Contents of one or more event files."""

    def __init__(self) -> None:
        self._event_type = event_file.event_type()
        self._steps: defaultdict[str, array[int]] = defaultdict(lambda: array("q"))
        self._times: defaultdict[str, array[float]] = defaultdict(lambda: array("d"))
        self._values: defaultdict[str, array[float]] = defaultdict(lambda: array("d"))
        self._created_s: list[float] = []  # when the files were created
        self.about: dict[str, Any] = {}
        self.notes: list[str] = []
        self.damage = ""  # of the first file that has one

    def take(self, path: Path, part: str) -> None:
        """Read a file up to its end or to where it is damaged. Raises RunFileError when it cannot be opened."""
        from google.protobuf.message import DecodeError

        try:
            with open_regular(path) as file:
                for message in event_file.read_records(file, path.stat().st_size):
                    self._take_event(self._event_type.FromString(message), part)
        except OSError as error:
            raise RunFileError(
                Sentence("{path} cannot be read: {why}; check its permissions.", path=path, why=error.strerror)
            ) from None
        except event_file.Damage as damage:
            self._note(damage.clause(path.name))
        except DecodeError:
            self._note(Sentence("{file} holds a record that is no event", file=path.name))

    def _note(self, damage: Sentence) -> None:
        self.damage = self.damage or damage
        self.notes.append(Sentence("{damage}; what comes before is shown.", damage=damage))

    def _take_event(self, event: Any, part: str) -> None:
        if event.file_version:
            self._created_s.append(event.wall_time)
        for value in event.summary.value:
            number = _number(value)
            if number is not None:
                tag = f"{part}/{value.tag}" if part else value.tag
                self._steps[tag].append(event.step)
                self._times[tag].append(event.wall_time)
                self._values[tag].append(number)
            elif value.tag == ABOUT_TAG and not self.about:
                self.about = _document(value)

    def scalars(self) -> dict[str, Scalars]:
        """The scalars by tag, in the order of steps; of a step logged twice, as after a restart, the later value."""
        return {tag: self._series(tag) for tag in self._steps}

    def _series(self, tag: str) -> Scalars:
        step = np.array(self._steps[tag], np.int64)
        order = np.argsort(step, kind="stable")
        last = np.append(np.diff(step[order]) != 0, True)
        kept = order[last]
        return Scalars(step[kept], np.array(self._times[tag])[kept], np.array(self._values[tag])[kept])

    def begin_s(self) -> float:
        """When the training began: its first file or scalar, in seconds since 1970."""
        first = [each for times in self._times.values() for each in times[:1]]
        return min((each for each in (*self._created_s, *first) if isfinite(each)), default=0.0)


def _number(value: Any) -> float | None:
    """A scalar of the old kind, or a tensor that holds one number; None for all else."""
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return float(value.simple_value)
    if kind != "tensor" or any(dim.size != 1 for dim in value.tensor.tensor_shape.dim):
        return None
    return _tensor_number(value.tensor)


def _tensor_number(tensor: Any) -> float | None:
    from tensorboard.util.tensor_util import make_ndarray

    packed = (tensor.float_val, tensor.double_val, tensor.int_val, tensor.int64_val, tensor.half_val)
    if len(tensor.tensor_content) > _LARGEST_SCALAR or tensor.string_val or any(len(each) > 1 for each in packed):
        return None
    try:
        numbers = np.asarray(make_ndarray(tensor))
        return float(numbers.ravel()[0]) if numbers.size == 1 and numbers.dtype.kind in "iuf" else None
    except (TypeError, ValueError, KeyError):
        return None


def _document(value: Any) -> dict[str, Any]:
    """The document that precgui wrote about the run beside its scalars; empty when there is none."""
    texts = value.tensor.string_val
    try:
        return json_text.load(texts[0].decode()) if len(texts) == 1 else {}
    except ValueError:
        return {}


def _guesses_text(chosen: Mapping[str, str], scalars: Mapping[str, Scalars]) -> str:
    """Which scalars are taken for which signals; nothing when precgui has named them itself."""
    taken = [
        Sentence("{signal} is {tag}", signal=signal, tag=tag)
        for signal, tag in chosen.items()
        if tag != OWN_TAGS[signal]
    ]
    left = [tag for tag in scalars if tag not in chosen.values()]
    if not taken:
        return ""
    text = Sentence("Of the scalars, {guesses}.", guesses=together(*taken, between=", "))
    return together(text, Sentence("Not shown: {names}.", names=listed(left)) if left else "")


def _run(events: EventScalars, chosen: Mapping[str, str]) -> ImportedRun:
    path, about, guesses = events.path, events.about, _guesses_text(chosen, events.scalars)
    name = path.name if path.is_dir() else path.absolute().parent.name
    environment, per_epoch, status = (about.get(key) for key in ("environment", "steps_per_epoch", "status"))
    return ImportedRun(
        path=path,
        title=str(about.get("title") or name),
        config=_config(about, name),
        run_id=hashlib.sha256(str(path.absolute()).encode()).hexdigest()[:32],
        begin_s=events.begin_s,
        created=_iso(events.begin_s),
        chosen={signal: events.scalars[tag] for signal, tag in chosen.items()},
        environment={**(environment if isinstance(environment, dict) else {}), "imported_from": "TensorBoard"},
        notes=[*events.notes, *([guesses] if guesses else [])],
        tags=chosen,
        guesses=guesses,
        status=cast(Status, status) if status in ENDED else "imported",
        steps_per_epoch=per_epoch if isinstance(per_epoch, int) and per_epoch > 0 else 0,
    )


def _iso(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).astimezone().isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return ""


def _config(about: Mapping[str, Any], name: str) -> RunConfig:
    """The config of a run that precgui wrote; of others nothing is known, least of all the precision."""
    try:
        return build_accepted(about["config"])[0]
    except (KeyError, TypeError, AttributeError, ConfigError):
        return RunConfig(title=name[:100]).model_copy(update={"precision": UNKNOWN_PRECISION})
