"""Changes of the targets of a study that came after runs had ended: a line of JSON for each, kept in its folder."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from precgui.regular_files import read_text
from precgui.runs.verdict.targets import Targets

_MOST_BYTES = 1 << 20


def record_change(path: Path, before: Targets, after: Targets, ended: int) -> None:
    """Append one change, made after `ended` runs had ended. Raises OSError."""
    old, new = before.model_dump(), after.model_dump()
    line = {
        "changed": datetime.now(UTC).isoformat(timespec="seconds"),
        "ended_runs": ended,
        "targets": {name: [old[name], new[name]] for name in new if old[name] != new[name]},
    }
    with path.open("a", encoding="utf-8", newline="\n") as file:
        file.write(json.dumps(line) + "\n")


def change_notes(path: Path) -> list[str]:
    """A sentence for each recorded change; lines that are none are left out."""
    if not path.exists():
        return []
    try:
        lines = read_text(path, _MOST_BYTES).splitlines()
    except (OSError, UnicodeDecodeError):
        return [f"{path.name} cannot be read, so it is not known whether targets were changed after results."]
    return [note for line in lines if (note := _note(line))]


def _note(line: str) -> str:
    try:
        change: Any = json.loads(line)
        targets = ", ".join(f"{name} from {_text(a)} to {_text(b)}" for name, (a, b) in change["targets"].items())
        ended, when = int(change["ended_runs"]), datetime.fromisoformat(change["changed"])
    except (ValueError, TypeError, KeyError, AttributeError):
        return ""
    runs = "1 run had ended" if ended == 1 else f"{ended} runs had ended"
    return (
        f"The targets were changed after {runs} ({when:%Y-%m-%d %H:%M} UTC): {targets}. "
        "A verdict by targets that were chosen with results in view is no test of them."
    )


def _text(value: object) -> str:
    return "none" if value is None else str(value)[:40]
