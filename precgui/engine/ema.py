"""An exponential moving average of the weights, kept in FP32 beside the model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from precgui.engine.torch_private import foreach_lerp_


class WeightAverage:
    """Averages the weights that the optimizer updates; `applied` lends the average to the model."""

    def __init__(self, weights: Sequence[nn.Parameter], updated: Sequence[nn.Parameter], decay: float) -> None:
        """`weights` are the model's, `updated` the ones that the optimizer steps (the same, or FP32 copies)."""
        self._weights, self._updated, self._decay = list(weights), list(updated), decay
        self.values = [_wide(weight.detach()).clone() for weight in weights]

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights after a step."""
        sources = [u if u.numel() else w for w, u in zip(self._weights, self._updated, strict=True)]
        foreach_lerp_(self.values, [_wide(source.detach()) for source in sources], 1 - self._decay)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the model has the average for weights."""
        with torch.no_grad():
            before = [weight.detach().clone() for weight in self._weights]
            _copy(self._weights, self.values)
        try:
            yield
        finally:
            with torch.no_grad():
                _copy(self._weights, before)


def _copy(weights: Sequence[nn.Parameter], values: Sequence[Tensor]) -> None:
    for weight, value in zip(weights, values, strict=True):
        weight.copy_(value)


def _wide(weight: Tensor) -> Tensor:
    return weight if weight.dtype is torch.float64 else weight.float()
