"""A title and a note of the user in a side file, since run files are never reopened."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from precgui.runs.errors import RunFileError
from precgui.runs.file import json_text
from precgui.safe_open import read_text, replace_file
from precgui.sanitize import one_line, sanitize
from precgui.sentences import L_, filled

_LARGEST = 1 << 20
_MOST_NOTE = 10_000  # characters that are read of a note


@dataclass(frozen=True)
class Notes:
    """`title` replaces the run's own one unless it is empty."""

    title: str = ""
    note: str = ""


def notes_path(run: Path) -> Path:
    return run.with_name(f"{run.name}.notes.json")


def read_notes(run: Path) -> Notes:
    """The user's notes on a run; empty ones when there are none or they cannot be read."""
    path = notes_path(run)
    try:
        document = json_text.load(read_text(path, _LARGEST))
    except (OSError, ValueError):
        return Notes()
    title, note = document.get("title"), document.get("note")
    return Notes(
        one_line(title) if isinstance(title, str) else "", sanitize(note[:_MOST_NOTE]) if isinstance(note, str) else ""
    )


def write_notes(run: Path, notes: Notes) -> None:
    """Replace the notes in one piece; empty notes remove the side file. Raises RunFileError."""
    path = notes_path(run)
    try:
        if notes == Notes():
            path.unlink(missing_ok=True)
        else:
            replace_file(path, json.dumps(asdict(notes), ensure_ascii=False, indent=1).encode())
    except OSError as error:
        text = L_("the notes of {run} cannot be written: {error}; check the folder.")
        raise RunFileError(filled(text, run=run, error=str(error))) from None
