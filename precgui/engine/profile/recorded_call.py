"""A call of an operation as a step made it: the geometry of its operands, without their numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from precgui.engine.torch_private import tree_leaves, tree_map_only


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The geometry of an operand: its size and strides in elements, and whether it holds floating-point numbers."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call of an operation with the geometry of its operands. `key` tells calls apart; `elements` are those of
    operands and results, each counted once."""

    key: str
    flops: int
    elements: int
    func: Any
    args: Any
    kwargs: Any

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordedCall) and self.key == other.key


def recorded_call(func: Any, args: Any, kwargs: Any, out: Any, flops: int) -> RecordedCall:
    """A call as it was made, without its numbers."""
    specs = tree_map_only(Tensor, _spec, (args, kwargs))
    tensors = [t for t in tree_leaves((args, kwargs, out)) if isinstance(t, Tensor)]
    elements = sum(t.numel() for t in tensors)
    return RecordedCall(f"{func} {specs}", flops, elements, func, *specs)


def _spec(tensor: Tensor) -> TensorSpec:
    return TensorSpec(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)


@dataclass(slots=True)
class RecordedUse:
    """How many times a step makes one call, in which modules (in order) and in which phase first."""

    phase: str
    calls: int = 0
    modules: dict[str, None] = field(default_factory=dict)
