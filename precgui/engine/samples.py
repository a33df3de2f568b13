"""Evenly spaced elements of a tensor."""

from __future__ import annotations

import torch
from torch import Tensor


def sampled(value: Tensor, shape: torch.Size, most: int) -> Tensor:
    """At most about `most` elements of a tensor that is broadcast to a shape, evenly spaced, as a copy in FP32."""
    whole = value.detach().expand(shape)
    count = whole.numel()
    if count <= most:
        return whole.reshape(-1).to(torch.float32, copy=True)
    places = torch.arange(0, count, count // most, device=value.device)
    return whole[torch.unravel_index(places, shape)].float()
