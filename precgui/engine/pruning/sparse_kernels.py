"""2:4 sparse products where a device has them: NVIDIA Ampere and newer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine.bench.timing import compare

_MULTIPLE = 64  # of both sizes of a weight in FP16, for all of torch's back ends
_ROWS = 4096


def has_sparse_kernels(device: torch.device) -> bool:
    """Whether `device` multiplies 2:4 sparse matrices in its tensor cores."""
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)


def sparse_speed(layers: Mapping[str, nn.Module], device: torch.device) -> dict[str, float]:
    """Time of the dense FP16 product of each linear layer over that of the sparse one, forward, with 4 096 rows.

    The median of rounds in which each takes its turn, both warmed up. Layers whose sizes are not multiples of 64 are
    left out.
    """
    results: dict[str, float] = {}
    for name, layer in layers.items():
        weight: Any = layer.weight
        if isinstance(layer, nn.Linear) and all(size % _MULTIPLE == 0 for size in weight.shape):
            results[name] = _ratio(weight.detach().half(), device)
    return results


def _ratio(weight: Tensor, device: torch.device) -> float:
    """A single call on an idle device would be timed with the work of the host before its launch, which is longer for
    the sparse product: calls are queued behind one another."""
    sparse = torch.sparse.to_sparse_semi_structured(weight.contiguous())
    rows = torch.randn(_ROWS, weight.shape[1], device=device, dtype=torch.float16)
    products = [lambda: nn.functional.linear(rows, weight), lambda: nn.functional.linear(rows, sparse)]
    _, relative = compare(products, device, lambda: False)
    return 1 / relative
