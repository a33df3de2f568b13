"""Formats as data: the bits of a float, an integer or a code book, and the numbers that follow from them.

Every format orders its finite values on one axis of integers, the ordinals: neighbours differ by one, zero is 0.
Rounding, stepping, number lines and intervals are written once, on ordinals.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal

Special = Literal["ieee", "fn", "fnuz", "none", "e8m0"]


def power_of_two(exponent: int) -> Fraction:
    """2^exponent, exact."""
    return Fraction(1 << exponent) if exponent >= 0 else Fraction(1, 1 << -exponent)


def floor_log2(value: Fraction) -> int:
    """The largest k with 2^k <= value; value > 0."""
    guess = value.numerator.bit_length() - value.denominator.bit_length()
    return guess if value >= power_of_two(guess) else guess - 1


@dataclass(frozen=True)
class FloatFormat:
    """A binary float. `special` says where NaN and infinity sit:

    ieee: the top exponent; fn: NaN is all ones, no infinity; fnuz: NaN is the code of negative zero, no infinity;
    none: neither; e8m0: powers of two only, NaN is 0xff, no zero.
    """

    name: str
    title: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    special: Special = "ieee"
    sign_bits: int = 1
    aliases: tuple[str, ...] = ()

    @property
    def bits(self) -> int:
        return self.sign_bits + self.exponent_bits + self.mantissa_bits

    @property
    def precision(self) -> int:
        """Bits of the significand, the hidden one included."""
        return self.mantissa_bits + 1

    @property
    def signed(self) -> bool:
        return self.sign_bits == 1

    @cached_property
    def emin(self) -> int:
        """Exponent of the smallest normal value."""
        return -self.bias if self.special == "e8m0" else 1 - self.bias

    @cached_property
    def emax(self) -> int:
        """Exponent of the largest finite value."""
        return floor_log2(self.max_finite)

    @property
    def magnitude_mask(self) -> int:
        return (1 << (self.exponent_bits + self.mantissa_bits)) - 1

    @property
    def mantissa_mask(self) -> int:
        return (1 << self.mantissa_bits) - 1

    @property
    def exponent_mask(self) -> int:
        return (1 << self.exponent_bits) - 1

    @property
    def has_zero(self) -> bool:
        return self.special != "e8m0"

    @property
    def has_inf(self) -> bool:
        return self.special == "ieee" and self.exponent_bits > 0

    @property
    def has_nan(self) -> bool:
        if self.special == "ieee":
            return self.exponent_bits > 0 and self.mantissa_bits > 0
        return self.special != "none"

    @property
    def has_negative_zero(self) -> bool:
        return self.signed and self.special != "fnuz"

    @cached_property
    def max_ordinal(self) -> int:
        """Ordinal of the largest finite value."""
        if self.has_inf:
            return (self.exponent_mask << self.mantissa_bits) - 1
        if self.special in ("fn", "e8m0"):
            return self.magnitude_mask - 1
        return self.magnitude_mask

    @cached_property
    def min_ordinal(self) -> int:
        """Ordinal of the most negative finite value; 0 without a sign."""
        return -self.max_ordinal if self.signed else 0

    def value(self, ordinal: int) -> Fraction:
        """The exact value at an ordinal; past the ends it continues as if the exponent had no limit."""
        magnitude = abs(ordinal)
        if self.special == "e8m0":
            return power_of_two(ordinal - self.bias)
        field, fraction = magnitude >> self.mantissa_bits, magnitude & self.mantissa_mask
        if field:
            fraction |= 1 << self.mantissa_bits
        value = fraction * power_of_two(max(field, 1) - self.bias - self.mantissa_bits)
        return -value if ordinal < 0 else value

    def floor_ordinal(self, value: Fraction) -> int:
        """The ordinal of the largest value at or below `value`, the exponent unbounded above."""
        if self.special == "e8m0":
            return max(floor_log2(value), self.emin) + self.bias if value > 0 else 0
        if value == 0:
            return 0
        magnitude = abs(value)
        exponent = max(floor_log2(magnitude), self.emin)
        scaled = magnitude * power_of_two(self.mantissa_bits - exponent)
        whole = math.floor(scaled) if value > 0 else math.ceil(scaled)
        ordinal = ((exponent - self.emin) << self.mantissa_bits) + whole
        return ordinal if value > 0 else -ordinal

    def is_even(self, ordinal: int) -> bool:
        """Whether ties go to this ordinal rather than to the one below it in magnitude (even significand)."""
        if self.mantissa_bits:
            return ordinal % 2 == 0
        return ordinal == 0 and self.has_zero

    @property
    def epsilon(self) -> Fraction:
        """Distance from 1 to the next larger value of the same precision."""
        return power_of_two(-self.mantissa_bits)

    @cached_property
    def max_finite(self) -> Fraction:
        return self.value(self.max_ordinal)

    @cached_property
    def min_normal(self) -> Fraction | None:
        """The smallest positive normal value; None where the exponent has no bits."""
        return power_of_two(self.emin) if self.max_finite >= power_of_two(self.emin) else None

    @property
    def min_subnormal(self) -> Fraction | None:
        """The smallest positive subnormal value; None where there is none."""
        return self.value(1) if self.mantissa_bits and self.has_zero else None

    @property
    def max_subnormal(self) -> Fraction | None:
        return self.value(self.mantissa_mask) if self.mantissa_bits and self.has_zero else None

    @cached_property
    def min_positive(self) -> Fraction:
        return self.value(0 if self.special == "e8m0" else 1)

    @cached_property
    def overflow_midpoint(self) -> Fraction:
        """Halfway between the largest finite value and the next one that the exponent would allow."""
        return (self.max_finite + self.value(self.max_ordinal + 1)) / 2

    @property
    def tie_overflows(self) -> bool:
        """Whether the overflow midpoint itself overflows under nearest-even."""
        return not self.is_even(self.max_ordinal)

    @property
    def nan_count(self) -> int:
        if not self.has_nan:
            return 0
        if self.special == "ieee":
            return self.mantissa_mask << self.sign_bits
        return 2 if self.special == "fn" and self.signed else 1

    @property
    def finite_values(self) -> int:
        """How many different finite values there are."""
        return self.max_ordinal - self.min_ordinal + 1

    @property
    def decimal_digits(self) -> float:
        """Significant decimal digits: precision x log10(2)."""
        return self.precision * math.log10(2)


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
