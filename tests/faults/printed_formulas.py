"""The formulas that findings print, worked out again from their printed digits."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from precgui.runs.diagnosis.findings import Finding

_NUMBER = r"(2\^-?\d+|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
_PRODUCT = re.compile(rf"{_NUMBER} times (?:[a-z ]*?){_NUMBER} is {_NUMBER}")
_QUOTIENT = re.compile(rf"scale is {_NUMBER}[^.]*?norm is {_NUMBER}, divided by the scale {_NUMBER}")


def formulas(text: str) -> list[tuple[str, str, str]]:
    """Each `a times b is c` of a text as (a, b, c), and each quotient as the product that it claims."""
    quotients = [(scale, result, norm) for scale, norm, result in _QUOTIENT.findall(text)]
    return [*_PRODUCT.findall(text), *quotients]


def false_formulas(findings: Iterable[Finding]) -> list[str]:
    """The evidence whose printed numbers do not fit, beyond the rounding of their last digits."""
    texts = [each.text for finding in findings for each in finding.evidence]
    return [text for text in texts if not all(_holds(*each) for each in formulas(text))]


def _holds(one: str, other: str, product: str) -> bool:
    (a, da), (b, db), (c, dc) = map(_value, (one, other, product))
    return abs(a * b - c) <= 1.001 * (abs(a) * db + abs(b) * da + da * db + dc)


def _value(text: str) -> tuple[float, float]:
    """A printed number and half a unit of its last digit, of the third one at most: `1` was printed as 1.00 is.

    Powers of two are exact.
    """
    if text.startswith("2^"):
        return 2.0 ** int(text[2:]), 0.0
    mantissa, _, exponent = text.partition("e")
    value, last = float(text), int(exponent or 0) - len(mantissa.partition(".")[2])
    third = math.floor(math.log10(abs(value))) - 2 if value else last
    return value, 0.5 * 10.0 ** min(last, third)
