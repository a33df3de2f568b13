"""Arithmetic in a format: each result rounded as hardware would, the exact result beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from itertools import count
from typing import Literal, get_args

from precgui.errors import SentenceError
from precgui.formats import operations
from precgui.formats.codec import Decoded, decode, encode
from precgui.formats.expression import LARGEST_BITS
from precgui.formats.model import FloatFormat, Format, power_of_two
from precgui.formats.real import ExtendedReal, finite
from precgui.formats.report import Report
from precgui.formats.rounding import CastPolicy, draw
from precgui.sentences import L_, Sentence, counted

Order = Literal["one by one", "pairwise", "kahan"]
ORDERS: tuple[Order, ...] = get_args(Order)
TOO_LONG = L_("the exact sum has too many digits; give fewer terms, or decimals instead of fractions")


class ArithmeticFault(SentenceError, ValueError):
    """The operands do not fit the operation; the message is one sentence."""


@dataclass(frozen=True)
class Operation:
    """`operands` of them, as in `formula`; a sum or dot product takes one or two `lists` of any length instead.

    `adds`: the sign of a zero result depends on the rounding, so `exact` takes the keyword `down`.
    """

    name: str
    formula: str
    operands: int = 0
    lists: int = 0
    exact: Callable[..., ExtendedReal] | None = None
    adds: bool = False


OPERATIONS = {
    operation.name: operation
    for operation in (
        Operation("add", "a + b", 2, exact=operations.add, adds=True),
        Operation("subtract", "a − b", 2, exact=operations.subtract, adds=True),
        Operation("multiply", "a × b", 2, exact=operations.multiply),
        Operation("divide", "a / b", 2, exact=operations.divide),
        Operation("sqrt", "√a", 1, exact=operations.square_root),
        Operation("fma", L_("a × b + c, rounded once"), 3, exact=operations.fma, adds=True),
        Operation("sum", "a₁ + a₂ + …", lists=1),
        Operation("dot", "a₁ × b₁ + a₂ × b₂ + …", lists=2),
    )
}
SIGNS = {"+": "add", "-": "subtract", "−": "subtract", "*": "multiply", "x": "multiply", "×": "multiply", "/": "divide",
         "÷": "divide", "√": "sqrt"}  # fmt: skip


@dataclass(frozen=True)
class ArithmeticSettings:
    """How a format computes.

    A sum is kept in `accumulator` (None: the format itself), its terms added in this `order`. Products of a dot product
    are exact until they are added, as in tensor cores, or rounded to `product` first. What has been added up
    is rounded once more to `output`, if there is one. `convention` says how each format rounds.
    """

    accumulator: Format | None = None
    product: Format | None = None
    output: Format | None = None
    order: Order = "one by one"
    cast_policy: Callable[[Format], CastPolicy] = field(default=lambda _: CastPolicy())
    seed: int = 0


DEFAULT = ArithmeticSettings()


@dataclass(frozen=True)
class Result:
    """An operation in a format.

    `operands` say what was meant and what the format holds; `exact` is the exact result of what it holds, `meant` that
    of what was meant.
    """

    operands: tuple[tuple[Report, ...], ...]
    stored: Decoded
    exact: ExtendedReal
    meant: ExtendedReal
    cast_policy: CastPolicy

    @property
    def rounded(self) -> ExtendedReal:
        return self.stored.real

    @property
    def report(self) -> Report:
        """The result against the exact result of the operands that the format holds."""
        return Report(self.exact, self.stored, self.cast_policy)

    @property
    def overall(self) -> Report:
        """The result against what was typed: rounding the operands counts, too."""
        return Report(self.meant, self.stored, self.cast_policy)


class Rounder:
    """Rounds reals into one format; all rounders of a calculation take their random numbers from one row of draws."""

    def __init__(self, fmt: Format, settings: ArithmeticSettings, draws: Iterator[int]) -> None:
        self._format, self._draws = fmt, draws
        self._cast_policy = settings.cast_policy(fmt)
        self._random = self._cast_policy.rounding == "stochastic"
        rounding = self._cast_policy.rounding
        self._down = rounding == "down"
        self._fast: FloatFormat | None = None
        if isinstance(fmt, FloatFormat) and fmt.signed and fmt.has_zero and rounding == "nearest_even":
            self._fast = fmt
        self._largest = fmt.max_finite
        self._known: dict[ExtendedReal, Report] = {}

    def stored(self, real: ExtendedReal) -> Decoded:
        random = next(self._draws) if self._random else None
        return decode(encode(real, self._format, self._cast_policy, random), self._format)

    def report(self, real: ExtendedReal) -> Report:
        if self._random:
            return Report(real, self.stored(real), self._cast_policy)
        if real not in self._known:
            self._known[real] = Report(real, self.stored(real), self._cast_policy)
        return self._known[real]

    def add(self, left: ExtendedReal, right: ExtendedReal) -> ExtendedReal:
        """The rounded sum."""
        return self(operations.add(left, right, down=self._down))

    def subtract(self, left: ExtendedReal, right: ExtendedReal) -> ExtendedReal:
        """The rounded difference."""
        return self(operations.subtract(left, right, down=self._down))

    def __call__(self, real: ExtendedReal) -> ExtendedReal:
        if self._fast is not None and real.value and not real.value.denominator & (real.value.denominator - 1):
            result = _nearest_dyadic(real.value, self._fast)  # as the line below, many times faster
            if abs(result.value) <= self._largest:
                return result
        return self.stored(real).real


def _nearest_dyadic(value: Fraction, fmt: FloatFormat) -> ExtendedReal:
    """n / 2^k to nearest, ties to even, in integers; the exponent is unbounded above."""
    top, shift = abs(value.numerator), value.denominator.bit_length() - 1
    quantum = max(top.bit_length() - 1 - shift, fmt.emin) - fmt.mantissa_bits
    drop = quantum + shift
    if drop <= 0:
        return finite(value)
    whole, remainder, half = top >> drop, top & ((1 << drop) - 1), 1 << (drop - 1)
    if remainder > half or (remainder == half and whole & 1):
        whole += 1
    rounded = whole * power_of_two(quantum)
    negative = value < 0
    return finite(-rounded if negative else rounded, negative_zero=negative and fmt.has_negative_zero)


def operation(word: str) -> Operation:
    """The operation with this name or sign. Raises ArithmeticFault."""
    result = OPERATIONS.get(SIGNS.get(word.strip(), word.strip().lower()))
    if result is None:
        raise ArithmeticFault(
            Sentence("{name!r} is no operation here; there are {names}", name=word[:40], names=", ".join(OPERATIONS))
        )
    return result


def operate(
    name: str, operands: Sequence[Sequence[ExtendedReal]], fmt: Format, settings: ArithmeticSettings = DEFAULT
) -> Result:
    """An operation on operands rounded to `fmt`: numbers as lists of one, a sum or dot product as its lists.

    Every operation is exact and then rounded once. Raises ArithmeticFault for operands that do not fit, also those
    whose exact result is out of reach.
    """
    chosen = operation(name)
    _check(chosen, operands)
    draws = map(partial(draw, settings.seed), count())
    hold = Rounder(fmt, settings, draws)
    held = tuple(tuple(hold.report(real) for real in part) for part in operands)
    values = [[each.stored.real for each in part] for part in held]
    if chosen.exact is not None:
        options = {"down": settings.cast_policy(fmt).rounding == "down"} if chosen.adds else {}
        exact, meant = (
            _within_reach(chosen.exact(*(part[0] for part in parts), **options)) for parts in (values, operands)
        )
        return Result(held, hold.stored(exact), exact, meant, settings.cast_policy(fmt))
    accumulator = settings.accumulator or fmt
    down = settings.cast_policy(accumulator).rounding == "down"
    exact, meant = (_exact_sum(_products(parts), down=down) for parts in (values, operands))
    gather = Rounder(accumulator, settings, draws)
    terms = _products(values)
    if settings.product is not None and chosen.lists == 2:
        terms = map(Rounder(settings.product, settings, draws), terms)
    last = settings.output or accumulator
    result = Rounder(last, settings, draws).stored(_SUMS[settings.order](list(terms), gather))
    return Result(held, result, exact, meant, settings.cast_policy(last))


def _check(chosen: Operation, operands: Sequence[Sequence[ExtendedReal]]) -> None:
    requested = chosen.operands or chosen.lists
    if len(operands) != requested:
        values = {"name": chosen.name, "given": len(operands)}
        if chosen.operands:
            raise ArithmeticFault(
                counted(
                    "{name} takes {count} number, not {given}", "{name} takes {count} numbers, not {given}", requested,
                    **values,
                )
            )  # fmt: skip
        raise ArithmeticFault(
            counted(
                "{name} takes {count} list, not {given}", "{name} takes {count} lists, not {given}", requested, **values
            )
        )
    if chosen.operands and any(len(part) != 1 for part in operands):
        raise ArithmeticFault(Sentence("{name} takes single numbers; sum and dot take lists", name=chosen.name))
    if len({len(part) for part in operands}) > 1 and chosen.lists:
        lengths = " and ".join(str(len(part)) for part in operands)
        raise ArithmeticFault(Sentence("the two lists differ in length: {lengths} numbers", lengths=lengths))


def _products(parts: Sequence[Sequence[ExtendedReal]]) -> Iterator[ExtendedReal]:
    if len(parts) == 1:
        return iter(parts[0])
    return (operations.multiply(a, b) for a, b in zip(*parts, strict=True))


def _exact_sum(terms: Iterator[ExtendedReal], *, down: bool) -> ExtendedReal:
    total = finite(0)
    for term in terms:
        total = _within_reach(operations.add(total, term, down=down))
    return total


def _within_reach(real: ExtendedReal) -> ExtendedReal:
    if max(real.value.numerator.bit_length(), real.value.denominator.bit_length()) > 2 * LARGEST_BITS:
        raise ArithmeticFault(TOO_LONG)
    return real


def _one_by_one(terms: Sequence[ExtendedReal], gather: Rounder) -> ExtendedReal:
    running = finite(0)
    for term in terms:
        running = gather.add(running, term)
    return running


def _pairwise(terms: Sequence[ExtendedReal], gather: Rounder) -> ExtendedReal:
    """Halves are added up apart, down to single terms."""
    if len(terms) < 2:
        return gather(terms[0]) if terms else finite(0)
    middle = len(terms) // 2
    halves = (_pairwise(terms[:middle], gather), _pairwise(terms[middle:], gather))
    return gather.add(*halves)


def _kahan(terms: Sequence[ExtendedReal], gather: Rounder) -> ExtendedReal:
    """Compensated summation (Kahan 1965), every operation rounded to the accumulator."""
    running = lost = finite(0)
    for term in terms:
        corrected = gather.subtract(term, lost)
        grown = gather.add(running, corrected)
        lost = gather.subtract(gather.subtract(grown, running), corrected)
        running = grown
    return running


_SUMS: dict[Order, Callable[[Sequence[ExtendedReal], Rounder], ExtendedReal]] = {
    "one by one": _one_by_one, "pairwise": _pairwise, "kahan": _kahan
}  # fmt: skip
