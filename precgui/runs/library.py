"""A folder of runs: a list with the figures of each, and what a user does with it. No column is read for it."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from math import nan
from pathlib import Path
from typing import Any

from precgui.checkpoint_files import all_checkpoint_files
from precgui.config.tree import RunConfig
from precgui.runs.bin import move_to_bin, restore
from precgui.runs.errors import RunFileError
from precgui.runs.file.reader import SavedRun, open_run
from precgui.runs.file.user_notes import Notes, notes_path, read_notes, write_notes
from precgui.runs.library_index import LEAST_RUNS, LibraryEntry, Stamp, entry_of_row, read_index, write_index
from precgui.runs.metric import metric_of
from precgui.runs.outcome import outcome
from precgui.sanitize import one_line
from precgui.sentences import Sentence, message_of

_SUFFIX = ".h5"
_FIRST, _PAUSE_S = 16, 0.25  # files opened before the first rows are reported; seconds to the next ones
_FIRST_KNOWN = 100  # files of the index before the first rows are reported
_LONGER, _LONGEST_S = 1.5, 2.0  # each pause is so much longer than the one before: a part costs as much as all its rows


class Library:
    """The runs of one folder; files that have not changed since the last reading are not opened again.

    Of a folder with many runs an index is kept in it, so that this holds for the next session, too.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.total = 0  # files of the last reading
        self._known: dict[Path, tuple[Stamp, LibraryEntry]] = {}
        self._has_index = False

    def entries(self) -> list[LibraryEntry]:
        """All runs, newest first; none when the folder does not exist. Raises RunFileError when it cannot be read."""
        return list(self.scan())[-1]

    def scan(self) -> Iterator[list[LibraryEntry]]:
        """The runs read so far, newest first: soon some, then ever more, at last all. Raises RunFileError."""
        paths = self._paths()
        known, rows = self._known, self._index()
        self.total, self._known, opened = len(paths), {}, 0
        pause_s, next_s = _PAUSE_S, time.monotonic() + _PAUSE_S
        for path in paths:
            stamp = _state(path) + _state(notes_path(path))
            earlier = known.get(path) or entry_of_row(path, rows.get(path.name))
            if earlier is not None and earlier[0] == stamp and earlier[1].status != "running":
                self._known[path] = earlier
                if not opened and len(self._known) == _FIRST_KNOWN:
                    yield self._sorted()
                continue
            self._known[path] = stamp, read_entry(path)
            opened += 1
            if opened == _FIRST or time.monotonic() > next_s:
                yield self._sorted()
                next_s = time.monotonic() + pause_s
                pause_s = min(_LONGER * pause_s, _LONGEST_S)
        if opened and len(paths) >= LEAST_RUNS:
            write_index(self.folder, self._known)
        yield self._sorted()

    def _paths(self) -> list[Path]:
        """The files, those that were written last first."""
        try:
            result = self.folder.glob(f"*{_SUFFIX}") if self.folder.is_dir() else ()
            paths = [path for path in result if not path.name.startswith(".")]
        except OSError as error:
            raise RunFileError(
                Sentence(
                    "{folder} cannot be read: {error}; check its permissions.", folder=self.folder, error=error.strerror
                )
            ) from None
        return sorted(paths, key=lambda path: (_state(path)[1], path.name), reverse=True)

    def _index(self) -> dict[str, Any]:
        """The rows of the index at the first reading, none later: then all that it tells is known."""
        first, self._has_index = not self._has_index, True
        return read_index(self.folder) if first else {}

    def _sorted(self) -> list[LibraryEntry]:
        return sorted((entry for _, entry in self._known.values()), key=_age, reverse=True)


def read_entry(path: Path) -> LibraryEntry:
    """The figures of one run file; never raises for a bad file."""
    try:
        with open_run(path) as run:
            return _entry(path, run)
    except RunFileError as error:
        return LibraryEntry(path, one_line(path.stem), note=read_notes(path).note, error=message_of(error))


