"""A value that may be missing: missing is a value with a reason, never an exception and never a made-up number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from precgui.sentences import Sentence

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Missing:
    """Not available. `reason` is half a sentence that says why; `lost` means the device itself has gone, `lasting`
    that asking again is no use."""

    reason: str
    lost: bool = False
    lasting: bool = False

    def __str__(self) -> str:
        return Sentence("not available: {reason}", reason=self.reason)


Reading: TypeAlias = T | Missing


def gibibytes(count: Reading[int]) -> str:
    """A memory of `count` bytes as text such as `15.6 GiB`, or why its size is not available."""
    return str(count) if isinstance(count, Missing) else f"{count / 2**30:.1f} GiB"


def known(value: Reading[T]) -> T | None:
    """The value, or None where it is missing: for places that keep only what is there, such as JSON."""
    return None if isinstance(value, Missing) else value
