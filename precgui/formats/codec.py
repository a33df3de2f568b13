"""From an exact real to the code that a format stores for it, and back."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from precgui.formats.model import CodeBook, FloatFormat, Format, IntFormat
from precgui.formats.real import ExtendedReal, finite, infinity, nan
from precgui.formats.rounding import CastPolicy, beyond, clip, keeps_finite, round_ordinal

DEFAULT = CastPolicy()


def encode(real: ExtendedReal, fmt: Format, cast_policy: CastPolicy = DEFAULT, random: int | None = None) -> int:
    """The code of `real`. `random` in [0, 2^24) decides stochastic rounding; without it that mode raises ValueError."""
    if real.kind == "nan":
        return _nan_code(real, fmt, cast_policy)
    if real.kind == "inf":
        return _overflow(fmt, cast_policy, real.negative, from_infinity=True)
    if not fmt.has_zero and isinstance(fmt, FloatFormat) and real.value <= 0:
        return _outside(fmt, cast_policy)
    ordinal = round_ordinal(real.value, fmt, cast_policy.rounding, random)
    if isinstance(fmt, FloatFormat) and not fmt.signed and ordinal < 0:
        return _outside(fmt, cast_policy)
    if beyond(fmt, ordinal):
        return _overflow(fmt, cast_policy, real.negative)
    return code_of(fmt, ordinal, negative_zero=real.negative)


def _outside(fmt: FloatFormat, cast_policy: CastPolicy) -> int:
    """A negative value (or zero, for powers of two) in a format that has none."""
    return 0 if cast_policy.overflow == "saturate" else canonical_nan(fmt)


def _overflow(fmt: Format, cast_policy: CastPolicy, negative: bool, *, from_infinity: bool = False) -> int:
    largest = code_of(fmt, clip(fmt, -(1 << 200) if negative else 1 << 200))
    if not isinstance(fmt, FloatFormat) or cast_policy.overflow == "saturate":
        return largest
    if negative and not fmt.signed:
        return canonical_nan(fmt)
    if cast_policy.overflow == "nan":
        return canonical_nan(fmt, negative=negative) if fmt.has_nan else largest
    if not from_infinity and keeps_finite(cast_policy.rounding, negative=negative):
        return largest
    if fmt.has_inf:
        return infinity_code(fmt, negative=negative)
    return canonical_nan(fmt, negative=negative) if fmt.has_nan else largest


def code_of(fmt: Format, ordinal: int, *, negative_zero: bool = False) -> int:
    """The bits of a finite value, given its ordinal."""
    if isinstance(fmt, CodeBook):
        return ordinal
    if isinstance(fmt, IntFormat):
        return ordinal & ((1 << fmt.bits) - 1)
    negative = ordinal < 0 or (ordinal == 0 and negative_zero and fmt.has_negative_zero)
    return abs(ordinal) | (_sign_bit(fmt) if negative else 0)


def ordinal_of(fmt: Format, code: int) -> int | None:
    """The place of a code among the finite values; None for NaN and infinity."""
    if isinstance(fmt, CodeBook):
        return code
    if isinstance(fmt, IntFormat):
        return code - (1 << fmt.bits) if fmt.signed and code >> (fmt.bits - 1) else code
    magnitude = code & fmt.magnitude_mask
    if magnitude > fmt.max_ordinal or (fmt.special == "fnuz" and code == _sign_bit(fmt)):
        return None
    return -magnitude if _is_negative(fmt, code) else magnitude


def infinity_code(fmt: FloatFormat, *, negative: bool = False) -> int:
    return fmt.exponent_mask << fmt.mantissa_bits | (_sign_bit(fmt) if negative else 0)


def canonical_nan(fmt: FloatFormat, *, negative: bool = False) -> int:
    """The quiet NaN without payload; its sign is kept where it has one."""
    if fmt.special == "fnuz":
        return _sign_bit(fmt)
    sign = _sign_bit(fmt) if negative and fmt.signed else 0
    if fmt.special == "ieee":
        return sign | fmt.exponent_mask << fmt.mantissa_bits | quiet_bit(fmt)
    return sign | fmt.magnitude_mask


def quiet_bit(fmt: FloatFormat) -> int:
    """The mantissa bit that distinguishes a quiet NaN from a signalling one; 0 where NaN has no payload."""
    return 1 << (fmt.mantissa_bits - 1) if fmt.special == "ieee" and fmt.mantissa_bits else 0


def _nan_code(real: ExtendedReal, fmt: Format, cast_policy: CastPolicy) -> int:
    if not isinstance(fmt, FloatFormat) or not fmt.has_nan:
        return _nan_stand_in(real, fmt, cast_policy)
    code = canonical_nan(fmt, negative=real.negative)
    quiet = quiet_bit(fmt)
    if quiet < 2:
        return code
    payload = (real.payload or 0) & (quiet - 1)
    if real.signalling:
        return code ^ quiet | (payload or 1)
    return code | payload


def _nan_stand_in(real: ExtendedReal, fmt: Format, cast_policy: CastPolicy) -> int:
    if isinstance(fmt, FloatFormat):
        if cast_policy.nan == "max" or not fmt.has_zero:
            return fmt.max_ordinal
        return code_of(fmt, 0, negative_zero=cast_policy.nan == "negative_zero" and not real.negative)
    nearest_to_zero = round_ordinal(Fraction(0), fmt, "nearest_even")
    return code_of(fmt, nearest_to_zero)


@dataclass(frozen=True)
class Decoded:
    """A code with its parts; `sign`, `exponent`, `mantissa` are the raw fields, None where there is no such field."""

    format: Format
    code: int
    real: ExtendedReal
    category: str
    sign: int | None = None
    exponent: int | None = None
    mantissa: int | None = None

    @property
    def ordinal(self) -> int | None:
        return ordinal_of(self.format, self.code)


def decode(code: int, fmt: Format) -> Decoded:
    """Decodes a code. Raises ValueError when it has more bits than the format."""
    if not 0 <= code < 1 << fmt.bits:
        raise ValueError(f"{code:#x} does not fit into the {fmt.bits} bits of {fmt.name}")
    if not isinstance(fmt, FloatFormat):
        return _decode_plain(code, fmt)
    sign = code >> (fmt.bits - 1) if fmt.signed else None
    exponent = code >> fmt.mantissa_bits & fmt.exponent_mask if fmt.exponent_bits else None
    mantissa = code & fmt.mantissa_mask if fmt.mantissa_bits else None
    real, category = _meaning(code, fmt)
    return Decoded(fmt, code, real, category, sign, exponent, mantissa)


def _decode_plain(code: int, fmt: IntFormat | CodeBook) -> Decoded:
    if isinstance(fmt, CodeBook) and code >= len(fmt.values):
        raise ValueError(f"{code:#x} is no code of {fmt.name}, which has {len(fmt.values)}")
    ordinal = ordinal_of(fmt, code)
    assert ordinal is not None
    value = fmt.value(ordinal)
    sign = code >> (fmt.bits - 1) if isinstance(fmt, IntFormat) and fmt.signed else None
    return Decoded(fmt, code, finite(value), "normal" if value else "zero", sign)


def _meaning(code: int, fmt: FloatFormat) -> tuple[ExtendedReal, str]:
    negative = _is_negative(fmt, code)
    ordinal = ordinal_of(fmt, code)
    if ordinal is not None:
        value = fmt.value(ordinal)
        return finite(value, negative_zero=negative), _finite_category(value, fmt)
    if fmt.has_inf and code & fmt.magnitude_mask == infinity_code(fmt):
        return infinity(negative=negative), "inf"
    quiet = quiet_bit(fmt)
    if not quiet:
        return nan(negative=negative), "nan"
    payload, is_quiet = code & (quiet - 1), bool(code & quiet)
    return (
        nan(payload, negative=negative, signalling=not is_quiet),
        "quiet nan" if is_quiet else "signalling nan",
    )


def _finite_category(value: Fraction, fmt: FloatFormat) -> str:
    if value == 0:
        return "zero"
    smallest = fmt.min_normal
    return "subnormal" if smallest is None or abs(value) < smallest else "normal"


def _sign_bit(fmt: FloatFormat) -> int:
    return 1 << (fmt.bits - 1) if fmt.signed else 0


def _is_negative(fmt: FloatFormat, code: int) -> bool:
    return bool(code & _sign_bit(fmt))


def step(fmt: Format, code: int, steps: int) -> int:
    """The code `steps` values further up (down if negative), through zero, to the infinities where there are any.

    A NaN stays where it is; the last value stays the last.
    """
    ordinal = ordinal_of(fmt, code)
    top = fmt.max_ordinal + fmt.has_inf
    bottom = fmt.min_ordinal - (fmt.has_inf and fmt.signed)
    if ordinal is None:
        if not isinstance(fmt, FloatFormat) or code & fmt.magnitude_mask != infinity_code(fmt) or not fmt.has_inf:
            return code
        ordinal = bottom if _is_negative(fmt, code) else top
    moved = min(max(ordinal + steps, bottom), top)
    if isinstance(fmt, FloatFormat) and beyond(fmt, moved):
        return infinity_code(fmt, negative=moved < 0)
    return code_of(fmt, moved)
