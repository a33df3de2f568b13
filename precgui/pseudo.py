"""A language for tests of the layout: texts with accents, 40 % longer, their placeholders and markup untouched."""

from __future__ import annotations

import re
from gettext import NullTranslations

KEPT = re.compile(r"(\{[^{}]*\}|<[^<>]*>|&\w+;|`[^`]*`|%\S|\n)")
_ACCENTS = str.maketrans("aceinouyACEINOUY", "áçéíñóúýÁÇÉÍÑÓÚÝ")
_LONGER = 0.4
_WORD = 7  # letters of a word of the padding


def pseudo(text: str) -> str:
    """A text with accents, 40 % longer."""
    parts = KEPT.split(text)
    shown = [part if at % 2 else part.translate(_ACCENTS) for at, part in enumerate(parts)]
    letters = sum(len(part) for part in parts[::2])
    return "".join(shown) + _padding(round(letters * _LONGER))


def _padding(letters: int) -> str:
    """So many letters; many are words, so that a text that wraps still can."""
    words, rest = divmod(letters, _WORD + 1)
    return ("ō" * _WORD + " ") * words + "ō" * rest


class PseudoTranslations(NullTranslations):
    """A catalogue that has every text."""

    def gettext(self, message: str) -> str:
        return pseudo(message)

    def pgettext(self, context: str, message: str) -> str:
        return pseudo(message)

    def ngettext(self, msgid1: str, msgid2: str, n: int) -> str:
        return pseudo(msgid1 if n == 1 else msgid2)
