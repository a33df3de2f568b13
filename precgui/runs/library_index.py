"""The index of a folder of runs: entries of files that have not changed, kept beside them for the next session."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_args

from precgui.events import Metric, Status
from precgui.runs.metric import ACCURACY
from precgui.safe_open import read_text, replace_file

INDEX = ".precgui-index.json"
LEAST_RUNS = 100  # fewer are read at once, and need no file beside them
_VERSION = 2
_MOST_BYTES = 64 << 20

Stamp = tuple[int, ...]


@dataclass(frozen=True)
class LibraryEntry:
    """One run of a list. `error` is the sentence for a file that cannot be read; all else is then unknown.

    `final_loss` is NaN when the run ended on a loss that is not finite, None while the run has no end.
    """

    path: Path
    title: str
    precision: str = ""
    status: Status | None = None
    final_loss: float | None = None
    val_accuracy: float | None = None
    metric: Metric = ACCURACY
    created: str = ""
    steps: int = 0
    note: str = ""
    error: str = ""
    outcome: str = ""  # the status, and what it hides; see `runs.outcome`
    place: str = ""  # the name of another machine that trained it; empty for this one


def read_index(folder: Path) -> dict[str, Any]:
    """The rows of the index by the names of the files, unchecked: `entry_of_row` checks one when it is needed."""
    try:
        document = json.loads(read_text(folder / INDEX, _MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    runs = document.get("runs") if isinstance(document, dict) and document.get("version") == _VERSION else None
    return runs if isinstance(runs, dict) else {}


def write_index(folder: Path, known: Mapping[Path, tuple[Stamp, LibraryEntry]]) -> None:
    """Keep what is known of runs that have ended; a folder that takes no file does without."""
    rows = {
        path.name: {"stamp": stamp, **{name: value for name, value in asdict(entry).items() if name != "path"}}
        for path, (stamp, entry) in known.items()
        if entry.status != "running"
    }
    with contextlib.suppress(OSError, ValueError):
        text = json.dumps({"version": _VERSION, "runs": rows}, ensure_ascii=True)
        replace_file(folder / INDEX, text.encode())


def entry_of_row(path: Path, row: Any) -> tuple[Stamp, LibraryEntry] | None:
    """The entry that a row of the index holds for a file, with the stamp that the file had; None if it is damaged."""
    if not isinstance(row, dict) or not isinstance(row.get("stamp"), list):
        return None
    stamp, metric = tuple(row["stamp"]), row.get("metric")
    values = {name: value for name, value in row.items() if name not in ("stamp", "metric", "path")}
    if not isinstance(metric, dict) or set(values) != set(_KINDS):
        return None
    if not all(isinstance(value, _KINDS[name]) for name, value in values.items()):
        return None
    if values["status"] not in (None, *get_args(Status)):
        return None
    try:
        kept = Metric(**metric)
        for text in (*values.values(), *metric.values()):
            str(text).encode()  # half of a surrogate pair cannot be shown
    except (TypeError, ValueError):
        return None
    if not all(isinstance(getattr(kept, field.name), bool | str) for field in fields(Metric)):
        return None
    return stamp, LibraryEntry(path, metric=kept, **values)


_KINDS: dict[str, Any] = {
    "title": str,
    "precision": str,
    "status": str | None,
    "final_loss": float | int | None,
    "val_accuracy": float | int | None,
    "created": str,
    "steps": int,
    "note": str,
    "error": str,
    "outcome": str,
    "place": str,
}
