"""Results of `precgui replay` in side files of a run, readable without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from precgui.runs.side_files import SideFilePart, SideFiles

_Text = Annotated[str, Field(max_length=4000)]


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
    message: _Text
    precision_is_to_blame: bool | None
    gradient_error: float | None
    ideal_error: float | None
    explained: float | None
    mechanisms: ErrorMechanisms
    lines: Annotated[list[ReplayedLine], Field(max_length=1000)]
    first_nonfinite: NonFinitePlaceRecord | None
    blamed: Annotated[list[_Text], Field(max_length=100)] = Field(default_factory=list)
    notes: Annotated[list[_Text], Field(max_length=1000)] = Field(default_factory=list)


def snapshot_path(run: Path, step: int) -> Path:
    """The file that the engine keeps of a step: `RUN.h5.step-000042.safetensors`."""
    return run.with_name(f"{run.name}.step-{step:06d}.safetensors")


REPLAYS = SideFiles("replay", StepReplay, 1 << 22, indent=1)
