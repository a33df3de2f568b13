"""Arithmetic in a format: each result rounded as hardware would, the exact result beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from precgui.formats import operations
from precgui.formats.codec import decode, encode
from precgui.formats.model import Format
from precgui.formats.real import Real, finite
from precgui.formats.rounding import Convention, draw

_DEFAULT = Convention()


@dataclass(frozen=True)
class Result:
    """An operation: its operands as the format holds them, the rounded and the exact result."""

    operands: tuple[Real, ...]
    rounded: Real
    exact: Real


class Rounder:
    """Rounds reals into one format; under stochastic rounding the n-th call uses the n-th draw of the seed."""

    def __init__(self, fmt: Format, convention: Convention = _DEFAULT, seed: int = 0) -> None:
        self.format = fmt
        self._convention = convention
        self._seed = seed
        self._calls = 0

    def __call__(self, real: Real) -> Real:
        random = draw(self._seed, self._calls)
        self._calls += 1
        return decode(encode(real, self.format, self._convention, random), self.format).real


_OPERATIONS: dict[str, tuple[int, Callable[..., Real]]] = {
    "+": (2, operations.add),
    "-": (2, operations.subtract),
    "*": (2, operations.multiply),
    "/": (2, operations.divide),
    "sqrt": (1, operations.square_root),
    "fma": (3, operations.fma),
}
OPERATIONS = tuple(_OPERATIONS)


def operate(
    operation: str, operands: Sequence[Real], fmt: Format, convention: Convention = _DEFAULT, seed: int = 0
) -> Result:
    """One of + - * / sqrt fma: operands are rounded to `fmt`, the operation is exact, the result is rounded once."""
    count, function = _OPERATIONS[operation]
    if len(operands) != count:
        raise ValueError(f"{operation} takes {count} numbers, not {len(operands)}")
    rounder = Rounder(fmt, convention, seed)
    held = tuple(rounder(real) for real in operands)
    exact = function(*held)
    return Result(held, rounder(exact), exact)


def total(values: Iterable[Real], accumulator: Format, convention: Convention = _DEFAULT, seed: int = 0) -> Result:
    """The sum from left to right, rounded to the accumulator after each addition. Values are taken as they are."""
    rounder = Rounder(accumulator, convention, seed)
    held = tuple(values)
    running = exact = finite(0)
    for value in held:
        running = rounder(operations.add(running, value))
        exact = operations.add(exact, value)
    return Result(held, running, exact)


def kahan_total(values: Iterable[Real], accumulator: Format, convention: Convention = _DEFAULT) -> Result:
    """Compensated summation (Kahan 1965), every operation rounded to the accumulator."""
    rounder = Rounder(accumulator, convention)
    held = tuple(values)
    running = lost = exact = finite(0)
    for value in held:
        corrected = rounder(operations.subtract(value, lost))
        grown = rounder(operations.add(running, corrected))
        lost = rounder(operations.subtract(rounder(operations.subtract(grown, running)), corrected))
        running = grown
        exact = operations.add(exact, value)
    return Result(held, running, exact)


def dot(
    left: Sequence[Real], right: Sequence[Real], fmt: Format, accumulator: Format,
    convention: Convention = _DEFAULT, product: Format | None = None,
) -> Result:  # fmt: skip
    """The dot product of vectors rounded to `fmt`, added up in `accumulator`.

    Products are exact until they are added, as in tensor cores; with `product` each is rounded to that format first.
    """
    if len(left) != len(right):
        raise ValueError(f"the vectors differ in length: {len(left)} and {len(right)}")
    hold, gather = Rounder(fmt, convention), Rounder(accumulator, convention)
    round_product = Rounder(product, convention) if product else None
    running = exact = finite(0)
    for a, b in zip(left, right, strict=True):
        term = operations.multiply(hold(a), hold(b))
        exact = operations.add(exact, operations.multiply(a, b))
        running = gather(operations.add(running, round_product(term) if round_product else term))
    return Result((*left, *right), running, exact)
