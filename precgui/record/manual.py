"""Weights that a loop updates by itself, without a step of the optimizers that the recorder was given."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from precgui.engine.samples import evenly_spaced
from precgui.engine.telemetry.parameters import Weight
from precgui.engine.telemetry.readable import dense, readable, unseen

_ELEMENTS = 128  # of each weight


class ManualUpdates:
    """Compares a few elements of each weight before and after a step in which perhaps no optimizer steps.

    It keeps them as long as no optimizer has stepped, and again after a step without one; then it costs nothing.
    """

    def __init__(self) -> None:
        self._doubtful = True
        self.is_in_use = False  # the loop updates weights by itself
        self._before: list[Tensor] | None = None

    def begin(self, weights: Sequence[Weight]) -> None:
        self._before = _sample(weights) if self._doubtful else None

    def stepped(self) -> None:
        """Note that an optimizer has stepped: its update explains changed weights."""
        self._doubtful = self.is_in_use = False

    def changed(self, weights: Sequence[Weight]) -> bool | None:
        """Whether the step changed a weight although no optimizer stepped; None when that was not checked."""
        before, self._doubtful = self._before, True
        if before is None:
            return None
        now = _sample(weights)
        self.is_in_use = len(now) != len(before) or any(
            one.shape != other.shape or not torch.equal(one.nan_to_num(), other.nan_to_num())
            for one, other in zip(before, now, strict=True)
        )
        return self.is_in_use


def _sample(weights: Sequence[Weight]) -> list[Tensor]:
    """Elements of each weight, evenly spaced."""
    results = []
    with unseen():
        for weight in weights:
            values = readable(weight.own)
            if values is not None and values.numel():
                results.append(evenly_spaced(dense(values), _ELEMENTS).clone())
    return results
