"""Marks of single tensors, kept by their identity and no longer than the tensors live."""

from __future__ import annotations

import weakref
from typing import Any, Generic, TypeVar

from torch import Tensor

T = TypeVar("T")


class TensorMarks(Generic[T]):
    """A mark for each of some tensors. A dead tensor has none, although another one may get its `id`."""

    def __init__(self) -> None:
        self._marks: dict[int, tuple[weakref.ref[Tensor], T]] = {}

    def __bool__(self) -> bool:
        return bool(self._marks)

    def __setitem__(self, tensor: Tensor, mark: T) -> None:
        self._marks[id(tensor)] = weakref.ref(tensor), mark

    def get(self, value: Any) -> T | None:
        """The mark of a tensor; None without one, and of anything else."""
        known = self._marks.get(id(value))
        return known[1] if known is not None and known[0]() is value else None

    def forget(self, tensor: Tensor) -> None:
        self._marks.pop(id(tensor), None)

    def clear(self) -> None:
        self._marks.clear()
