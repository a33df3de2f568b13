"""Exact numbers as text: decimal without rounding, n*2^k, hexadecimal floats, and short forms for reading."""

from __future__ import annotations

from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from fractions import Fraction

from precgui.formats.model import floor_log2, power_of_two
from precgui.formats.real import ExtendedReal

LONGEST_PLAIN = 24


def exact(real: ExtendedReal) -> str:
    """The exact value: decimal where it ends (`inf`, `-inf`, `nan`, `-0` included), a fraction where it does not."""
    if real.kind == "nan":
        return "nan"
    sign = "-" if real.negative else ""
    if real.kind == "inf":
        return f"{sign}inf"
    return sign + exact_fraction(abs(real.value))


def exact_fraction(value: Fraction) -> str:
    """The decimal expansion where it ends, numerator/denominator where it does not."""
    decimal = terminating(value)
    return f"{digits_of(value.numerator)}/{digits_of(value.denominator)}" if decimal is None else decimal


def terminating(value: Fraction) -> str | None:
    """All decimals of a fraction, without an exponent; None when they never end."""
    remainder, places = value.denominator, 0
    twos = (remainder & -remainder).bit_length() - 1
    remainder >>= twos
    fives = 0
    while remainder % 5 == 0:
        remainder //= 5
        fives += 1
    if remainder != 1:
        return None
    places = max(twos, fives)
    scaled = abs(value.numerator) * 2 ** (places - twos) * 5 ** (places - fives)
    digits = digits_of(scaled).rjust(places + 1, "0")
    sign = "-" if value < 0 else ""
    return sign + (f"{digits[:-places]}.{digits[-places:]}" if places else digits)


def digits_of(number: int) -> str:
    """An integer in decimal, however long (the limit of str() on long integers does not apply)."""
    return format(Decimal(number), "f")


def times_power_of_two(value: Fraction) -> str:
    """`n*2^k` with odd n; a value that is no such product as a fraction."""
    if value == 0:
        return "0"
    if value.denominator & (value.denominator - 1):
        return exact_fraction(value)
    exponent = -(value.denominator.bit_length() - 1)
    odd = value.numerator
    trailing = (odd & -odd).bit_length() - 1
    odd, exponent = odd >> trailing, exponent + trailing
    if exponent == 0:
        return digits_of(odd)
    return f"2^{exponent}" if odd == 1 else f"-2^{exponent}" if odd == -1 else f"{digits_of(odd)}*2^{exponent}"


def hex_float(value: Fraction) -> str:
    """The C99 form 0x1.8p+3; a value with no finite binary expansion as a fraction."""
    if value == 0:
        return "0x0p+0"
    if value.denominator & (value.denominator - 1):
        return exact_fraction(value)
    exponent = floor_log2(abs(value))
    fraction = abs(value) / power_of_two(exponent) - 1
    digits = ""
    while fraction:
        fraction *= 16
        digits += f"{int(fraction):x}"
        fraction -= int(fraction)
    sign = "-" if value < 0 else ""
    return f"{sign}0x1{'.' + digits if digits else ''}p{exponent:+d}"


def approximate(value: Fraction, digits: int = 9) -> str:
    """A value to so many significant digits, in plain notation where that is short, else with an exponent."""
    if value == 0:
        return "0"
    context = Context(prec=digits, Emax=MAX_EMAX, Emin=MIN_EMIN)
    quotient = context.divide(Decimal(value.numerator), Decimal(value.denominator)).normalize(context)
    exponent = quotient.adjusted()
    if -4 <= exponent < digits:
        return format(quotient, "f")
    mantissa = format(quotient.scaleb(-exponent, context), "f")
    return f"{mantissa}e{exponent:+03d}"


def short(real: ExtendedReal, digits: int = 9) -> str:
    """A real for reading: exact where that is short, to `digits` significant digits elsewhere."""
    if not real.is_finite or real.value == 0:
        return exact(real)
    full = terminating(real.value)
    return full if full is not None and len(full) <= LONGEST_PLAIN else approximate(real.value, digits)


def brief(value: Fraction, digits: int = 5, longest: int = 8) -> str:
    """A value for a narrow column: exact where that takes no more than `longest` characters."""
    full = terminating(value)
    return full if full is not None and len(full) <= longest else approximate(value, digits)


def nan_text(real: ExtendedReal) -> str:
    """A NaN with sign, kind and payload, in the form that the parser reads back."""
    name = "snan" if real.signalling else "nan"
    sign = "-" if real.negative else ""
    return f"{sign}{name}({real.payload:#x})" if real.payload else f"{sign}{name}"


def grouped(count: int) -> str:
    """A whole number in groups of three digits, with narrow spaces that do not break."""
    return f"{count:_}".replace("_", "\u202f")
