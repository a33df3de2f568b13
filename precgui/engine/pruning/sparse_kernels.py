"""2:4 sparse products where a device has them: NVIDIA Ampere and newer."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

_MULTIPLE = 64  # of both sizes of a weight in FP16, for all of torch's back ends
_ROWS = 4096
_PAIRS = 16


def has_sparse_kernels(device: torch.device) -> bool:
    """Whether `device` multiplies 2:4 sparse matrices in its tensor cores."""
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)


def sparse_speed(layers: Mapping[str, nn.Module], device: torch.device) -> dict[str, float]:
    """Time of the dense FP16 product of each linear layer over that of the sparse one, forward, with 4 096 rows.

    The median of randomised pairs. Layers whose sizes are not multiples of 64 are left out.
    """
    results: dict[str, float] = {}
    for name, layer in layers.items():
        weight: Any = layer.weight
        if isinstance(layer, nn.Linear) and all(size % _MULTIPLE == 0 for size in weight.shape):
            results[name] = _ratio(weight.detach().half(), device)
    return results


def _ratio(weight: Tensor, device: torch.device) -> float:
    sparse = torch.sparse.to_sparse_semi_structured(weight.contiguous())
    rows = torch.randn(_ROWS, weight.shape[1], device=device, dtype=torch.float16)
    sides: dict[str, Callable[[], Tensor]] = {
        "dense": lambda: nn.functional.linear(rows, weight),
        "sparse": lambda: nn.functional.linear(rows, sparse),
    }
    for work in sides.values():
        work()
    ratios = []
    for _ in range(_PAIRS):
        order = [*sides]
        random.shuffle(order)
        taken = {side: _time_ms(sides[side]) for side in order}
        ratios.append(taken["dense"] / taken["sparse"])
    return statistics.median(ratios)


def _time_ms(work: Callable[[], Tensor]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end))
