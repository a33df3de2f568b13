"""A recorded step: its tape, and which values of it are the gradients and the loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine.errors import EngineError
from precgui.engine.shadow.recorder import StepRecorder
from precgui.engine.shadow.tape import Tape
from precgui.sentences import L_, Sentence


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


Parameters = Iterable[Tensor] | Iterable[tuple[str, Tensor]] | Mapping[str, Tensor] | nn.Module


def _tensors_of(parameters: Parameters) -> list[Tensor]:
    """The tensors among parameters, named or not, or of a module. Raises EngineError for anything else."""
    if isinstance(parameters, nn.Module):
        return list(parameters.parameters())
    if isinstance(parameters, Tensor):
        return [parameters]
    given: Any = parameters.values() if isinstance(parameters, Mapping) else parameters
    tensors = []
    for entry in given if isinstance(given, Iterable) else [given]:
        tensor = entry[1] if isinstance(entry, tuple) and len(entry) == 2 else entry
        if not isinstance(tensor, Tensor):
            raise EngineError(
                Sentence(
                    "the parameters hold a value of type {class_name}; pass model.parameters(), "
                    "model.named_parameters() or the model itself",
                    class_name=type(tensor).__name__,
                )
            )
        tensors.append(tensor)
    return tensors


def record_step(step: Callable[[], Any], parameters: Parameters) -> RecordedStep:
    """Run `step`, which does forward and backward and returns the loss, and record it.

    The gradients of the parameters are cleared before; afterwards they are what the step left in them. `parameters`
    may be tensors, pairs of names and tensors, or a module. Raises EngineError when they are something else, and when
    the step returns no loss or leaves no gradient.
    """
    trained = [p for p in _tensors_of(parameters) if p.requires_grad]
    for parameter in trained:
        parameter.grad = None
    recorder = StepRecorder()
    with recorder.recording() as tape:
        loss = step()
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise EngineError(L_("the step returned no loss; return the loss as a tensor with a single number"))
    used = [p.grad for p in trained if p.grad is not None]
    if not used:
        raise EngineError(
            L_("the step left no gradient in these parameters; call backward() in it and pass those that train")
        )
    with torch.no_grad():
        gradients = [recorder.identity.id_of(gradient) for gradient in used]
        return RecordedStep(
            tape, gradients, recorder.identity.id_of(loss), [g.detach().clone() for g in used], float(loss.detach())
        )
