"""Formats as data: the bits of a float, an integer or a code book, and the numbers that follow from them.

Every format orders its finite values on one axis of integers, the ordinals: neighbours differ by one, zero is 0.
Rounding, stepping, number lines and intervals are written once, on ordinals.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from precgui.formats.float_format import FloatFormat, Special, floor_log2, power_of_two

__all__ = [
    "BlockFormat", "CodeBook", "FloatFormat", "Format", "IntFormat", "Special", "floor_log2", "power_of_two"
]  # fmt: skip


@dataclass(frozen=True)
class IntFormat:
    """Two's complement or unsigned integers, times a fixed step."""

    name: str
    title: str
    bits: int
    signed: bool = True
    step: Fraction = Fraction(1)
    aliases: tuple[str, ...] = ()

    has_inf = has_nan = has_negative_zero = False
    has_zero = True

    @property
    def max_ordinal(self) -> int:
        return (1 << (self.bits - self.signed)) - 1

    @property
    def min_ordinal(self) -> int:
        return -(1 << (self.bits - 1)) if self.signed else 0

    def value(self, ordinal: int) -> Fraction:
        return ordinal * self.step

    def floor_ordinal(self, value: Fraction) -> int:
        return math.floor(value / self.step)

    def is_even(self, ordinal: int) -> bool:
        return ordinal % 2 == 0

    @property
    def max_finite(self) -> Fraction:
        return self.value(self.max_ordinal)

    @property
    def epsilon(self) -> Fraction:
        return self.step

    @property
    def finite_values(self) -> int:
        return 1 << self.bits

    @property
    def decimal_digits(self) -> float:
        return math.log10(self.finite_values)


@dataclass(frozen=True)
class CodeBook:
    """A list of values in ascending order; the code is the place in the list."""

    name: str
    title: str
    bits: int
    values: tuple[Fraction, ...]
    aliases: tuple[str, ...] = ()

    has_inf = has_nan = has_negative_zero = False
    min_ordinal = 0

    @property
    def has_zero(self) -> bool:
        return 0 in self.values

    @property
    def signed(self) -> bool:
        return self.values[0] < 0

    @property
    def max_ordinal(self) -> int:
        return len(self.values) - 1

    def value(self, ordinal: int) -> Fraction:
        """The value of a code; past the ends, the last one."""
        return self.values[min(max(ordinal, 0), self.max_ordinal)]

    def floor_ordinal(self, value: Fraction) -> int:
        return max(sum(entry <= value for entry in self.values) - 1, 0)

    def is_even(self, ordinal: int) -> bool:
        """Whether the entry's place is even; of two entries the upper one is, so that the sign of zero is plus."""
        return (ordinal + (len(self.values) == 2)) % 2 == 0

    @property
    def max_finite(self) -> Fraction:
        return self.values[-1]

    @property
    def epsilon(self) -> Fraction:
        return min(b - a for a, b in zip(self.values, self.values[1:], strict=False))

    @property
    def finite_values(self) -> int:
        return len(self.values)

    @property
    def decimal_digits(self) -> float:
        return math.log10(len(self.values))


Format = FloatFormat | IntFormat | CodeBook


@dataclass(frozen=True)
class BlockFormat:
    """Elements that share a scale: `block` elements of `element`, one `scale` each; NVFP4 has a tensor scale, too."""

    name: str
    title: str
    element: str
    scale: str
    block: int
    two_level: bool = False

    @property
    def scale_bits(self) -> int:
        return 8

    def bits_per_value(self, element_bits: int) -> float:
        return element_bits + self.scale_bits / self.block
