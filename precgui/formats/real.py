"""A real number as it was meant: an exact rational, a signed zero, an infinity or a NaN with its payload."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal


@dataclass(frozen=True)
class ExtendedReal:
    """One extended real.

    `value` is 0 unless the kind is finite. `negative` carries the sign of zero, infinity and NaN, too. `exact` is
    False for a real constant or function (pi, exp), which is held to 1 000 bits. `payload` is the mantissa field of
    a NaN below its quiet bit, None for the default NaN.
    """

    kind: Literal["finite", "inf", "nan"] = "finite"
    value: Fraction = Fraction(0)
    negative: bool = False
    exact: bool = True
    payload: int | None = None
    signalling: bool = False

    @property
    def is_finite(self) -> bool:
        return self.kind == "finite"

    @property
    def is_zero(self) -> bool:
        return self.kind == "finite" and self.value == 0

    def __neg__(self) -> ExtendedReal:
        return ExtendedReal(self.kind, -self.value, not self.negative, self.exact, self.payload, self.signalling)


def finite(value: Fraction | int, *, negative_zero: bool = False, exact: bool = True) -> ExtendedReal:
    """A finite real; `negative_zero` matters only for zero."""
    value = Fraction(value)
    return ExtendedReal("finite", value, value < 0 or (value == 0 and negative_zero), exact)


def infinity(*, negative: bool = False) -> ExtendedReal:
    return ExtendedReal("inf", negative=negative)


def nan(payload: int | None = None, *, negative: bool = False, signalling: bool = False) -> ExtendedReal:
    return ExtendedReal("nan", negative=negative, payload=payload, signalling=signalling)


def from_float(value: float) -> ExtendedReal:
    """The exact value of a double, its signed zero included."""
    text = repr(float(value))
    negative = text.startswith("-")
    if "nan" in text:
        return nan()
    if "inf" in text:
        return infinity(negative=negative)
    return finite(Fraction(float(value)), negative_zero=negative)


def to_float(real: ExtendedReal) -> float:
    """The nearest double; infinite where the value is beyond it."""
    if real.kind == "nan":
        return float("nan")
    sign = -1.0 if real.negative else 1.0
    if real.kind == "inf":
        return sign * float("inf")
    try:
        return float(real.value) if real.value else sign * 0.0
    except OverflowError:
        return sign * float("inf")
