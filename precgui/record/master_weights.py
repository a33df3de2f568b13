"""Copies of a model's weights with more digits, which an optimizer updates in their place (master weights)."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from precgui.engine.dtype_names import SHORT_DTYPES
from precgui.engine.telemetry.readable import readable, unseen
from precgui.engine.telemetry.recorder import Weight
from precgui.record.later_numbers import LaterNumbers

_COMPARED = frozenset(2 * 4**power for power in range(6))  # steps of an optimizer before which copies are compared
_MOST_COPIES, _NUMBERS = 8, 1024  # that are compared, and of each


class MasterCopies:
    """Tensors of the optimizers that are FP32 copies of weights of the model in 16 bits, equal but for rounding: of one
    each, or of several behind one another in one flat tensor.

    To be made before the first step: later they need not be equal any more.
    """

    @torch.no_grad()
    def __init__(self, model: nn.Module, weights: Sequence[Weight], later: LaterNumbers) -> None:
        own = list(model.parameters())
        known = {id(each) for each in own}
        low = [each for each in own if each.dtype in SHORT_DTYPES]
        found, self._later, self._steps = 0, later, 0
        self._copies: list[tuple[weakref.ref[Tensor], int, weakref.ref[Tensor]]] = []
        with unseen():
            for wide in (each.own for each in weights if low and id(each.own) not in known):
                copied, place = _copied(wide, low), 0
                for each in copied:
                    self._copies.append((weakref.ref(wide), place, weakref.ref(each)))
                    place += each.numel()
                if copied:
                    low = [each for each in low if not any(each is other for other in copied)]
                    found += 1
        self.count = found or None  # of the tensors of the optimizers
        self.are_copied_back: bool | None = None  # whether the model has what the steps made of them; None: not known

    def steps(self) -> None:
        """An optimizer is about to step: the model has run with what the loop has made of the step before."""
        if not self._copies or self.are_copied_back is False:
            return
        self._steps += 1
        if self._steps not in _COMPARED:
            return
        with unseen():
            differs = [each for each in map(_differing, self._copies[:_MOST_COPIES]) if each is not None]
        if differs:
            self._later.ask(differs, self._judge)

    def _judge(self, differing: list[float]) -> None:
        self.are_copied_back = not any(differing)


def _differing(copy: tuple[weakref.ref[Tensor], int, weakref.ref[Tensor]]) -> Tensor | None:
    """How many of the first numbers of a weight are not the rounding of its master; NaN equals NaN."""
    wide, low = (reference() for reference in (copy[0], copy[2]))
    masters, weights = (readable(each) if each is not None else None for each in (wide, low))
    if masters is None or weights is None or masters.device != weights.device:
        return None
    weights = weights.detach().flatten()[:_NUMBERS]
    masters = masters.detach().flatten()[copy[1] : copy[1] + len(weights)].to(weights.dtype)
    if masters.shape != weights.shape:
        return None
    return ((masters != weights) & ~(masters.isnan() & weights.isnan())).sum()


def _copied(wide: Tensor, low: Sequence[Tensor]) -> list[Tensor]:
    """The weights in 16 bits that a tensor of an optimizer is a copy of, [] where it is of none.

    A flat one holds them in the order of the model, with those of other groups left out, and may end in zeros.
    """
    if (one := next((each for each in low if _is_rounded(wide, each)), None)) is not None:
        return [one]
    flat = readable(wide)
    if flat is None or wide.dim() != 1 or wide.dtype is not torch.float32 or wide.is_meta:
        return []
    found, place = list[Tensor](), 0
    for each in low:
        part = flat[place : place + each.numel()]
        if part.numel() == each.numel() and _is_rounded(part.view(each.shape), each):
            found.append(each)
            place += each.numel()
    return found if found and not bool(flat[place:].any()) else []


def _is_rounded(wide: Tensor, low: Tensor) -> bool:
    """Whether a weight in 16 bits is what rounding makes of another tensor."""
    if wide.dtype is not torch.float32 or wide.shape != low.shape or wide.device != low.device or wide.is_meta:
        return False
    left, right = readable(wide), readable(low)
    return left is not None and right is not None and torch.equal(left.to(low.dtype), right)
