"""Causal models whose targets are their own inputs: the answer to each position is what it has just read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from precgui.engine.telemetry.readable import unseen
from precgui.engine.watcher import OperationCall, Watcher

_LOSSES = ("nll_loss_forward", "nll_loss2d_forward")
_FEWEST = 32  # positions


class UnshiftedTargets(Watcher):
    """Told of each operation outside of the optimizer; compares classes of a loss with indices of embeddings before it.

    Positions, which are the same for all sequences, are left out. Where a decoder gets other indices, as those of the
    sequence moved by one, nothing is noted.
    """

    fact, most_rows = "unshifted_targets", 12

    def __init__(self) -> None:
        super().__init__()
        self._is_causal, self._read = False, list[Tensor]()

    def begin(self, step: int) -> None:
        super().begin(step)
        self.end()

    def end(self) -> None:
        self._is_causal, self._read = False, []

    def observe(self, call: OperationCall) -> None:
        name, args = call.name, call.args
        if name == "embedding" and isinstance(args[1], Tensor) and args[1].dim() > 1:
            self._read.append(args[1])
        elif name.startswith("_scaled_dot_product"):
            self._is_causal |= _is_causal(call.func, args, call.kwargs)
        elif name in _LOSSES and self._is_causal and args[0].requires_grad and self._has_room(len(self._rows)):
            with unseen():
                self._compare(args[1].reshape(-1))

    def _compare(self, targets: Tensor) -> None:
        words = [each for each in self._read if not torch.equal(each, each[:1].expand_as(each))]
        if targets.numel() < _FEWEST or not words or bool((targets == targets[0]).all()):
            return
        if all(each.numel() == targets.numel() and torch.equal(each.reshape(-1), targets) for each in words):
            self._rows[len(self._rows)] = {"step": self._step, "positions": targets.numel()}


def _is_causal(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether an attention was called with `is_causal`."""
    names = [each.name for each in func._schema.arguments]
    if "is_causal" not in names:
        return False
    place = names.index("is_causal")
    return bool(args[place] if place < len(args) else kwargs.get("is_causal", False))
