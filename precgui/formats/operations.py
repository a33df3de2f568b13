"""Exact operations on extended reals with the rules of IEEE 754 for infinities, NaN and signed zeros."""

from __future__ import annotations

from fractions import Fraction
from math import isqrt

from precgui.formats.model import power_of_two
from precgui.formats.real import ExtendedReal, finite, infinity, nan

STICKY_BITS = 400


def add(left: ExtendedReal, right: ExtendedReal, *, down: bool = False) -> ExtendedReal:
    """left + right; inf - inf is NaN.

    A sum of zero is -0 where both operands are negative; rounding `down`, where one of them is (IEEE 754-2019, 6.3).
    """
    if bad := _first_nan(left, right):
        return bad
    if left.is_finite and right.is_finite:
        negative = (left.negative or right.negative) if down else (left.negative and right.negative)
        return finite(left.value + right.value, negative_zero=negative, exact=left.exact and right.exact)
    if left.kind == right.kind and left.negative != right.negative:
        return nan()
    return left if left.kind == "inf" else right


def subtract(left: ExtendedReal, right: ExtendedReal, *, down: bool = False) -> ExtendedReal:
    """left - right, zeros as in `add`."""
    return add(left, -right, down=down)


def multiply(left: ExtendedReal, right: ExtendedReal) -> ExtendedReal:
    """left x right; 0 x inf is NaN."""
    if bad := _first_nan(left, right):
        return bad
    negative = left.negative != right.negative
    if "inf" in (left.kind, right.kind):
        return nan() if left.is_zero or right.is_zero else infinity(negative=negative)
    return finite(left.value * right.value, negative_zero=negative, exact=left.exact and right.exact)


def divide(left: ExtendedReal, right: ExtendedReal) -> ExtendedReal:
    """left / right; x / 0 is infinity, 0 / 0 and inf / inf are NaN."""
    if bad := _first_nan(left, right):
        return bad
    negative = left.negative != right.negative
    if left.kind == right.kind == "inf" or (left.is_zero and right.is_zero):
        return nan()
    if left.kind == "inf" or right.is_zero:
        return infinity(negative=negative)
    if right.kind == "inf":
        return finite(0, negative_zero=negative)
    return finite(left.value / right.value, negative_zero=negative, exact=left.exact and right.exact)


def fma(left: ExtendedReal, right: ExtendedReal, addend: ExtendedReal, *, down: bool = False) -> ExtendedReal:
    """left x right + addend, as one exact operation; zeros as in `add`."""
    return add(multiply(left, right), addend, down=down)


def square_root(real: ExtendedReal) -> ExtendedReal:
    """The root, exact where it is rational.

    Any other root is held to 400 bits and never lies on a value or a midpoint of a format with fewer, so that
    rounding it gives the correctly rounded root.
    """
    if real.kind == "nan" or real.is_zero:
        return real
    if real.negative:
        return nan()
    if real.kind == "inf":
        return real
    top, bottom = real.value.numerator, real.value.denominator
    if isqrt(top) ** 2 == top and isqrt(bottom) ** 2 == bottom:
        return finite(Fraction(isqrt(top), isqrt(bottom)), exact=real.exact)
    shift = STICKY_BITS + max(0, bottom.bit_length() - top.bit_length())
    floor = isqrt((top << (2 * shift)) // bottom)
    return finite((2 * floor + 1) * power_of_two(-shift - 1), exact=False)


def _first_nan(*reals: ExtendedReal) -> ExtendedReal | None:
    for real in reals:
        if real.kind == "nan":
            return nan(real.payload, negative=real.negative)
    return None
