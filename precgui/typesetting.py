"""Values in a sentence as Chinese sets them: a space beside a Latin word or number, none beside a Chinese one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from precgui.sentences import Placeholder, pieces

_HAN = "\u4e00-\u9fff"
_MARKS = "，。；：、（）“”"
_TIGHT = re.compile(f"[{_HAN}{_MARKS}]{{2}}|[{_MARKS}][A-Za-z0-9]|[A-Za-z0-9][{_MARKS}]")
_BESIDE_LATIN = re.compile(f"[{_HAN}][A-Za-z0-9]|[A-Za-z0-9][{_HAN}]")


def filled_chinese(template: str, values: Mapping[str, Any]) -> str:
    """`template.format(**values)`; spaces change only where a value meets the text of the template."""
    parts = list(_parts(template, values))
    shown = parts[0][0] if parts else ""
    for (_, was_value), (text, is_value) in pairwise(parts):
        shown = _joined(shown, text, is_value) if was_value != is_value else shown + text
    return shown


def _parts(template: str, values: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """The parts of the shown text that are not empty, and whether each is a value."""
    for piece in pieces(template):
        text, is_value = (piece.filled(values), True) if isinstance(piece, Placeholder) else (piece, False)
        if text:
            yield text, is_value


def _joined(left: str, right: str, right_is_value: bool) -> str:
    """Two parts with the space that belongs between them; one inside a value stays."""
    bare_left = left.removesuffix(" ") if right_is_value else left
    bare_right = right if right_is_value else right.removeprefix(" ")
    edge = bare_left[-1:] + bare_right[:1]
    if _TIGHT.fullmatch(edge):
        return bare_left + bare_right
    return f"{bare_left} {bare_right}" if _BESIDE_LATIN.fullmatch(edge) else left + right
