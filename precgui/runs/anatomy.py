"""The anatomy of a replayed step in a side file of a run, readable without torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from precgui.runs.side_files import SideFilePart, SideFiles

_FINITE_STEP = ("Check: All gradients are finite.", "Step: the optimizer updates the weights.")
_BAD_STEP = ("Check: NaN or Inf was met.", "Step: the optimizer is skipped where the loss is scaled.")
_Text = Annotated[str, Field(max_length=1000)]


class StepOperation(SideFilePart):
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


class StepCasts(SideFilePart):
    """Casts that the same part of the program asked for, between the same formats."""

    asked_by: _Text
    source: _Text
    target: _Text
    of: _Text
    count: int
    bytes: int
    reused: int


class StepMoments(SideFilePart):
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


class StepAnatomy(SideFilePart):
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


ANATOMIES = SideFiles("anatomy", StepAnatomy, 1 << 24)
