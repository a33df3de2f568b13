"""Parses typed numbers exactly: decimals, fractions, hex floats, bits, expressions. Nothing is run as code."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from precgui.errors import SentenceError
from precgui.formats.codec import decode
from precgui.formats.expression import FUNCTIONS, ExpressionError, combine, constant, property_of
from precgui.formats.model import Format, power_of_two
from precgui.formats.real import ExtendedReal, finite, infinity, nan
from precgui.formats.registry import UnknownFormatError, get
from precgui.sentences import L_, Sentence, message_of

LONGEST_INPUT = 20_000
LARGEST_EXPONENT = 20_000

_TOKEN = re.compile(
    r"\s*(?:"
    r"(?P<hex>0[xX](?:[0-9a-fA-F_]+(?:\.[0-9a-fA-F_]*)?|\.[0-9a-fA-F_]+)(?:[pP][+-]?\d+)?)"
    r"|(?P<bin>0[bB][01_]+)"
    r"|(?P<number>(?:\d[\d_]*(?:\.[\d_]*)?|\.\d[\d_]*)(?:[eE][+-]?\d+)?)"
    r"|(?P<name>[A-Za-z_∞π][A-Za-z_0-9∞π.]*)"
    r"|(?P<operator>\*\*|[-+*/^(),:])"
    r")"
)
_LOOKALIKES = str.maketrans({"−": "-", "–": "-", "×": "*", "·": "*", "÷": "/", "＋": "+"})


class InputError(SentenceError, ValueError):
    """The text is no number; the message is one sentence that names the place and the cure."""


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str


def parse(text: str, bits_of: Format | None = None) -> ExtendedReal:
    """The exact value of what was typed. Raises InputError with one sentence.

    Plain 0x... and 0b... are the bits of `bits_of` when one is given, integers otherwise; `fp16:0x3c00` names the
    format in place. Expressions know + - * / ** ( ), pi, e, inf, nan(0x1), snan, sqrt, exp, log, log2, log10, abs,
    min, max, nextup(x, format), nextdown, round(x, format), and fp16.max, fp16.eps, fp16.tiny, fp16.min_subnormal.
    """
    clean = text.strip().translate(_LOOKALIKES)
    if not clean:
        raise InputError(L_("nothing was typed; write a number such as 0.1, 1/3, 2**-14 or 0x1.8p3"))
    if len(clean) > LONGEST_INPUT:
        raise InputError(
            Sentence("{count} characters are too many; the most is {most}", count=len(clean), most=LONGEST_INPUT)
        )
    try:
        return _Parser(_tokens(clean), bits_of).whole()
    except (ExpressionError, UnknownFormatError) as error:
        raise InputError(message_of(error)) from None
    except RecursionError:
        raise InputError(L_("the brackets are nested too deeply")) from None


def _tokens(text: str) -> list[_Token]:
    tokens, place = [], 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise InputError(
                Sentence(
                    "{clip} at character {place} is not part of a number",
                    clip=_clip(text[place:].strip()),
                    place=place + 1,
                )
            )
        tokens.append(_Token(match.lastgroup or "", match.group().strip()))
        place = match.end()
    return tokens


def _clip(text: str) -> str:
    return repr(text if len(text) <= 24 else f"{text[:21]}...")


class _Parser:
    """Recursive descent over the tokens; one method for each level of precedence."""

    def __init__(self, tokens: list[_Token], bits_of: Format | None) -> None:
        self._tokens = tokens
        self._place = 0
        self._bits_of = bits_of

    def whole(self) -> ExtendedReal:
        value = self._sum()
        if self._place < len(self._tokens):
            raise InputError(
                Sentence("{clip} was not expected after a complete number", clip=_clip(self._tokens[self._place].text))
            )
        return value

    def _peek(self) -> str:
        return self._tokens[self._place].text if self._place < len(self._tokens) else ""

    def _take(self) -> _Token:
        if self._place >= len(self._tokens):
            raise InputError(L_("the expression ends too early; a number is missing at its end"))
        self._place += 1
        return self._tokens[self._place - 1]

    def _expect(self, text: str) -> None:
        if self._peek() != text:
            following = self._peek()
            raise InputError(
                Sentence("{text!r} is missing before {clip}", text=text, clip=_clip(following))
                if following
                else Sentence("{text!r} is missing at the end", text=text)
            )
        self._place += 1

    def _sum(self) -> ExtendedReal:
        return self._chain(self._product, ("+", "-"))

    def _product(self) -> ExtendedReal:
        return self._chain(self._signed, ("*", "/"))

    def _chain(self, operand: Callable[[], ExtendedReal], operators: tuple[str, ...]) -> ExtendedReal:
        value = operand()
        while self._peek() in operators:
            operator = self._take().text
            value = combine(operator, value, operand())
        return value

    def _signed(self) -> ExtendedReal:
        if self._peek() == "-":
            self._place += 1
            return -self._signed()
        if self._peek() == "+":
            self._place += 1
            return self._signed()
        return self._power()

    def _power(self) -> ExtendedReal:
        base = self._atom()
        if self._peek() in ("**", "^"):
            self._place += 1
            return combine("**", base, self._signed())
        return base

    def _atom(self) -> ExtendedReal:
        token = self._take()
        match token.kind:
            case "number":
                return finite(_decimal(token.text))
            case "hex" | "bin":
                return self._bits_or_integer(token.text)
            case "name":
                return self._name(token.text)
        if token.text == "(":
            value = self._sum()
            self._expect(")")
            return value
        raise InputError(Sentence("{clip} stands where a number should be", clip=_clip(token.text)))

    def _bits_or_integer(self, text: str) -> ExtendedReal:
        if "." in text or "p" in text.lower():
            return finite(_hex_float(text))
        if self._bits_of is None:
            return finite(int(text.replace("_", ""), 0))
        return _decoded(text, self._bits_of)

    def _name(self, name: str) -> ExtendedReal:
        if self._peek() == ":":
            self._place += 1
            return _decoded(self._take().text, get(name))
        key = name.lower()
        if key in ("nan", "snan", "qnan"):
            return self._nan(signalling=key == "snan")
        if key in ("inf", "infinity", "∞"):
            return infinity()
        if self._peek() == "(":
            return self._call(key)
        if (known := constant(key)) is not None:
            return known
        if "." in name:
            return property_of(*name.rsplit(".", 1))
        raise InputError(
            Sentence(
                "{name} is not known here; names are pi, e, inf, nan, {functions}",
                name=_clip(name),
                functions=", ".join(FUNCTIONS),
            )
        )

    def _nan(self, *, signalling: bool) -> ExtendedReal:
        payload = None
        if self._peek() == "(":
            self._place += 1
            payload = _integer(self._take().text)
            self._expect(")")
        return nan(payload, signalling=signalling)

    def _call(self, name: str) -> ExtendedReal:
        if name not in FUNCTIONS:
            raise InputError(
                Sentence(
                    "{name} is no function here; there are {functions}",
                    name=_clip(name),
                    functions=", ".join(FUNCTIONS),
                )
            )
        self._expect("(")
        arguments, formats = [self._sum()], []
        while self._peek() == ",":
            self._place += 1
            if FUNCTIONS[name].takes_format:
                formats.append(get(self._take().text))
            else:
                arguments.append(self._sum())
        self._expect(")")
        return FUNCTIONS[name].call(arguments, formats)


def _decimal(text: str) -> Fraction:
    mantissa, _, exponent = text.replace("_", "").lower().partition("e")
    power = _limited(exponent, text)
    whole, _, fraction = mantissa.partition(".")
    value = Fraction(_long_int(whole + fraction or "0"))
    power -= len(fraction)
    return value * 10**power if power >= 0 else value / Fraction(10**-power)


def _long_int(digits: str) -> int:
    """int() of any length, in pieces shorter than its limit of 4 300 digits."""
    value = 0
    for start in range(0, len(digits), 4000):
        piece = digits[start : start + 4000]
        value = value * 10 ** len(piece) + int(piece)
    return value


def _hex_float(text: str) -> Fraction:
    mantissa, _, exponent = text[2:].replace("_", "").lower().partition("p")
    whole, _, fraction = mantissa.partition(".")
    power = _limited(exponent, text) - 4 * len(fraction)
    value = Fraction(int(whole + fraction or "0", 16))
    return value * power_of_two(power)


def _limited(exponent: str, text: str) -> int:
    digits = exponent.lstrip("+-0")
    if len(digits) > 6 or abs(int(exponent or 0)) > LARGEST_EXPONENT:
        raise InputError(
            Sentence(
                "the exponent of {clip} is out of reach: it may be {largest_exponent} at most, and the widest "
                "format here ends at 1.2e4932",
                clip=_clip(text),
                largest_exponent=LARGEST_EXPONENT,
            )
        )
    return int(exponent or 0)


def _integer(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise InputError(Sentence("{text} is no integer; write a payload as nan(0x2a)", text=_clip(text))) from None


def _decoded(text: str, fmt: Format) -> ExtendedReal:
    try:
        return decode(_integer(text), fmt).real
    except ValueError as error:
        raise InputError(message_of(error)) from None
