"""One number in one format: code, fields, exact value, neighbours, rounding interval and error."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from precgui.formats import text
from precgui.formats.codec import Decoded, decode, encode, ordinal_of, step
from precgui.formats.model import CodeBook, FloatFormat, Format
from precgui.formats.real import ExtendedReal, to_float
from precgui.formats.rounding import CastPolicy, Interval, beyond, interval_of, probability_up, round_ordinal
from precgui.sentences import L_, Sentence


@dataclass(frozen=True)
class Report:
    """A number in a format. `requested` is what was typed, `stored` what the bits say."""

    requested: ExtendedReal
    stored: Decoded
    cast_policy: CastPolicy

    @property
    def format(self) -> Format:
        return self.stored.format

    @cached_property
    def error(self) -> Fraction | None:
        """Stored minus requested, exact; None where either is not finite."""
        if self.requested.is_finite and self.stored.real.is_finite:
            return self.stored.real.value - self.requested.value
        return None

    @property
    def relative_error(self) -> Fraction | None:
        """Error over the requested value; None for zero."""
        error = self.error
        return None if error is None or self.requested.value == 0 else error / abs(self.requested.value)

    @cached_property
    def error_ulp(self) -> Fraction | None:
        """Error in units of the last place of the stored value."""
        error, unit = self.error, self.ulp
        return None if error is None or not unit else error / unit

    @cached_property
    def ulp(self) -> Fraction | None:
        """Distance from the stored value to the next larger in magnitude; None for NaN and infinity."""
        ordinal = self.stored.ordinal
        if ordinal is None:
            return None
        fmt = self.format
        if isinstance(fmt, CodeBook):
            gaps = [abs(fmt.value(ordinal + way) - fmt.value(ordinal)) for way in (-1, 1)]
            return max(gaps)
        away = ordinal - 1 if ordinal < 0 else ordinal + 1
        return abs(fmt.value(away) - fmt.value(ordinal))

    def neighbour(self, steps: int) -> Decoded | None:
        """The value `steps` places away; None past the end or from a NaN."""
        code = step(self.format, self.stored.code, steps)
        return None if code == self.stored.code else decode(code, self.format)

    @cached_property
    def interval(self) -> Interval | None:
        """The reals that become the stored value under this convention; None for NaN and infinity."""
        ordinal = ordinal_of(self.format, self.stored.code)
        return None if ordinal is None else interval_of(self.format, ordinal, self.cast_policy)

    @property
    def probability_up(self) -> Fraction | None:
        """The chance that stochastic rounding would take the upper neighbour of the requested value."""
        if not self.requested.is_finite or (not self.format.has_zero and self.requested.value <= 0):
            return None
        return probability_up(self.requested.value, self.format)

    @property
    def bits(self) -> str:
        """The code in hexadecimal, zero-padded to the width of the format."""
        return f"0x{self.stored.code:0{(self.format.bits + 3) // 4}x}"

    @property
    def binary(self) -> str:
        return f"{self.stored.code:0{self.format.bits}b}"

    @property
    def digits(self) -> int:
        """The number of significant digits by which the stored value, its neighbours and values between differ."""
        return max(17, int(self.format.decimal_digits) + 4)

    @property
    def interval_text(self) -> str:
        """The interval as `[low, high)`; empty where there is none."""
        if self.interval is None or isinstance(self.format, CodeBook):
            return ""
        low, high = (
            "" if end is None else text.brief(end, self.digits, text.LONGEST_PLAIN)
            for end in (self.interval.low, self.interval.high)
        )
        left, right = "[" if self.interval.low_closed else "(", "]" if self.interval.high_closed else ")"
        return f"{left}{low or '-∞'}, {high or '∞'}{right}"

    @cached_property
    def value_text(self) -> str:
        """The stored value with enough digits to differ from its neighbours."""
        digits = min(max(9, int(self.format.decimal_digits) + 2), 40)
        return text.short(self.stored.real, digits)

    @cached_property
    def note(self) -> str:
        """Remarks on a result that is not an ordinary one; empty otherwise."""
        return _note(self)

    def row(self) -> dict[str, object]:
        """The result as plain data for JSON; the keys are a promise to other programs."""
        error, relative, ulps = self.error, self.relative_error, self.error_ulp
        value = to_float(self.stored.real)
        fields = self.stored
        return {
            "format": self.format.name,
            "bits": self.bits,
            "binary": self.binary,
            "sign": fields.sign,
            "exponent": fields.exponent,
            "mantissa": fields.mantissa,
            "value": value if abs(value) < float("inf") else None,
            "exact": text.exact(self.stored.real),
            "error": None if error is None else self._error_text(error),
            "ulp": None if self.ulp is None else text.exact_fraction(self.ulp),
            "class": self.stored.category,
            "error_relative": None if relative is None else _double(relative),
            "error_ulp": None if ulps is None else _double(ulps),
            "note": self.note,
        }

    def _error_text(self, error: Fraction) -> str:
        if self.requested.exact:
            return text.exact_fraction(error)
        return text.approximate(error, 40)


def _double(value: Fraction) -> float | None:
    try:
        return float(value)
    except OverflowError:
        return None


def _note(report: Report) -> str:
    requested, stored, name = report.requested, report.stored, report.format.name
    if requested.kind == "nan" and stored.real.kind != "nan":
        return Sentence("{name} has no NaN: stored as {exact}", name=name, exact=text.exact(stored.real))
    if requested.is_finite and stored.real.kind == "inf":
        return L_("overflow: becomes infinity")
    if requested.kind != "nan" and stored.real.kind == "nan":
        return _nan_note(report)
    if requested.kind == "inf" and stored.real.is_finite:
        return Sentence("infinity becomes the last value of {name}", name=name)
    if requested.is_finite and _overflows(requested.value, report.format):
        return L_("overflow: becomes the last value")
    if requested.is_finite and not requested.is_zero and stored.real.is_zero:
        return L_("underflow: becomes zero")
    if stored.category == "subnormal" and report.error:
        return L_("subnormal: fewer significant bits")
    return ""


def _overflows(value: Fraction, fmt: Format) -> bool:
    if isinstance(fmt, CodeBook):
        return not fmt.values[0] <= value <= fmt.values[-1]
    return (fmt.has_zero or value > 0) and beyond(fmt, round_ordinal(value, fmt, "nearest_even"))


def _nan_note(report: Report) -> str:
    fmt, requested = report.format, report.requested
    if isinstance(fmt, FloatFormat) and requested.is_finite:
        if not fmt.signed and requested.value < 0:
            return Sentence("{name} has no sign: becomes NaN", name=fmt.name)
        if not fmt.has_zero and requested.value == 0:
            return Sentence("{name} has no zero: becomes NaN", name=fmt.name)
    if requested.kind == "inf":
        if fmt.has_inf:
            return L_("infinity: becomes NaN")
        return Sentence("infinity: {name} has no infinity, becomes NaN", name=fmt.name)
    if fmt.has_inf:
        return L_("overflow: becomes NaN")
    return Sentence("overflow: {name} has no infinity, becomes NaN", name=fmt.name)


def report(real: ExtendedReal, fmt: Format, cast_policy: CastPolicy | None = None, random: int | None = None) -> Report:
    """Encode `real` in `fmt` and say everything about the result."""
    chosen = cast_policy or CastPolicy()
    return Report(real, decode(encode(real, fmt, chosen, random), fmt), chosen)


def report_code(
    code: int, fmt: Format, requested: ExtendedReal | None = None, cast_policy: CastPolicy | None = None
) -> Report:
    """The report on given bits; without `requested` the error is zero."""
    stored = decode(code, fmt)
    return Report(stored.real if requested is None else requested, stored, cast_policy or CastPolicy())
