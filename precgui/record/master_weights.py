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
    """How many tensors of the optimizers are FP32 copies of weights of the model in 16 bits, equal but for rounding:
    of one each, or of several behind one another in one flat tensor.

    None where there are none. To be called before the first step: later they need not be equal any more.
    """
    own = list(model.parameters())
    known = {id(each) for each in own}
    low = [each for each in own if each.dtype in SHORT_DTYPES]
    found = 0
    with unseen():
        for wide in (each.own for each in weights if low and id(each.own) not in known):
            copied = _copied(wide, low)
            if copied:
                low = [each for each in low if not any(each is other for other in copied)]
                found += 1
    return found or None


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
