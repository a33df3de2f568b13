"""A compiled catalogue that is searched, not read: each text is looked up when it is shown."""

from __future__ import annotations

import bisect
import struct
from gettext import NullTranslations

_MAGIC = 0x950412DE
_CONTEXT_END = b"\x04"  # between a context and its text
_FORMS_END = b"\0"  # between the forms of a text with a plural


class SortedTranslations(NullTranslations):
    """The texts of a .mo file, by binary search in its bytes; `GNUTranslations` decodes all of them at the start.

    For languages with one form for all counts, such as Chinese. Raises ValueError for other bytes.
    """

    def __init__(self, content: bytes) -> None:
        super().__init__()
        magic, _, self._count, self._keys, self._texts = struct.unpack_from("<5I", content) if content else (0,) * 5
        if magic != _MAGIC:
            raise ValueError("a catalogue of translations is no .mo file of this byte order; build it again")
        self._content = content
        self._places = range(self._count)

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
        return self._slice(self._texts, place).partition(_FORMS_END)[0].decode()

    def _place(self, message: str, context: str = "") -> int | None:
        key = message.encode(errors="surrogatepass"), context.encode()
        place = bisect.bisect_left(self._places, key, key=self._key)
        return None if place == self._count or self._key(place) != key else place

    def _key(self, place: int) -> tuple[bytes, bytes]:
        """Text and context, in the order in which Babel sorts them."""
        context, _mark, message = self._slice(self._keys, place).partition(_FORMS_END)[0].rpartition(_CONTEXT_END)
        return message, context

    def _slice(self, table: int, place: int) -> bytes:
        length, start = struct.unpack_from("<2I", self._content, table + 8 * place)
        return self._content[start : start + length]
