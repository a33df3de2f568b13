"""How a real number finds its place among the values of a format: rounding, and what happens beyond the ends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, get_args

from precgui.formats.model import CodeBook, FloatFormat, Format

RoundingMode = Literal["nearest_even", "nearest_away", "toward_zero", "up", "down", "to_odd", "stochastic"]
Overflow = Literal["ieee", "saturate", "nan"]
NanPolicy = Literal["negative_zero", "zero", "max"]
ROUNDINGS: tuple[RoundingMode, ...] = get_args(RoundingMode)
OVERFLOWS: tuple[Overflow, ...] = get_args(Overflow)

DRAW_BITS = 24
STRIDE, MIX_A, MIX_B = 0x9E3779B9, 0x21F0AAAD, 0x735A2D97
_MASK32, _MASK64 = (1 << 32) - 1, (1 << 64) - 1


@dataclass(frozen=True)
class CastPolicy:
    """The switches that libraries disagree on.

    overflow: `ieee` gives infinity, else NaN, else the largest value, whichever the format has, and keeps the
    largest finite value where the rounding direction asks for it (IEEE 754, 7.4); `saturate` gives the largest
    value, for infinity, too; `nan` gives NaN, for infinity, too. nan: what stands for NaN in a format without one;
    `negative_zero` is the zero of the other sign, -0 for the usual NaN, as in ml_dtypes.
    """

    rounding: RoundingMode = "nearest_even"
    overflow: Overflow = "ieee"
    nan: NanPolicy = "negative_zero"


def stream_keys(seed: int, block: int) -> tuple[int, int]:
    """Two 32-bit keys for the elements block * 2^32 ... of a tensor (splitmix64, Steele et al. 2014)."""
    word = (seed + (block + 1) * 0x9E3779B97F4A7C15) & _MASK64
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK64
    word ^= word >> 31
    return word & _MASK32, word >> 32


def draw(seed: int, index: int) -> int:
    """The random integer in [0, 2^24) that stochastic rounding uses for element `index` under `seed`.

    A keyed counter hash, so that a result depends on the seed and the place alone, never on the number of threads or on
    what was rounded before: a Weyl sequence (the place times an odd constant, as in splitmix, Steele et al. 2014),
    mixed as in C. Wellons' lowbias32. Without the Weyl sequence, places a power of two apart differ in one bit, and the
    mixer leaves their draws correlated (r = -0.025 at a distance of 4096).
    """
    first, second = stream_keys(seed, index >> 32)
    word = ((index & _MASK32) * STRIDE + first) & _MASK32
    word = ((word ^ (word >> 16)) * MIX_A + second) & _MASK32
    word = ((word ^ (word >> 15)) * MIX_B) & _MASK32
    return (word ^ (word >> 15)) >> (32 - DRAW_BITS)


def round_ordinal(value: Fraction, fmt: Format, rounding: RoundingMode, random: int | None = None) -> int:
    """The ordinal that `value` rounds to, the exponent unbounded above.

    Raises ValueError for stochastic rounding without `random`.
    """
    low = fmt.floor_ordinal(value)
    below = fmt.value(low)
    if value <= below or (isinstance(fmt, CodeBook) and low == fmt.max_ordinal):
        return low
    above = fmt.value(low + 1)
    toward_zero = low if value > 0 else low + 1
    away = low + 1 if value > 0 else low
    match rounding:
        case "toward_zero":
            return toward_zero
        case "up":
            return low + 1
        case "down":
            return low
        case "to_odd":
            return away if fmt.is_even(toward_zero) else toward_zero
        case "stochastic":
            if random is None:
                raise ValueError("stochastic rounding needs a random number; give a seed")
            share = abs(value - fmt.value(toward_zero)) / (above - below)
            return away if share * (1 << DRAW_BITS) >= random + 1 else toward_zero
        case _:
            return _nearest(value, fmt, toward_zero, away, rounding)


def _nearest(value: Fraction, fmt: Format, inner: int, outer: int, rounding: RoundingMode) -> int:
    doubled, middle = 2 * value, fmt.value(inner) + fmt.value(outer)
    if doubled == middle:
        if rounding == "nearest_away":
            return outer if value else inner  # a tie at zero goes up, in a book without zero
        return inner if fmt.is_even(inner) else outer
    return outer if abs(doubled) > abs(middle) else inner


@dataclass(frozen=True)
class Interval:
    """From `low` to `high`, each end belonging to it or not; None where it has no end."""

    low: Fraction | None
    high: Fraction | None
    low_closed: bool
    high_closed: bool

    def __contains__(self, value: Fraction) -> bool:
        above = self.low is None or value > self.low or (self.low_closed and value == self.low)
        return above and (self.high is None or value < self.high or (self.high_closed and value == self.high))


def interval_of(fmt: Format, ordinal: int, cast_policy: CastPolicy) -> Interval:
    """The real numbers that are stored as `ordinal`, overflow included; for stochastic rounding, those that can be."""
    result = rounding_interval(fmt, ordinal, cast_policy.rounding)
    if ordinal == fmt.max_ordinal and _takes_all_beyond(fmt, cast_policy, negative=False):
        result = replace(result, high=None, high_closed=False)
    if isinstance(fmt, FloatFormat) and not fmt.has_zero and ordinal == fmt.min_ordinal:
        result = replace(result, low=Fraction(0), low_closed=False)
    if ordinal == fmt.min_ordinal and _takes_all_beyond(fmt, cast_policy, negative=True):
        result = replace(result, low=None, low_closed=False)
    return result


def _takes_all_beyond(fmt: Format, cast_policy: CastPolicy, *, negative: bool) -> bool:
    """Whether the last value on a side stands for every finite number past it."""
    if not isinstance(fmt, FloatFormat) or cast_policy.overflow == "saturate":
        return True
    if negative and not fmt.signed:
        return False
    if cast_policy.overflow == "nan":
        return not fmt.has_nan
    return keeps_finite(cast_policy.rounding, negative=negative) or not (fmt.has_inf or fmt.has_nan)


def rounding_interval(fmt: Format, ordinal: int, rounding: RoundingMode) -> Interval:
    """The real numbers that round to `ordinal` in a format without end; for stochastic rounding, those that can."""
    value = fmt.value(ordinal)
    below, above = _around(fmt, ordinal)
    if rounding in ("nearest_even", "nearest_away"):
        low, high = (value + below) / 2, (value + above) / 2
        if rounding == "nearest_even":  # a tie goes outwards from an odd place, inwards to an even one
            low_tie = not fmt.is_even(ordinal - 1) if value > 0 else fmt.is_even(ordinal)
            high_tie = not fmt.is_even(ordinal + 1) if value < 0 else fmt.is_even(ordinal)
            return Interval(low, high, low_tie, high_tie)
        return Interval(low, high, value > 0, value < 0 and high != 0)
    if rounding == "to_odd":
        takes_low = fmt.is_even(ordinal - 1) if value > 0 else not fmt.is_even(ordinal)
        takes_high = fmt.is_even(ordinal + 1) if value < 0 else not fmt.is_even(ordinal)
        return Interval(below if takes_low else value, above if takes_high else value, not takes_low, not takes_high)
    goes_down = rounding == "down" or (rounding == "toward_zero" and value > 0)
    goes_up = rounding == "up" or (rounding == "toward_zero" and value < 0)
    if goes_down:
        return Interval(value, above, True, False)
    if goes_up:
        return Interval(below, value, False, True)
    return Interval(below, above, False, False)


def _around(fmt: Format, ordinal: int) -> tuple[Fraction, Fraction]:
    return fmt.value(ordinal - 1), fmt.value(ordinal + 1)


def probability_up(value: Fraction, fmt: Format) -> Fraction:
    """The chance that stochastic rounding takes the upper neighbour: the distance from the lower one in ulps."""
    low = fmt.floor_ordinal(value)
    below = fmt.value(low)
    gap = fmt.value(low + 1) - below
    return (value - below) / gap if gap and value > below else Fraction(0)


def beyond(fmt: Format, ordinal: int) -> bool:
    """Whether a rounded ordinal lies past the finite values."""
    return not fmt.min_ordinal <= ordinal <= fmt.max_ordinal


def keeps_finite(rounding: RoundingMode, *, negative: bool) -> bool:
    """Whether a rounding direction turns overflow into the largest finite value (IEEE 754-2019, 7.4)."""
    if rounding in ("toward_zero", "to_odd"):
        return True
    return rounding == ("up" if negative else "down")


def clip(fmt: Format, ordinal: int) -> int:
    return min(max(ordinal, fmt.min_ordinal), fmt.max_ordinal)
