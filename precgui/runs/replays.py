"""Results of `precgui replay` in side files of a run, readable without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from precgui.runs.run import Run
from precgui.runs.side_files import SideFilePart, SideFiles, Text

_Text = Annotated[str, Field(max_length=4000)]
_Sentence = Annotated[Text, Field(max_length=4000)]
_LOAD_S = 2.0  # to build the model and the data of a run


class ReplayedLine(SideFilePart):
    """The part of one source line in the error of the gradient; see `docs/shadow.md`."""

    line: _Text
    module: _Text
    source: _Text = ""
    share: float
    avoidable: float = 0.0
    left_predicted: float | None = None
    left_measured: float | None = None


class NonFinitePlaceRecord(SideFilePart):
    """The operation that made the first NaN or Inf."""

    operation: _Text
    module: _Text
    line: _Text
    backward: bool


class ErrorMechanisms(SideFilePart):
    """Shares of the error by how it came about; `flips` None where decisions change the shape of a value."""

    flush: float
    rounding: float
    casts: float
    flips: float | None
    overflow: float


class StepReplay(SideFilePart):
    """One step of a run beside its FP64 shadow. None: not a number in this step."""

    format_version: Literal[1] = 1
    step: Annotated[int, Field(ge=1)]
    verdict: Literal["healthy", "problems", "not explained"]
    message: _Sentence
    precision_is_to_blame: bool | None
    gradient_error: float | None
    ideal_error: float | None
    explained: float | None
    mechanisms: ErrorMechanisms
    lines: Annotated[list[ReplayedLine], Field(max_length=1000)]
    first_nonfinite: NonFinitePlaceRecord | None
    blamed: Annotated[list[_Text], Field(max_length=100)] = Field(default_factory=list)
    notes: Annotated[list[_Sentence], Field(max_length=1000)] = Field(default_factory=list)


def snapshot_path(run: Path, step: int) -> Path:
    """The file that the engine keeps of a step: `RUN.h5.step-000042.safetensors`."""
    return run.with_name(f"{run.name}.step-{step:06d}.safetensors")


def last_step(run: Run) -> int:
    """The last recorded step of a run, counted from 1; 0 without one."""
    steps = run.series("loss")[0]
    return int(steps[-1]) if len(steps) else 0


def first_bad_step(run: Run) -> int | None:
    """The first step whose loss or norm of the gradient is NaN or Inf; None where all are finite."""
    bad = [steps[~np.isfinite(values)] for steps, values in (run.series("loss"), run.series("grad_norm"))]
    return min((int(steps[0]) for steps in bad if len(steps)), default=None)


def repeating_s(run: Run, step: int, inspecting_steps: float) -> float:
    """Seconds that a step of a run is estimated to take when it is made again.

    Without a snapshot of the step, the steps before it are trained again, each in the median time of the run's own.
    `inspecting_steps` is the time in which the step itself is inspected, in such steps.
    """
    assert run.path is not None
    times = run.series("step_s")[1]
    step_s = float(np.median(times)) if len(times) else 0.0
    trained = 0 if snapshot_path(run.path, step).exists() else step - 1
    return _LOAD_S + step_s * (trained + inspecting_steps)


REPLAYS = SideFiles("replay", StepReplay, 1 << 22, indent=1)
