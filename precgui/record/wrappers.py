"""Optimizers inside the wrappers of other libraries, such as accelerate's AcceleratedOptimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from precgui.record.later_numbers import Number


def unwrapped(optimizer: Optimizer) -> Optimizer:
    """The optimizer that updates the weights: what a wrapper without hooks of its own holds as `optimizer`.

    Raises TypeError for a wrapper that hides it.
    """
    while not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        inner = getattr(optimizer, "optimizer", None)
        if not isinstance(inner, Optimizer) or inner is optimizer:
            raise TypeError(f"{type(optimizer).__name__} is a wrapper that hides its optimizer; give what it wraps")
        optimizer = inner
    return optimizer


class Accumulation:
    """The micro-steps of accelerate's optimizers, which update nothing, joined to steps."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        states = (getattr(optimizer, "gradient_state", None) for optimizer in optimizers)
        self._states: list[Any] = [state for state in states if hasattr(state, "sync_gradients")]
        self._losses: list[Number] = []
        self._samples = 0

    def is_micro_step(self) -> bool:
        """Whether a step of these optimizers at this moment updates nothing."""
        return bool(self._states) and not any(state.sync_gradients for state in self._states)

    def add(self, loss: Number, samples: int) -> None:
        """Keep the loss and the samples of a micro-step that is not the last of its step."""
        self._losses.append(loss.clone() if isinstance(loss, Tensor) else loss)
        self._samples += samples

    def joined(self, loss: Number, samples: int) -> tuple[list[Number], int]:
        """The losses of all micro-steps of the step that ends with this one, and their samples together."""
        losses, self._losses = [*self._losses, loss], []
        total, self._samples = self._samples + samples, 0
        return losses, total
