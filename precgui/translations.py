"""Translations beside those of `gettext`: a catalogue that is searched, not read, and texts for tests of the layout."""

from __future__ import annotations

import bisect
import re
import struct
from gettext import NullTranslations

_MAGIC = 0x950412DE
_HEADER = struct.Struct("<5I")  # magic, revision, texts, start of the table of keys, start of the table of texts
_ENTRY = struct.Struct("<2I")  # length and start of a text
_CONTEXT_END = b"\x04"  # between a context and its text
_FORMS_END = b"\0"  # between the forms of a text with a plural
KEPT = re.compile(r"(\{[^{}]*\}|<[^<>]*>|&\w+;|`[^`]*`|%\S|\n)")
_ACCENTS = str.maketrans("aceinouyACEINOUY", "áçéíñóúýÁÇÉÍÑÓÚÝ")
_LONGER = 0.4
_WORD = 7  # letters of a word of the padding


class SortedTranslations(NullTranslations):
    """The texts of a .mo file, by binary search in its bytes; `GNUTranslations` decodes all of them at the start.

    For languages with one form for all counts, such as Chinese. Raises ValueError for other bytes and for a file that
    was cut; a text whose bytes are damaged is one that is not there.
    """

    def __init__(self, content: bytes) -> None:
        super().__init__()
        magic, _, self._count, self._keys, self._texts = _HEADER.unpack(content[: _HEADER.size].ljust(_HEADER.size))
        if magic != _MAGIC:
            raise ValueError("a catalogue of translations is no .mo file of this byte order; build it again")
        self._content = content
        self._places = range(self._count)
        if not all(map(self._is_whole, (self._keys, self._texts))):
            raise ValueError("a catalogue of translations ends before its last text; build it again")

    def _is_whole(self, table: int) -> bool:
        """Whether the file holds a table and its last text, which stands behind all others."""
        if len(self._content) < table + _ENTRY.size * self._count:
            return False
        return not self._count or sum(self._entry(table, self._count - 1)) <= len(self._content)

    def gettext(self, message: str) -> str:
        return self._found(message) or message

    def ngettext(self, msgid1: str, msgid2: str, n: int) -> str:
        return self._found(msgid1) or super().ngettext(msgid1, msgid2, n)

    def pgettext(self, context: str, message: str) -> str:
        return self._found(message, context) or message

    def has(self, message: str, plural: str = "") -> bool:
        """Whether the text is there, with this form for many or with none."""
        place = self._place(message)
        if place is None:
            return False
        forms = self._slice(self._keys, place).partition(_FORMS_END)[2]
        return forms.decode() == plural

    def _found(self, message: str, context: str = "") -> str:
        """The first form of a text; empty where there is none."""
        place = self._place(message, context)
        if place is None:
            return ""
        try:
            return self._slice(self._texts, place).partition(_FORMS_END)[0].decode()
        except UnicodeDecodeError:
            return ""

    def _place(self, message: str, context: str = "") -> int | None:
        key = message.encode(errors="surrogatepass"), context.encode()
        place = bisect.bisect_left(self._places, key, key=self._key)
        return None if place == self._count or self._key(place) != key else place

    def _key(self, place: int) -> tuple[bytes, bytes]:
        """Text and context, in the order in which Babel sorts them."""
        context, _mark, message = self._slice(self._keys, place).partition(_FORMS_END)[0].rpartition(_CONTEXT_END)
        return message, context

    def _slice(self, table: int, place: int) -> bytes:
        length, start = self._entry(table, place)
        return self._content[start : start + length]

    def _entry(self, table: int, place: int) -> tuple[int, int]:
        """Length and start of a text, in bytes."""
        length, start = _ENTRY.unpack_from(self._content, table + _ENTRY.size * place)
        return length, start


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
    """A catalogue that has every text, with accents and 40 % longer, its placeholders and markup untouched."""

    def gettext(self, message: str) -> str:
        return pseudo(message)

    def pgettext(self, context: str, message: str) -> str:
        return pseudo(message)

    def ngettext(self, msgid1: str, msgid2: str, n: int) -> str:
        return pseudo(msgid1 if n == 1 else msgid2)
