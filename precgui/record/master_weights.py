"""Copies of a model's weights with more digits, which an optimizer updates in their place (master weights)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from precgui.engine.dtype_names import SHORT_DTYPES
from precgui.engine.telemetry.readable import readable, unseen
from precgui.engine.telemetry.recorder import Weight


@torch.no_grad()
def master_weights(model: nn.Module, weights: Sequence[Weight]) -> int | None:
    """How many tensors of the optimizers are FP32 copies of weights of the model in 16 bits, equal but for rounding.

    None where there are none. To be called before the first step: later they need not be equal any more.
    """
    own = list(model.parameters())
    known = {id(each) for each in own}
    low = [each for each in own if each.dtype in SHORT_DTYPES]
    found = 0
    with unseen():
        for wide in (each.own for each in weights if low and id(each.own) not in known):
            place = next((place for place, each in enumerate(low) if _is_rounded(wide, each)), None)
            if place is not None:
                del low[place]
                found += 1
    return found or None


def _is_rounded(wide: Tensor, low: Tensor) -> bool:
    """Whether a weight in 16 bits is what rounding makes of another tensor."""
    if wide.dtype is not torch.float32 or wide.shape != low.shape or wide.device != low.device or wide.is_meta:
        return False
    left, right = readable(wide), readable(low)
    return left is not None and right is not None and torch.equal(left.to(low.dtype), right)
