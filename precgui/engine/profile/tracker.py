"""Every block of memory that the tensors of a step take and give back, with the module and the operation that made it.

Works on real tensors and on fake ones, so that the same account is made before a run, from shapes alone, and in it.
Buffers inside of a kernel are not tracked; the allocator's own events count those (`engine.memory`).
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from precgui.engine.adapters.packed_weight import is_unpacking
from precgui.engine.casting import tensors_in
from precgui.engine.module_calls import ModuleStack
from precgui.engine.torch_private import (
    TorchDispatchMode,
    operation_name,
    tree_leaves,
    tree_map_only,
)

CUDA_BLOCK_BYTES = 512  # the caching allocator rounds every block up to this (c10/cuda/CUDACachingAllocator.cpp)


@dataclass(slots=True)
class MemoryBlock:
    """One storage. `kind` is a part of the ledger, `module` the one whose forward or backward pass made it."""

    size_bytes: int
    kind: str
    module: str
    operation: str
    dtype: str
    shape: tuple[int, ...]
    phase: str
    recomputed: bool = False


@dataclass(frozen=True, slots=True)
class TracedOperation:
    """One operation that took memory: how many changes of the trace there were after it, and how to call it again."""

    function: Any
    arguments: Any  # (args, kwargs) with a TensorShape in the place of each tensor
    place: int


@dataclass(frozen=True, slots=True)
class TensorShape:
    """The arguments on which the buffers of a kernel depend."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(slots=True)
class Trace:
    """Blocks by number, and the order in which they came (number, +bytes) and went (number, -bytes)."""

    blocks: list[MemoryBlock] = field(default_factory=list)
    changes: list[tuple[int, int]] = field(default_factory=list)
    operations: list[TracedOperation] = field(default_factory=list)
    marks: list[tuple[str, int]] = field(default_factory=list)  # (phase, place in `changes` where it began)


class MemoryTracker(TorchDispatchMode):
    """Writes a `Trace` while it is entered. The caller names what is there already and says when a phase begins."""

    def __init__(self, model: nn.Module, *, keep_operations: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace = Trace()
        self._keep_operations = keep_operations
        self._phase = ""
        self._modules = ModuleStack(model)
        self._numbers: Any = WeakIdKeyDictionary()  # storage: number of its block
        self._weights: set[int] = set()  # numbers of blocks that autocast may keep a copy of

    def __enter__(self) -> MemoryTracker:
        self._modules.follow()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._modules.close()
        self.trace.changes = list(self.trace.changes)  # what goes from now on is not part of the trace

    def begin(self, phase: str) -> None:
        self._phase = phase
        self.trace.marks.append((phase, len(self.trace.changes)))

    def hold(self, kind: str, named: Mapping[str, Any]) -> None:
        """Tensors that are there already, or that turn out to belong to another part of the ledger."""
        for name, value in named.items():
            for tensor in tensors_in(value):
                number = self._add(tensor, kind, name, "")
                if number is not None:
                    block = self.trace.blocks[number]
                    block.kind, block.module = kind, name
                    if kind == "weights":
                        self._weights.add(number)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        kind = "unpacked" if is_unpacking() else "cast_cache" if self._copies_a_weight(func, args) else ""
        module, name, before = (
            self._modules.of_operation(),
            operation_name(func),
            len(self.trace.blocks),
        )
        for value in tree_leaves(out):
            if isinstance(value, Tensor):
                self._add(value, kind, module, name)
        if self._keep_operations and not func.is_view and (len(self.trace.blocks) > before or "mm" in name):
            shapes = tree_map_only(Tensor, _shape, (args, kwargs or {}))
            self.trace.operations.append(TracedOperation(func, shapes, len(self.trace.changes)))
        return out

    def _copies_a_weight(self, func: Any, args: Any) -> bool:
        """Whether this is autocast's copy of a weight: a dispatch mode has no other sign of autocast."""
        if func is not torch.ops.aten._to_copy.default or self._modules.innermost is None or self._phase != "forward":
            return False
        return self._numbers.get(_storage(args[0])) in self._weights

    def _add(self, tensor: Tensor, kind: str, module: str, operation: str) -> int | None:
        storage = _storage(tensor)
        if storage is None:
            return None
        if (known := self._numbers.get(storage)) is not None:
            return int(known)
        size = storage.nbytes()
        if tensor.device.type == "cuda":
            size = -(-size // CUDA_BLOCK_BYTES) * CUDA_BLOCK_BYTES
        number, trace = len(self.trace.blocks), self.trace
        trace.blocks.append(
            MemoryBlock(size, kind, module, operation, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape),
                  self._phase, self._phase == "backward" and self._modules.innermost is not None)
        )  # fmt: skip
        trace.changes.append((number, size))
        self._numbers[storage] = number
        weakref.finalize(storage, trace.changes.append, (number, -size)).atexit = False
        return number


def _shape(tensor: Tensor) -> TensorShape:
    return TensorShape(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)


def _storage(tensor: Tensor) -> Any:
    """The storage that holds its numbers; None for layouts without one."""
    try:
        return tensor.untyped_storage()
    except NotImplementedError:
        return None
