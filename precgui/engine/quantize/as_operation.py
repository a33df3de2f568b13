"""A rounding as one torch operation, for code that traces a step operation by operation.

The loops that round write into memory past torch, and tricks with bits have no counterpart in FP64. While a caller
follows, each rounding is called as `precgui::rounded`, whose counterpart in exact arithmetic is its input.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator

import torch
from torch import Tensor

_Compute = Callable[[Tensor], Tensor]
_LIBRARY = torch.library.Library("precgui", "FRAGMENT")
_IS_FIRST = not hasattr(torch.ops.precgui, "rounded")  # a process may run several exported scripts, each with a copy
_numbers: dict[Hashable, int] = {}
_calls: list[_Compute] = []
_mantissa_bits: list[int | None] = []  # of each call: those of its float format
_followers = 0


def _rounded(source: Tensor, call: int) -> Tensor:
    return _calls[call](source)


if _IS_FIRST:
    _LIBRARY.define("rounded(Tensor source, int call) -> Tensor")
    _LIBRARY.impl("rounded", _rounded, "CompositeExplicitAutograd")
ROUNDED = torch.ops.precgui.rounded.default


@contextlib.contextmanager
def following() -> Iterator[None]:
    """Context in which each rounding is one operation that dispatch modes see."""
    global _followers
    _followers += 1
    try:
        yield
    finally:
        _followers -= 1


def is_followed() -> bool:
    """Whether a caller follows each operation, so that nothing may be computed past torch."""
    return _followers > 0


def mantissa_bits(call: int) -> int | None:
    """The explicit bits of the significand that the format of a rounding has; None of integers, tables and blocks."""
    return _mantissa_bits[call]


def as_operation(source: Tensor, key: Hashable, compute: _Compute, bits: int | None = None) -> Tensor:
    """`compute(source)`; `key` says which rounding it is, so that equal ones are kept once. `bits`: see
    `mantissa_bits`."""
    if not _followers:
        return compute(source)
    if key not in _numbers:
        _numbers[key] = len(_calls)
        _calls.append(compute)
        _mantissa_bits.append(bits)
    result: Tensor = ROUNDED(source, _numbers[key])
    return result
