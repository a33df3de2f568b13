"""How many tensors of a model a record names, before any of them has been looked at."""

from __future__ import annotations

from torch import nn


def tensor_count(model: nn.Module) -> int:
    """Parameters and modules; optimizer states and further outputs of a module come on top of it."""
    return sum(1 for _ in model.parameters()) + sum(1 for _ in model.modules())
