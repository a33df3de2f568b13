"""Whether autocast keeps its copies of the weights beyond a step of the optimizer, so that passes use old weights."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from precgui.engine.telemetry.readable import unseen
from precgui.engine.torch_private import function_modes
from precgui.record.later_numbers import LaterNumbers

_STALE, _FRESH = 2, 3  # observations that decide
_MOST_PASSES = 200  # in which autocast was not seen with its cache, then nobody looks any more


class StaleCasts:
    """Sends a number of its own the way of the weights: cast in a forward pass, changed with the step of an optimizer.

    Autocast keeps casts of weights until its outermost region is left. Where the next forward pass still meets the old
    cast of the number, the region was not left in between, and it meets the old casts of the weights, too.
    """

    def __init__(self, device: torch.device, later: LaterNumbers) -> None:
        self.are_used: bool | None = None  # None: undecided
        self._device, self._later = device, later
        self._number: Tensor | None = None
        self._value = 1.0  # of the number
        self._passes = self._stale = self._fresh = 0
        self._was_cast = self._was_changed = False

    def pass_begins(self) -> None:
        """The model is about to be called for training, in the state of autocast at this moment."""
        if self.are_used is not None or self._passes > _MOST_PASSES:
            return
        self._passes += 1
        if not torch.is_autocast_enabled(self._device.type) or not torch.is_autocast_cache_enabled() or _captured():
            return
        cast = self._product()
        if self._was_cast and self._was_changed:
            self._later.ask([cast], partial(self._compare, self._value))
        self._was_cast, self._was_changed = True, False

    def _compare(self, present: float, values: list[float]) -> None:
        """Judge by the number as autocast gave it to a product, and as it was."""
        if self.are_used is not None:
            return
        stale = values[0] != present
        self._stale, self._fresh = self._stale + stale, self._fresh + (not stale)
        if self._stale >= _STALE or self._fresh >= _FRESH:
            self.are_used, self._number = self._stale >= _STALE, None

    def stepped(self) -> None:
        """An optimizer has changed the weights."""
        if self._number is not None and self._was_cast:
            with unseen():
                self._number.add_(1)
            self._value += 1
            self._was_changed = True

    def _product(self) -> Tensor:
        """The number as autocast gives it to a product: small whole numbers are exact in 16 bits."""
        if self._number is None:
            self._number = torch.ones(1, 1, dtype=torch.float32, device=self._device, requires_grad=True)
        with unseen(), torch.enable_grad():
            return torch.mm(self._number, torch.ones(1, 1, dtype=torch.float32, device=self._device)).detach()


def _captured() -> bool:
    """Whether a number cannot be read now: a CUDA graph is captured, or a mode of others sees each operation."""
    return bool(function_modes()) or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())
