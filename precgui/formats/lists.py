"""Lists of numbers as they are typed: expressions with commas between them, and `repeat(x, n)` for many of one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from precgui.formats import text
from precgui.formats.parse import InputError, parse
from precgui.formats.real import ExtendedReal
from precgui.sentences import L_, Sentence

MOST_NUMBERS = 10_000
_REPEAT = re.compile(r"\s*repeat\s*\((.*),\s*([0-9_]+)\s*\)\s*", re.DOTALL | re.IGNORECASE)
_DEPTH = {"(": 1, ")": -1}


def parse_list(typed: str) -> list[ExtendedReal]:
    """Every number of a list, exactly. Commas inside brackets do not separate. Raises InputError."""
    reals: list[ExtendedReal] = []
    for place, part in enumerate(_parts(typed), 1):
        try:
            reals += _numbers(part)
        except InputError as error:
            raise InputError(Sentence("number {place} of the list: {error}", place=place, error=error)) from None
        if len(reals) > MOST_NUMBERS:
            raise InputError(
                Sentence("the list is too long: at most {most_numbers} numbers are taken", most_numbers=MOST_NUMBERS)
            )
    if not reals:
        raise InputError(L_("the list is empty; write numbers with commas between them, or repeat(0.1, 1000)"))
    return reals


def _parts(typed: str) -> list[str]:
    parts, depth = [""], 0
    for letter in typed:
        depth += _DEPTH.get(letter, 0)
        if letter in ",;\n" and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part.strip()]


def _numbers(part: str) -> list[ExtendedReal]:
    repeat = _REPEAT.fullmatch(part)
    if repeat is None:
        return [parse(part)]
    digits = repeat[2].replace("_", "")
    if len(digits) > 6 or int(digits or 0) > MOST_NUMBERS:
        raise InputError(
            Sentence(
                "{count} repetitions are too many; at most {most} numbers are taken",
                count=repeat[2][:20],
                most=MOST_NUMBERS,
            )
        )
    return [parse(repeat[1])] * int(digits or 0)


def brief_list(reals: Sequence[ExtendedReal], most: int = 5, digits: int = 6) -> str:
    """A list for reading: `1000 × 0.1` where all are alike, else the first few."""
    if len(reals) > 1 and all(real is reals[0] or real == reals[0] for real in reals):
        return f"{len(reals)} × {_brief(reals[0], digits)}"
    displayed = ", ".join(_brief(real, digits) for real in reals[:most])
    return f"{displayed}, … ({len(reals)})" if len(reals) > most else displayed


def _brief(real: ExtendedReal, digits: int) -> str:
    return text.brief(real.value, digits, digits + 2) if real.is_finite and real.value else text.exact(real)
