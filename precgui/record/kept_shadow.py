"""The shadow of a step of one's own loop, kept beside a run file, where Inspect shows it."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from precgui.engine.shadow.anatomy import anatomy
from precgui.engine.shadow.step import Shadow
from precgui.runs.anatomy import ANATOMIES, StepAnatomy
from precgui.runs.errors import RunFileError
from precgui.runs.file.reader import open_run
from precgui.runs.replays import REPLAYS, StepReplay
from precgui.sentences import Sentence


def keep_shadow(shadow: Shadow, run: str | PathLike[str], step: int, *, scale: float = 1.0) -> Path:
    """Keep the shadow of a step beside a run file, for Inspect > Step and Inspect > Error; returns the path.

    Args:
        shadow: of `precgui.shadow`.
        run: the run file that the step belongs to.
        step: its number, counted from 1; one that is kept already is replaced.
        scale: the loss scale of the step, such as `scaler.get_scale()` before `scaler.update()`.

    Raises RunFileError when there is no such run file, when it has no such step, or when nothing can be written.
    """
    path = Path(run)
    with open_run(path) as saved:
        precision, recorded = saved.config.precision, saved.series("loss")[0]
        ended = saved.status != "running"  # else the last steps may not be in the file yet
    if step < 1 or (ended and step not in recorded):
        last = int(recorded[-1]) if len(recorded) else 0
        raise RunFileError(
            Sentence("{file} has no step {step}; its last recorded step is {last}.", file=path, step=step, last=last)
        )
    shadow.measure_largest()
    parts = anatomy(shadow.step, float(scale))
    ANATOMIES.keep(path, StepAnatomy.model_validate({"step": step, "precision": precision, **parts}))
    return REPLAYS.keep(path, StepReplay(step=step, **shadow.to_json()))
