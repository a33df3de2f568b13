"""Texts from files of others, fit to be shown: what acts on a terminal or turns the writing is shown as its code."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Any

from precgui.sentences import Sentence, together

# C0 but tab and line end, DEL, C1, halves of surrogate pairs, and what turns the direction of writing: a terminal acts
# on some of these, and by the others "exe.png" can stand for a file that is called "gnp.exe".
_ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
MOST_TITLE = 200  # characters, as many as a title in a config has at most


def sanitize(text: str) -> str:
    """The text with such characters written as their codes, such as \\x1b; tabs and line ends stay."""
    return _ACTING.sub(lambda result: ascii(result[0])[1:-1], text)


def sanitize_tree(value: Any) -> Any:
    """A JSON value with all its texts harmless."""
    if isinstance(value, str):
        return sanitize(value)
    if isinstance(value, list):
        return [sanitize_tree(item) for item in value]
    if isinstance(value, dict):
        return {sanitize_tree(key): sanitize_tree(item) for key, item in value.items()}
    return value


def one_line(text: str, most: int = MOST_TITLE) -> str:
    """The text on one line of at most `most` characters, harmless; a longer one ends in "…".

    A sentence that is so already stays a sentence.
    """
    line = sanitize(" ".join(text[: 8 * most].split(None)))
    if line == text and len(text) <= most:
        return text
    return line if len(line) <= most and len(text) <= 8 * most else f"{line[: most - 1]}…"


def some_names(names: Sequence[str], most: int) -> str:
    """The first `most` names, commas between them, and how many more there are: `a, b and 3 more`."""
    has_sentences = any(isinstance(name, Sentence) for name in names)
    listed = together(*names[:most], between=", ") if has_sentences else ", ".join(names[:most])
    more = len(names) - most
    return Sentence("{names} and {count} more", names=listed, count=more) if more > 0 else listed


def visible_name(name: str) -> str:
    """The name on one line, and different for different names: what is not seen as itself is written as its code."""
    seen = re.sub(r"[^\x20-\x7e]", _code, name.replace("\\", "\\\\"))
    return re.sub("^ | $|(?<= ) ", r"\\x20", seen)


def _code(character: re.Match[str]) -> str:
    """Letters of other alphabets stay, unless there is another way to write them, such as a wide one."""
    shown = character[0].isalnum() and unicodedata.normalize("NFKC", character[0]) == character[0]
    return character[0] if shown else character[0].encode("unicode_escape").decode()
