"""Complete the file of a crashed process: a closed copy with status, summary and last messages replaces the file.

Run it in a process of its own, as `python -P -m precgui.runs.file.repair PATH --status failed --message TEXT`, with
the details on standard input: should the damaged file crash HDF5, only that process ends.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

from precgui.events import Event, Incident, RunEnded, Status
from precgui.process.spawn import ChildProcess
from precgui.runs.errors import RunFileError
from precgui.runs.file.atomic import draft_path
from precgui.runs.file.contents import RunFileView
from precgui.runs.file.event_store import EventStore
from precgui.runs.file.reader import SavedRun
from precgui.runs.file.schema import ATTRIBUTES, FIXED_TEXTS
from precgui.safe_open import replaced_by
from precgui.sentences import L_, Sentence, filled

_MOST_DETAILS = 1 << 20


def repair(path: Path, status: Status, message: str, details: str = "") -> None:
    """Replace a run file without an end by a finished one, in one piece; a finished file is left alone.

    Raises RunFileError when the file cannot be read, is still being written, or the disk does not take the copy;
    the file itself is then as it was.
    """
    path = Path(path)
    before = _state_of(path)
    contents = RunFileView.open(path)
    try:
        with SavedRun(path, contents) as run:
            if run.status == "running":
                raise RunFileError(Sentence("{file} is still being written; stop that run first.", file=path))
            if not run.summary:
                _replace(path, contents, _last_events(run, status, message, details), before)
    except OSError as error:
        text = L_("{file} cannot be finished: {error}; free some space or check the folder.")
        raise RunFileError(filled(text, file=path, error=str(error))) from None


def complete(path: Path, ended: RunEnded) -> None:
    """`repair` in a process of its own. A file that cannot be completed stays as it is."""
    process = ChildProcess(
        target=_repair_or_leave, args=(path, ended.status, ended.message, ended.details), daemon=True
    )
    with contextlib.suppress(OSError):  # no memory or no more processes
        process.start()
        process.join()


def _repair_or_leave(path: Path, status: Status, message: str, details: str) -> None:
    with contextlib.suppress(RunFileError):
        repair(path, status, message, details)


def _last_events(run: SavedRun, status: Status, message: str, details: str) -> list[Event]:
    time_s = max(
        (ends[-1] for ends in (run.series("loss", "time_s")[0], run.series("val_loss", "time_s")[0]) if len(ends)),
        default=0.0,
    )
    steps = run.series("loss")[0]
    ended = RunEnded(float(time_s), status, message, details)
    if status != "failed":
        return [ended]
    return [Incident(float(time_s), int(steps[-1]) if len(steps) else 0, "failure", "error", message), ended]


def _state_of(path: Path) -> tuple[int, int, int] | None:
    """Which file it is, its size and its last change, None when it is not there."""
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_ino, state.st_size, state.st_mtime_ns


def _replace(path: Path, dead: RunFileView, last: list[Event], before: tuple[int, int, int] | None) -> None:
    draft = draft_path(path, "copy")
    draft.unlink(missing_ok=True)  # of a process that died with the same number
    with replaced_by(draft, path):
        recording = EventStore(
            draft,
            attributes={name: dead.attribute(name) for name in ATTRIBUTES if name not in ("schema", "precgui_version")},
            texts={name: dead.text(name) for name in FIXED_TEXTS},
            reserve_bytes=0,
        )
        recording.file.write_text("engine", dead.document("engine"))
        recording.file.take_over(dead)
        recording.keep(last)
        recording.close()
        if _state_of(path) != before:
            raise RunFileError(Sentence("{file} was written to meanwhile; stop the process that writes it.", file=path))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -P -m precgui.runs.file.repair", description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--status", choices=("completed", "stopped", "failed"), default="failed")
    parser.add_argument("--message", default="")
    options = parser.parse_args()
    try:
        repair(options.path, options.status, options.message, sys.stdin.read(_MOST_DETAILS))
    except RunFileError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
