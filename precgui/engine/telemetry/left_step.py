"""A step that the host has left before the device has computed it: what is held of it while the next one is queued."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import ClassVar, Protocol


class OfSteps(Protocol):
    """An object with attributes that belong to one step; `OF_STEP` has their names."""

    OF_STEP: ClassVar[tuple[str, ...]]


class LeftStep:
    """These attributes of some objects as they are now, for the time when those are already of a later step."""

    def __init__(self, owners: Sequence[OfSteps]) -> None:
        self._owners = owners
        self._values = self._present()

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Inside, the objects are as in this step; what is assigned to these attributes belongs to it."""
        present = self._present()
        self._assign(self._values)
        try:
            yield
        finally:
            self._values = self._present()
            self._assign(present)

    def _present(self) -> list[list[object]]:
        return [[getattr(owner, name) for name in owner.OF_STEP] for owner in self._owners]

    def _assign(self, values: list[list[object]]) -> None:
        for owner, of_owner in zip(self._owners, values, strict=True):
            for name, value in zip(owner.OF_STEP, of_owner, strict=True):
                setattr(owner, name, value)
