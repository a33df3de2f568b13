"""The tensors of a nested value, and its floating-point ones in another format of torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from precgui.engine.device import upload


def cast_floats(value: Any, dtype: torch.dtype, device: torch.device | None = None) -> Any:
    """`value` with its floating-point tensors in `dtype`, and all tensors on `device` when one is given.

    Tuples, lists and dicts are walked through; integers, masks and everything else stay as they are.
    """
    if isinstance(value, Tensor):
        requested = dtype if value.is_floating_point() else value.dtype
        if device is None or value.device == device:
            return value.to(requested)
        return upload(value.to(requested), device) if value.is_cpu else value.to(device, requested)
    if isinstance(value, dict):
        return {key: cast_floats(item, dtype, device) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [cast_floats(item, dtype, device) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors of a nested value, in its order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, Iterable) and not isinstance(value, str):
        for part in value:
            yield from tensors_in(part)
