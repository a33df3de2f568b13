"""The anatomy of a replayed step in a side file of a run, readable without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from precgui.regular_files import read_text, replace_file
from precgui.runs.errors import RunFileError
from precgui.runs.replays import side_files

_FINITE_STEP = ("Check: All gradients are finite.", "Step: the optimizer updates the weights.")
_BAD_STEP = ("Check: NaN or Inf was met.", "Step: the optimizer is skipped where the loss is scaled.")
_LARGEST = 1 << 24
_Text = Annotated[str, Field(max_length=1000)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class StepOperation(_Part):
    """One operation. Magnitudes None: not finite. `finite`: no NaN, and no Inf made here.

    Errors are relative l2 norms: made here, and of one rounding.
    """

    operation: _Text
    module: _Text
    line: _Text
    backward: bool
    format: _Text
    inputs: Annotated[list[_Text], Field(max_length=20)]
    bytes: Annotated[int, Field(ge=0)]
    largest: float | None
    largest_input: float | None
    finite: bool
    local_error: float | None
    rounding_error: float | None
    asked_by: _Text


class StepCasts(_Part):
    """Casts that the same part of the program asked for, between the same formats."""

    asked_by: _Text
    source: _Text
    target: _Text
    of: _Text
    count: int
    bytes: int
    reused: int


class StepMoments(_Part):
    """Numbers at the moments of a step in mixed precision."""

    scale: float
    given_largest: float | None
    casts: int
    forward_operations: int
    forward_largest: float | None
    loss: float | None
    scaled_loss: float | None
    backward_operations: int
    backward_largest: float | None
    gradient_largest: float | None
    unscaled_largest: float | None
    gradients_are_finite: bool


class StepAnatomy(_Part):
    """The operations of a step in order, its casts and its moments."""

    format_version: Literal[1] = 1
    step: Annotated[int, Field(ge=1)]
    precision: _Text
    operations: Annotated[list[StepOperation], Field(max_length=20_000)]
    left_out: int = 0
    casts: Annotated[list[StepCasts], Field(max_length=2000)]
    moments: StepMoments

    def sentences(self) -> list[str]:
        """The moments of the step, one sentence each, with their numbers."""
        m = self.moments
        return [
            f"Weights and inputs: the largest is {_number(m.given_largest)}.",
            f"Casts: {m.casts} of the {m.forward_operations} operations of the forward pass change the format.",
            f"Forward: the largest finite value is {_number(m.forward_largest)}.",
            f"Loss: {_number(m.loss)}, scaled by {m.scale:g} it is {_number(m.scaled_loss)}.",
            f"Backward: {m.backward_operations} operations, the largest finite value is {_number(m.backward_largest)}.",
            f"Unscale: the largest gradient goes from {_number(m.gradient_largest)} to {_number(m.unscaled_largest)}.",
            *(_FINITE_STEP if m.gradients_are_finite else _BAD_STEP),
        ]


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"


def write_anatomy(run: Path, anatomy: StepAnatomy) -> Path:
    """Write or replace `RUN.h5.anatomy-000042.json`. Raises RunFileError when that cannot be done."""
    path = run.with_name(f"{run.name}.anatomy-{anatomy.step:06d}.json")
    try:
        replace_file(path, json.dumps(anatomy.model_dump(), ensure_ascii=False, allow_nan=False).encode())
    except OSError as error:
        raise RunFileError(f"{path} cannot be written: {error.strerror or error}") from error
    return path


def read_anatomies(run: Path) -> list[StepAnatomy]:
    """The anatomies beside a run, by step; files that are none are left out."""
    results = []
    for path in side_files(run, "anatomy"):
        try:
            results.append(StepAnatomy.model_validate_json(read_text(path, _LARGEST)))
        except (OSError, ValueError):
            continue
    return sorted(results, key=lambda anatomy: anatomy.step)
