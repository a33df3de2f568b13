"""Any run from any path: a run file, or TensorBoard event files of any training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from precgui.runs.file.reader import SavedRun, open_run
from precgui.runs.tensorboard.event_file import holds_events
from precgui.runs.tensorboard.imported_run import ImportedRun


def open_run_or_events(path: str | Path, tags: Mapping[str, str] | None = None) -> SavedRun | ImportedRun:
    """Open a run file, an event file, or a folder of event files; see `open_run` and `open_events`.

    `tags` names the scalars of event files. Raises RunFileError, one sentence with the cure.
    """
    path = Path(path)
    if not holds_events(path):
        return open_run(path)
    from precgui.runs.tensorboard.imports import open_events

    return open_events(path, tags)
