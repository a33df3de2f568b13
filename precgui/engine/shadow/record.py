"""A recorded step: its tape, and which values of it are the gradients and the loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from precgui.engine.errors import EngineError
from precgui.engine.shadow.recorder import StepRecorder
from precgui.engine.shadow.tape import Tape


@dataclass(frozen=True)
class RecordedStep:
    """A step as it ran in low precision. `gradients` and `loss` are numbers of values on the tape."""

    tape: Tape
    gradients: list[int]
    loss: int
    low_gradients: list[Tensor]
    low_loss: float

    @property
    def is_finite(self) -> bool:
        """Whether the loss and every gradient are finite."""
        kinds = self.tape.kinds
        return math.isfinite(self.low_loss) and all(
            not kinds[id] if id in kinds else bool(gradient.isfinite().all())
            for id, gradient in zip(self.gradients, self.low_gradients, strict=True)
        )


def record_step(step: Callable[[], Any], parameters: Iterable[Tensor]) -> RecordedStep:
    """Run `step`, which does forward and backward and returns the loss, and record it.

    The gradients of the parameters are cleared before; afterwards they are what the step left in them. Raises
    EngineError when the step returns no loss or leaves no gradient.
    """
    trained = [p for p in parameters if p.requires_grad]
    for parameter in trained:
        parameter.grad = None
    recorder = StepRecorder()
    with recorder.recording() as tape:
        loss = step()
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise EngineError("the step returned no loss; return the loss as a tensor with a single number")
    used = [p.grad for p in trained if p.grad is not None]
    if not used:
        raise EngineError(
            "the step left no gradient in these parameters; call backward() in it and pass those that train"
        )
    with torch.no_grad():
        gradients = [recorder.identity.id_of(gradient) for gradient in used]
        return RecordedStep(
            tape, gradients, recorder.identity.id_of(loss), [g.detach().clone() for g in used], float(loss.detach())
        )
