"""How far a run is, and how long it will still take."""

from __future__ import annotations

from dataclasses import dataclass

from precgui.runs.facts import seconds_text
from precgui.runs.live import LiveRun
from precgui.runs.run import Run
from precgui.words import _, translated

RATE_STEPS = 200  # the remaining time is shown from this many steps on
SILENT_S, SILENT_STEPS = 10.0, 20.0  # seconds, and times that of a step, without a step before it is said


@dataclass(frozen=True, slots=True)
class RunProgress:
    """The progress of the active run."""

    step: int
    total_steps: int
    seconds_left: float | None
    text: str


def progress_of(run: Run, *, stopping: bool) -> RunProgress:
    steps, times = run.series("loss")[0], run.series("loss", "time_s")[0]
    if stopping:
        return RunProgress(len(steps), run.total_steps, None, _("stopping"))
    if run.status != "running":
        return RunProgress(len(steps), run.total_steps, None, translated(run.status))
    if not len(steps):
        notes = run.events("note")  # of what takes long before the first step, such as a download
        reported = translated(notes[-1].message) if notes and not run.total_steps else _("starting the engine")
        return RunProgress(0, run.total_steps, None, reported)
    if int(steps[-1]) >= run.total_steps:
        return RunProgress(int(steps[-1]), run.total_steps, None, _("finishing"))
    recent = min(len(steps) - 1, RATE_STEPS)
    rate = (times[-1] - times[-1 - recent]) / recent if recent else None
    silent_s = run.silent_s if isinstance(run, LiveRun) else 0.0
    if rate is not None and silent_s > max(SILENT_S, SILENT_STEPS * rate):
        text = _("no step for {silence}, where one took {time}")
        text = text.format(silence=seconds_text(round(silent_s)), time=seconds_text(rate))
        return RunProgress(int(steps[-1]), run.total_steps, None, text)
    left = None if rate is None else rate * (run.total_steps - int(steps[-1]))
    return RunProgress(int(steps[-1]), run.total_steps, left, _("training"))
