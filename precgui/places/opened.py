"""Run files that stay at their place, and are opened through it: a copy that is only read, kept for the next time."""

from __future__ import annotations

from pathlib import Path

from precgui.paths import state_dir
from precgui.places.channel import bring_home
from precgui.places.jobs import RUN_FILE
from precgui.places.messages import JobLine
from precgui.places.placed_job import JobError, PlacedJob
from precgui.places.settings import NamedPlace
from precgui.sentences import Sentence


def opened_there(place: NamedPlace, line: JobLine) -> Path:
    """The copy of the file of a run that has ended at a place, fetched where it was not yet. Raises SentenceError,
    OSError."""
    if line.kind != "run" or RUN_FILE not in line.files:
        raise JobError(
            Sentence(
                "{job} at {name} has no run file; `precgui places jobs {name}` shows which",
                job=line.job[:12],
                name=place.name,
            )
        )
    if line.is_running:
        raise JobError(
            Sentence(
                "{job} is still running at {name}; attach to it, or open it when it has ended",
                job=line.job[:12],
                name=place.name,
            )
        )
    path = state_dir() / "places" / place.name / f"{line.job}-{line.part}.h5"
    if not path.exists():
        job = PlacedJob(place, line.job)
        try:
            job.open()
            bring_home(job, path)
        finally:
            job.close()
        path.chmod(0o444)
    return path
