"""The anatomy of a replayed step in a side file of a run, readable without torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from precgui.runs.side_files import SideFilePart, SideFiles
from precgui.sentences import L_, Sentence

_FINITE_STEP = (L_("Check: All gradients are finite."), L_("Step: the optimizer updates the weights."))
_BAD_STEP = (L_("Check: NaN or Inf was met."), L_("Step: the optimizer is skipped where the loss is scaled."))
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
            Sentence("Weights and inputs: the largest is {largest}.", largest=_number(m.given_largest)),
            Sentence(
                "Casts: {casts} of the {operations} operations of the forward pass change the format.",
                casts=m.casts,
                operations=m.forward_operations,
            ),
            Sentence("Forward: the largest finite value is {largest}.", largest=_number(m.forward_largest)),
            Sentence(
                "Loss: {loss}, scaled by {scale:g} it is {scaled}.",
                loss=_number(m.loss),
                scale=m.scale,
                scaled=_number(m.scaled_loss),
            ),
            Sentence(
                "Backward: {operations} operations, the largest finite value is {largest}.",
                operations=m.backward_operations,
                largest=_number(m.backward_largest),
            ),
            Sentence(
                "Unscale: the largest gradient goes from {scaled} to {unscaled}.",
                scaled=_number(m.gradient_largest),
                unscaled=_number(m.unscaled_largest),
            ),
            *(_FINITE_STEP if m.gradients_are_finite else _BAD_STEP),
        ]


def _number(value: float | None) -> str:
    return L_("not finite") if value is None else f"{value:.4g}"


ANATOMIES = SideFiles("anatomy", StepAnatomy, 1 << 24)
