"""Texts that stay English and can still be shown in another language: marked literals, and sentences with values.

Rooms without Qt write these; `precgui/words.py` translates them where they are shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def L_(text: str) -> str:
    """Mark a text of a table for translation; it stays English until `translated` shows it."""
    return text


class Sentence(str):
    """An English text that remembers its template and values, so that `translated` can show it in another language.

    Everywhere else (files, JSON, comparisons) it is its English text. Values may be sentences themselves.
    """

    template: str
    values: Mapping[str, Any]
    plural: str
    number: int

    def __new__(cls, template: str, plural: str = "", number: int = 1, /, **values: Any) -> Sentence:
        made = super().__new__(cls, (template if number == 1 or not plural else plural).format(**values))
        made.template, made.plural, made.number, made.values = template, plural, number, values
        return made

    def __getnewargs_ex__(self) -> tuple[tuple[str, str, int], dict[str, Any]]:
        return (self.template, self.plural, self.number), dict(self.values)

    def __copy__(self) -> Sentence:
        return self

    def __deepcopy__(self, memo: object) -> Sentence:
        return self


def counted(one: str, many: str, count: int, **values: Any) -> Sentence:
    """A sentence in its singular or plural form; `{count}` in it is the count."""
    return Sentence(one, many, count, **{"count": count, **values})


def together(*parts: str, between: str = " ") -> Sentence:
    """Whole sentences, or the entries of a list, one behind the other; empty ones are left out."""
    named = {f"part{place}": part for place, part in enumerate(filter(None, parts))}
    return Sentence(between.join(f"{{{name}}}" for name in named), **named)
