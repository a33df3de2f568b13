"""The sentences of a run file: a line of JSON for each different one among its events, beside their English texts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from precgui.sentence_keys import line_of, sentence_of_line

if TYPE_CHECKING:
    from precgui.runs.file.contents import RunFileView
    from precgui.runs.file.table_file import Columns

TABLE = "sentences"
_MOST_BYTES = 4 << 20  # that are read of one file
_MOST_LINES = 10_000
_MOST_CHARACTERS = 1 << 21  # of the texts that are kept
_MOST_WRITTEN = 10_000  # texts that are remembered, so that none is written twice


class SentenceWriter:
    """Makes the lines of sentences that have not been written yet."""

    def __init__(self) -> None:
        self._written: set[str] = set()

    def rows(self, texts: Iterable[str]) -> dict[str, Columns]:
        """The rows of the table for these texts; none where all are written, or no sentences with values."""
        new = {str(text): line for text in texts if text not in self._written and (line := line_of(text))}
        if not new:
            return {}
        if len(self._written) > _MOST_WRITTEN:
            self._written.clear()
        self._written |= new.keys()
        return {TABLE: {"": np.frombuffer("".join(new.values()).encode(errors="replace"), np.uint8)}}


class SentenceReader:
    """The sentences that a file has so far, by their English text."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._read, self._rest = 0, b""
        self._lines_left, self._characters_left = _MOST_LINES, _MOST_CHARACTERS

    def read(self, view: RunFileView) -> None:
        """Read the lines that were written since."""
        stop = min(view.rows(TABLE), _MOST_BYTES)
        if stop <= self._read or self._lines_left <= 0 or self._characters_left <= 0:
            return
        content = self._rest + view.read(TABLE, "", self._read, stop).tobytes()
        *lines, self._rest = content.split(b"\n", self._lines_left)
        self._read = stop
        self._lines_left -= len(lines)
        for line in lines:
            if self._characters_left > 0 and (text := sentence_of_line(line)) is not None:
                self._known[text] = text
                self._characters_left -= len(text)

    def sentence(self, text: str) -> str:
        """The text as the sentence that it is in this file, or itself."""
        return self._known.get(text, text)
