"""From a format to the few constants that a rounding kernel needs, for single and double precision.

The method of rounding depends on the range of the format against the range of the numbers that hold it:

identity: the format holds every number of the type; nothing is done.
bit_mask: the smallest normal is that of the type. Rounding is an integer addition to the bits and a mask.
bit_mask_scaled: the format goes on where the type has subnormals; those are scaled up, rounded as in `bit_mask`, scaled
down.
add_subtract: the exponent range has room on both sides. A constant C of the element's own binade plus the dropped bits
is added and taken away, (x + C) - C, and the adder of the machine rounds; the floor on C's exponent makes
subnormals of the format come out right, too.
add_subtract_below: the format has less range than the type and as many digits or more: the same with one C for what
lies below it.
none: none of these; the caller takes a wider type or the array form of `formats`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from precgui.formats.model import CodeBook, FloatFormat, power_of_two
from precgui.formats.registry import get
from precgui.formats.rounding import DRAW_BITS, CastPolicy, RoundingMode, keeps_finite, round_ordinal

# From which share of the gap on a positive and a negative magnitude goes outwards; above 1: never.
SHARES = {"toward_zero": (2.0, 2.0), "up": (0.0, 2.0), "down": (2.0, 0.0), "nearest_away": (0.5, 0.5)}
Method = Literal["identity", "bit_mask", "bit_mask_scaled", "add_subtract", "add_subtract_below", "none"]
ADDING = ("add_subtract", "add_subtract_below")


@dataclass(frozen=True)
class HostFloat:
    """A machine float: its widths, its masks and the NumPy types of its bits and values."""

    mantissa_bits: int
    exponent_bits: int
    word: type[np.unsignedinteger]
    real: type[np.floating]

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def emin(self) -> int:
        return 1 - self.bias

    @property
    def sign(self) -> int:
        return 1 << (self.bits - 1)

    @property
    def infinity(self) -> int:
        return ((1 << self.exponent_bits) - 1) << self.mantissa_bits

    @property
    def nan(self) -> int:
        return self.infinity | 1 << (self.mantissa_bits - 1)

    def bits_of(self, value: Fraction) -> int:
        """The code of a non-negative value that this type holds, infinity if it is beyond."""
        if value >= (2 - power_of_two(-self.mantissa_bits - 1)) * power_of_two(self.bias):
            return self.infinity
        real = self.real(float(value))
        return int(np.array(real).view(self.word))


SINGLE = HostFloat(23, 8, np.uint32, np.float32)
DOUBLE = HostFloat(52, 11, np.uint64, np.float64)


@dataclass(frozen=True)
class RoundingPlan:
    """Constants for one format, convention and machine float. All are bit patterns of that float.

    dropped, kept: masks of the lowest `dropped_bits` bits and of all others; half: `dropped >> 1`.
    clamp: larger magnitudes round alike. magic_exponent: added to the exponent of a magnitude, it gives the constant
    whose addition rounds; ulp_offset: taken away, it gives the distance of neighbours.
    over_up, over_down: what finite overflow becomes, positive and negative, without sign. inf_up, inf_down: the same
    for infinity. negative: what a negative result becomes in a format without sign; None in others.
    """

    method: Method
    machine: HostFloat
    dropped_bits: int
    dropped: int
    half: int
    kept: int
    clamp: int
    lowest_binade: int
    magic_exponent: int
    ulp_offset: int
    largest: int
    over_up: int
    over_down: int
    inf_up: int
    inf_down: int
    negative: int | None
    keeps_zero_sign: bool


class PowerConstants(NamedTuple):
    """Bit patterns in the word of a machine float for a format of powers of two without zero and sign, as E8M0 is.

    over, infinite, negative: the results for those inputs. added: the addend to the bits before they are cut.
    """

    lowest: Any
    largest: Any
    over: Any
    infinite: Any
    negative: Any
    infinity: Any
    sign: Any
    normal: Any
    added: Any


@lru_cache(maxsize=64)
def power_constants(fmt: FloatFormat, machine: HostFloat, cast_policy: CastPolicy) -> PowerConstants:
    """Zero and negative numbers become NaN, or the smallest power where the convention saturates."""
    bits_of, whole = machine.bits_of, 1 << machine.mantissa_bits
    lowest, largest = bits_of(power_of_two(fmt.emin)), bits_of(power_of_two(fmt.emax))
    saturates = cast_policy.overflow == "saturate"
    finite = cast_policy.overflow == "ieee" and keeps_finite(cast_policy.rounding, negative=False)
    half = whole >> 1  # every power counts as odd, so ties go outwards
    added = {"nearest_even": half, "nearest_away": half, "up": whole - 1, "stochastic": whole}
    return PowerConstants(
        lowest, largest, largest if saturates or finite else machine.nan, largest if saturates else machine.nan,
        lowest if saturates else machine.nan, machine.infinity, machine.sign, whole,
        added.get(cast_policy.rounding, 0),
    )  # fmt: skip


@lru_cache(maxsize=256)
def make_plan(fmt: FloatFormat, cast_policy: CastPolicy, machine: HostFloat) -> RoundingPlan:
    """The plan for a format with a zero. `method` is `none` where the kernels cannot serve."""
    drop = machine.mantissa_bits - fmt.mantissa_bits
    method = _method(fmt, machine)
    lowest = (max(fmt.emin, machine.emin) + machine.bias) << machine.mantissa_bits
    magic, ulp = (bits << machine.mantissa_bits for bits in (drop, fmt.mantissa_bits))
    if method == "add_subtract_below" and _all_held_below(fmt, machine):
        magic, ulp = -lowest, 0
    return RoundingPlan(
        method,
        machine,
        max(drop, 0),
        (1 << max(drop, 0)) - 1,
        ((1 << max(drop, 0)) - 1) >> 1,
        -1 << max(drop, 0),
        machine.bits_of(4 * fmt.max_finite),
        lowest,
        magic,
        ulp,
        _largest_within(fmt, machine),
        _beyond(fmt, cast_policy, machine, negative=False, infinite=False),
        _beyond(fmt, cast_policy, machine, negative=True, infinite=False),
        _beyond(fmt, cast_policy, machine, negative=False, infinite=True),
        _beyond(fmt, cast_policy, machine, negative=True, infinite=True),
        None if fmt.signed else (0 if cast_policy.overflow == "saturate" else machine.nan),
        fmt.has_negative_zero,
    )


def _method(fmt: FloatFormat, machine: HostFloat) -> Method:
    drop = machine.mantissa_bits - fmt.mantissa_bits
    lowest_quantum, type_quantum = fmt.emin - fmt.mantissa_bits, machine.emin - machine.mantissa_bits
    holds_largest = fmt.max_finite >= (2 - power_of_two(-machine.mantissa_bits)) * power_of_two(machine.bias)
    room_below = lowest_quantum - DRAW_BITS >= machine.emin
    if drop <= 0:
        if lowest_quantum <= type_quantum and holds_largest and fmt.signed:
            return "identity"
        return "add_subtract_below" if room_below or _all_held_below(fmt, machine) else "none"
    if fmt.mantissa_bits == 0 and fmt.emin <= machine.emin:
        return "none"
    if fmt.emin == machine.emin:
        return "bit_mask"
    if fmt.emin <= type_quantum:
        return "bit_mask_scaled"
    room_above = fmt.emax + 2 + drop <= machine.bias
    return "add_subtract" if room_below and room_above else "none"


def _all_held_below(fmt: FloatFormat, machine: HostFloat) -> bool:
    """Whether the format holds all small numbers of the type, its subnormals included."""
    return fmt.emin - fmt.mantissa_bits <= machine.emin - machine.mantissa_bits


def _largest_within(fmt: FloatFormat, machine: HostFloat) -> int:
    """The largest number of the type that is not past the largest value of the format."""
    bits = min(machine.bits_of(fmt.max_finite), machine.infinity - 1)
    held = Fraction(float(np.array(bits, machine.word).view(machine.real)))
    return bits if held <= fmt.max_finite else bits - 1


def _beyond(fmt: FloatFormat, cast_policy: CastPolicy, machine: HostFloat, *, negative: bool, infinite: bool) -> int:
    if machine.bits_of(fmt.max_finite) == machine.infinity and (not infinite or cast_policy.overflow == "saturate"):
        return machine.infinity  # the format holds the value, the type does not
    largest = machine.bits_of(fmt.max_finite)
    if cast_policy.overflow == "saturate":
        return largest
    if cast_policy.overflow == "nan":
        return machine.nan if fmt.has_nan else largest
    if not infinite and keeps_finite(cast_policy.rounding, negative=negative):
        return largest
    if fmt.has_inf:
        return machine.infinity
    return machine.nan if fmt.has_nan else largest


@lru_cache(maxsize=64)
def book_thresholds(fmt: CodeBook, machine: HostFloat, rounding: RoundingMode) -> tuple[Any, ...]:
    """For each entry of a code book but the first, the smallest machine number that rounds to it or to one above."""
    return tuple(_least_above(fmt, place, machine, rounding) for place in range(1, len(fmt.values)))


def _least_above(fmt: CodeBook, place: int, machine: HostFloat, rounding: RoundingMode) -> Any:
    """The smallest machine number that rounds to the entry at `place` or above.

    To nearest, the entries count as they are written; in the other directions as the machine holds them, so that a
    value of the book stays what it is.
    """
    if not rounding.startswith("nearest"):
        held = tuple(Fraction(float(machine.real(float(value)))) for value in fmt.values)
        fmt = replace(fmt, values=held)

    def reaches(number: Any) -> bool:
        return round_ordinal(Fraction(float(number)), fmt, rounding) >= place

    real = machine.real
    low, high = (real(float(fmt.values[n])) for n in (place - 1, place))
    while reaches(low):
        low = np.nextafter(low, real(-np.inf))
    while not reaches(high):
        high = np.nextafter(high, real(np.inf))
    while (middle := low + (high - low) / real(2)) not in (low, high):
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return high


@lru_cache(maxsize=256)
def largest_in_both(fmt: FloatFormat, holder: str) -> Fraction | None:
    """The largest number of a narrow dtype, named as a format, that is one of the format; None where it holds all."""
    held = get(holder)
    value = fmt.max_finite
    while True:
        inside = held.value(min(round_ordinal(value, held, "toward_zero"), held.max_ordinal))
        both = fmt.value(round_ordinal(inside, fmt, "toward_zero"))
        if both == inside:
            return None if both == fmt.max_finite else both
        value = both