def rename(path: Path, title: str) -> None:
    """Give a run another title, or its own one back with an empty text. Raises RunFileError."""
    write_notes(path, Notes(" ".join(title.split()), read_notes(path).note))


def annotate(path: Path, note: str) -> None:
    """Keep a note on a run. Raises RunFileError."""
    write_notes(path, Notes(read_notes(path).title, note.strip()))


def tags_of(note: str) -> list[str]:
    """The tags in a note, words that begin with `#`, each once and in lower case."""
    words = (word.rstrip(",.;:").casefold() for word in note.split())
    return list(dict.fromkeys(word for word in words if word.startswith("#") and len(word) > 1))


def add_tag(path: Path, tag: str) -> None:
    """Add a tag to the note of a run that does not have it. Raises RunFileError, also for a tag of several words."""
    tag = f"#{tag.strip().lstrip('#')}"
    if len(tag.split()) != 1 or len(tag) < 2:
        raise RunFileError(Sentence("{tag!r} cannot be a tag; give one word.", tag=tag[1:]))
    note = read_notes(path).note
    if tag.casefold() not in tags_of(note):
        annotate(path, f"{note} {tag}".strip())


def delete(path: Path) -> None:
    """Move a run, its notes and its checkpoints to the bin of the system. Raises RunFileError."""
    others = files_beside(path)
    move_to_bin(path)
    for other in others:
        move_to_bin(other)


def files_beside(path: Path) -> tuple[Path, ...]:
    """The notes and the checkpoints of a run, which go where it goes."""
    return tuple(each for each in (notes_path(path), *all_checkpoint_files(path)) if each.exists())


def undelete(path: Path, others: Iterable[Path]) -> None:
    """Bring a run that was deleted, and the files that were beside it, back from the bin. Raises RunFileError."""
    for each in (path, *others):
        restore(each)


def new_run_path(folder: Path, config: RunConfig) -> Path:
    """A readable name that is still free in the folder: date, time, title or task, precision.

    The folder is made when it is missing; where that fails, the writer of the run says why.
    """
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    words = [config.title or config.task, config.precision]
    name = "-".join([datetime.now().strftime("%Y%m%d-%H%M%S"), *(_slug(word) for word in words)])
    candidates = (folder / f"{name}{number}{_SUFFIX}" for number in ("", *(f"-{n}" for n in range(2, 10_000))))
    return next(path for path in candidates if not path.exists())


def _slug(text: str) -> str:
    return re.sub(r"[^\w.]+", "-", text, flags=re.UNICODE).strip("-.").lower()[:60] or "run"


def _entry(path: Path, run: SavedRun) -> LibraryEntry:
    final = run.summary.get("final")
    figures: Mapping[str, Any] = final if isinstance(final, dict) else {}
    counted = run.summary.get("steps")
    steps = counted if isinstance(counted, int) else run.steps
    return LibraryEntry(
        path=path,
        title=run.title,
        precision=run.config.precision,
        status=run.status,
        final_loss=_final_loss(steps, figures),
        val_accuracy=_number(figures.get("val_accuracy")),
        metric=metric_of(run.summary),
        created=run.created,
        steps=steps,
        note=read_notes(path).note,
        outcome=outcome(run.status, run.summary),
        place=one_line(str(run.environment.get("place") or "")),
    )


def _final_loss(steps: int, figures: Mapping[str, Any]) -> float | None:
    loss = _number(figures.get("train_loss"))
    return nan if loss is None and figures and steps else loss


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _state(path: Path) -> tuple[int, ...]:
    """A stamp of a file that changes when the file is replaced or written."""
    try:
        status = path.stat()
    except OSError:
        return (0, 0, 0)
    return (status.st_ino, status.st_mtime_ns, status.st_size)


def _age(entry: LibraryEntry) -> tuple[float, str]:
    """Sort key: the date of creation, or that of the file where the run has none."""
    try:
        return datetime.fromisoformat(entry.created).timestamp(), entry.path.name
    except ValueError:
        return _state(entry.path)[1] / 1e9, entry.path.name
