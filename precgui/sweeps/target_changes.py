"""The targets of a study as planned, and each later change: a line of JSON for each, kept in the folder of the study.

A change in the window is recorded as it is made. `targets.toml` may also be edited by hand: the process that runs the
study and each reader compare the file with the last recorded targets.
"""

from __future__ import annotations

import contextlib
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from precgui.runs.file import json_text
from precgui.runs.verdict.targets import Targets
from precgui.safe_open import open_to_write, read_text
from precgui.sentences import L_, Sentence, counted, together

_MOST_BYTES = 1 << 20


def record_planned(path: Path, targets: Targets) -> None:
    """Begin the record with the targets of the plan. Raises OSError."""
    _append(path, {"planned": targets.model_dump()})


def record_change(path: Path, before: Targets, after: Targets, ended: int, *, by_hand: bool = False) -> None:
    """Append one change, made or noticed after `ended` runs had ended. Raises OSError."""
    _append(path, _change(before, after, ended, by_hand=by_hand))


def record_edit(path: Path, now: Targets, ended: int) -> None:
    """Record that `targets.toml` was edited by hand, where it differs from the last record.

    A folder that cannot be written keeps no record of it; `change_notes` tells of the edit all the same.
    """
    before = recorded_targets(path)
    if before is not None and before != now:
        with contextlib.suppress(OSError):
            record_change(path, before, now, ended, by_hand=True)


def recorded_targets(path: Path) -> Targets | None:
    """The targets after the last recorded change; None where the record does not begin with those of the plan."""
    targets: Targets | None = None
    try:
        for line in _lines(path):
            if "planned" in line:
                targets = Targets.model_validate(line["planned"])
            elif targets is not None and _note(line):
                after = {name: new for name, (_, new) in line["targets"].items()}
                targets = Targets.model_validate(targets.model_dump() | after)
    except ValueError:  # written by hand
        return None
    return targets


def _change(before: Targets, after: Targets, ended: int, *, by_hand: bool) -> dict[str, Any]:
    old, new = before.model_dump(), after.model_dump()
    return {
        "changed": datetime.now(UTC).isoformat(timespec="seconds"),
        "ended_runs": ended,
        "by_hand": by_hand,
        "targets": {name: [old[name], new[name]] for name in new if old[name] != new[name]},
    }


def _append(path: Path, line: dict[str, Any]) -> None:
    with os.fdopen(open_to_write(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "wb") as file:
        file.write(json.dumps(line).encode() + b"\n")


def _lines(path: Path) -> list[dict[str, Any]]:
    """The records; lines that are none are left out. Raises UnicodeDecodeError where the file is no text."""
    records = []
    try:
        text = read_text(path, _MOST_BYTES) if path.exists() else ""
    except OSError:
        return []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            records.append(json_text.load(line))
    return records


def change_notes(path: Path, now: Targets, ended: int) -> list[str]:
    """A sentence for each change that came after runs had ended, also for one that could not be recorded.

    `now` are the targets of the folder, `ended` is the number of runs that have ended.
    """
    try:
        records = _lines(path)
        last = recorded_targets(path)
    except UnicodeDecodeError:
        return [
            Sentence(
                "{file} cannot be read, so it is not known whether targets were changed after results.", file=path.name
            )
        ]
    if last is not None and last != now:
        records.append(_change(last, now, ended, by_hand=True))
    return [note for record in records if (note := _note(record)) and int(record["ended_runs"])]


def _note(change: dict[str, Any]) -> str:
    try:
        targets = together(
            *(
                Sentence("{target} from {before} to {after}", target=name, before=_text(a), after=_text(b))
                for name, (a, b) in change["targets"].items()
            ),
            between=", ",
        )
        ended, when = int(change["ended_runs"]), datetime.fromisoformat(change["changed"])
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return ""
    known = {"when": f"{when:%Y-%m-%d %H:%M} UTC", "targets": targets}
    if change.get("by_hand") is True:
        return counted(
            "The targets were changed by hand; this was noticed after {count} run had ended ({when}): {targets}. A "
            "verdict by targets that were chosen with results in view is no test of them.",
            "The targets were changed by hand; this was noticed after {count} runs had ended ({when}): {targets}. A "
            "verdict by targets that were chosen with results in view is no test of them.",
            ended,
            **known,
        )
    return counted(
        "The targets were changed after {count} run had ended ({when}): {targets}. A verdict by targets that were "
        "chosen with results in view is no test of them.",
        "The targets were changed after {count} runs had ended ({when}): {targets}. A verdict by targets that were "
        "chosen with results in view is no test of them.",
        ended,
        **known,
    )


def _text(value: object) -> str:
    return L_("none") if value is None else str(value)[:40]
