"""The operations of typed expressions, on exact reals; irrational results are held to 1 000 bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, InvalidOperation, Overflow
from fractions import Fraction
from functools import cache

from precgui.errors import SentenceError
from precgui.formats.codec import decode, encode, step
from precgui.formats.model import FloatFormat, Format
from precgui.formats.operations import add, divide, multiply, subtract
from precgui.formats.real import ExtendedReal, finite
from precgui.formats.registry import get
from precgui.sentences import L_, Sentence

DIGITS = 320
LARGEST_BITS = 120_000
BY_ZERO = L_(
    "division by zero has no value in an expression, which is exact; write inf or nan if that is meant, "
    "or divide as a format does with precgui arithmetic divide"
)
OUT_OF_REACH = L_("the result is out of reach: the widest format here ends at 1.2e4932")
_CONTEXT = Context(prec=DIGITS, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[InvalidOperation, Overflow])


class ExpressionError(SentenceError, ValueError):
    """The expression has no value; the message is one sentence."""


def combine(operator: str, left: ExtendedReal, right: ExtendedReal) -> ExtendedReal:
    """left operator right, with IEEE rules for infinities, NaN and signed zeros. Raises ExpressionError for 1/0."""
    operation = {"+": add, "-": subtract, "*": multiply, "/": _divide, "**": _power}[operator]
    result = operation(left, right)
    if max(result.value.numerator.bit_length(), result.value.denominator.bit_length()) > 2 * LARGEST_BITS:
        raise ExpressionError(OUT_OF_REACH)
    return result


def _divide(left: ExtendedReal, right: ExtendedReal) -> ExtendedReal:
    if right.is_zero:
        raise ExpressionError(BY_ZERO)
    return divide(left, right)


def _power(base: ExtendedReal, exponent: ExtendedReal) -> ExtendedReal:
    if not (base.is_finite and exponent.is_finite):
        raise ExpressionError(L_("powers of infinity are not defined here"))
    power = exponent.value
    if power.denominator != 1:
        return _real_power(base, power)
    size = max(base.value.numerator.bit_length(), base.value.denominator.bit_length())
    if abs(power) * (size - 1 or int(size > 0 and abs(base.value) != 1)) > LARGEST_BITS:
        raise ExpressionError(OUT_OF_REACH)
    if base.is_zero and power < 0:
        raise ExpressionError(BY_ZERO)
    return finite(base.value ** int(power), exact=base.exact)


def _real_power(base: ExtendedReal, power: Fraction) -> ExtendedReal:
    if base.value < 0:
        raise ExpressionError(L_("a fractional power of a negative number has no real value"))
    if base.is_zero:
        return finite(0)
    return _function(lambda x: _CONTEXT.power(x, _decimal(power)))(base)


def _decimal(value: Fraction) -> Decimal:
    return _CONTEXT.divide(Decimal(value.numerator), Decimal(value.denominator))


def _function(function: Callable[[Decimal], Decimal]) -> Callable[[ExtendedReal], ExtendedReal]:
    def apply(real: ExtendedReal) -> ExtendedReal:
        if not real.is_finite:
            raise ExpressionError(L_("functions take finite numbers here"))
        try:
            result = function(_decimal(real.value))
        except InvalidOperation:
            raise ExpressionError(L_("the function has no real value there")) from None
        except Overflow:
            raise ExpressionError(OUT_OF_REACH) from None
        if not result.is_finite() or abs(result.adjusted()) > LARGEST_BITS // 4:
            raise ExpressionError(OUT_OF_REACH)
        return finite(Fraction(result), exact=False)

    return apply


def _sqrt(real: ExtendedReal) -> ExtendedReal:
    if real.is_finite and real.value >= 0:
        top, bottom = _CONTEXT.sqrt(Decimal(real.value.numerator)), _CONTEXT.sqrt(Decimal(real.value.denominator))
        root = Fraction(top) / Fraction(bottom)
        if root * root == real.value:
            return finite(root, negative_zero=real.negative)
    return _function(_CONTEXT.sqrt)(real)


@cache
def constant(name: str) -> ExtendedReal | None:
    """pi, e, tau or phi to 320 digits; None for any other name."""
    if name in ("pi", "π", "tau"):
        return finite(_pi() * (2 if name == "tau" else 1), exact=False)
    if name == "e":
        return finite(Fraction(_CONTEXT.exp(Decimal(1))), exact=False)
    if name == "phi":
        return finite((1 + Fraction(_CONTEXT.sqrt(Decimal(5)))) / 2, exact=False)
    return None


def _pi() -> Fraction:
    """Machin's formula, pi = 16 atan(1/5) - 4 atan(1/239), in integers."""
    one: int = 10 ** (DIGITS + 10)

    def arctan_inverse(x: int) -> int:
        term = total = one // x
        divisor, sign = 1, 1
        while term:
            term = term // (x * x)
            divisor, sign = divisor + 2, -sign
            total += sign * (term // divisor)
        return total

    return Fraction(16 * arctan_inverse(5) - 4 * arctan_inverse(239), one)


def property_of(format_name: str, name: str) -> ExtendedReal:
    """fp16.max, bf16.eps and the like. Raises ExpressionError for an unknown property."""
    fmt = get(format_name)
    names = {"max": "max_finite", "eps": "epsilon", "tiny": "min_normal"}
    attribute = names.get(name.lower(), name.lower())
    if attribute not in ("max_finite", "epsilon", "min_normal", "max_subnormal", "min_subnormal"):
        raise ExpressionError(
            Sentence("{name!r} is no property of a format; there are max, eps, min_normal, min_subnormal", name=name)
        )
    value = getattr(fmt, attribute, None)
    if value is None:
        raise ExpressionError(Sentence("{format} has no {value}", format=fmt.name, value=name))
    return finite(value)


def _neighbour(steps: int) -> Callable[[Sequence[ExtendedReal], Sequence[Format]], ExtendedReal]:
    def apply(arguments: Sequence[ExtendedReal], formats: Sequence[Format]) -> ExtendedReal:
        fmt = formats[0] if formats else get("fp64")
        stored = encode(arguments[0], fmt)
        moved = decode(step(fmt, stored, steps), fmt).real
        if isinstance(fmt, FloatFormat) and arguments[0].kind == "nan":
            return arguments[0]
        return moved

    return apply


def _rounded(arguments: Sequence[ExtendedReal], formats: Sequence[Format]) -> ExtendedReal:
    fmt = formats[0] if formats else get("fp64")
    return decode(encode(arguments[0], fmt), fmt).real


@dataclass(frozen=True)
class Function:
    """A function of expressions; one that takes a format has it as its second argument."""

    call: Callable[[Sequence[ExtendedReal], Sequence[Format]], ExtendedReal]
    takes_format: bool = False


def _unary(function: Callable[[ExtendedReal], ExtendedReal]) -> Function:
    def call(arguments: Sequence[ExtendedReal], _: Sequence[Format]) -> ExtendedReal:
        if len(arguments) != 1:
            raise ExpressionError(Sentence("the function takes one number, not {count}", count=len(arguments)))
        return function(arguments[0])

    return Function(call)


def _extreme(sign: int) -> Function:
    def call(arguments: Sequence[ExtendedReal], _: Sequence[Format]) -> ExtendedReal:
        if not all(real.is_finite for real in arguments):
            raise ExpressionError(L_("min and max take finite numbers here"))
        return max(arguments, key=lambda real: sign * real.value)

    return Function(call)


def _log2(x: Decimal) -> Decimal:
    return _CONTEXT.divide(_CONTEXT.ln(x), _CONTEXT.ln(Decimal(2)))


FUNCTIONS: dict[str, Function] = {
    "sqrt": _unary(_sqrt),
    "exp": _unary(_function(_CONTEXT.exp)),
    "log": _unary(_function(_CONTEXT.ln)),
    "log2": _unary(_function(_log2)),
    "log10": _unary(_function(_CONTEXT.log10)),
    "abs": _unary(lambda real: -real if real.negative else real),
    "min": _extreme(-1),
    "max": _extreme(1),
    "nextup": Function(_neighbour(1), takes_format=True),
    "nextdown": Function(_neighbour(-1), takes_format=True),
    "round": Function(_rounded, takes_format=True),
}
