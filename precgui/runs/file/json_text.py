"""The JSON texts inside a run file: strict JSON out, bounded and checked JSON in."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

MOST_DEPTH = 64


def plain(value: Any) -> Any:
    """The value in types JSON knows: non-finite floats become None, what JSON lacks becomes its text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return str(value)


def dump(value: Any) -> str:
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False)


def dump_within(document: Mapping[str, Any], size: int) -> str:
    """The document as JSON of at most `size` bytes: the largest texts lose their middle, other large entries all.

    Raises ValueError where that is not enough.
    """
    kept = plain(document)
    text = dump(kept)
    while len(text.encode()) > size:
        kept = _smaller(kept)
        if kept is None:
            raise ValueError(f"a document does not fit into {size} bytes")
        text = dump(kept)
    return text


def _smaller(value: Any) -> Any:
    """The value with less of its largest part; None when nothing can be left out of it."""
    if isinstance(value, str) and len(value) > 64:
        return cut_middle(value, len(value.encode(errors="replace")) // 2)
    if isinstance(value, dict) and any(item is not None for item in value.values()):
        largest = max(value, key=lambda key: len(dump(value[key])))
        return {**value, largest: _smaller(value[largest])}
    return None


def load(text: str) -> dict[str, Any]:
    """A JSON object. Raises ValueError for anything else, and for what is nested deeper than `MOST_DEPTH`.

    Half of a surrogate pair, which JSON can name and no file can hold, becomes U+FFFD.
    """
    try:
        document = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    checked: dict[str, Any] = _checked(document, MOST_DEPTH)
    return checked


def _checked(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if not isinstance(value, dict | list):
        return value
    if not depth:
        raise ValueError("nested too deeply")
    if isinstance(value, list):
        return [_checked(item, depth - 1) for item in value]
    return {_checked(key, depth): _checked(item, depth - 1) for key, item in value.items()}


def cut(text: str, size: int) -> str:
    """The text shortened to at most `size` bytes of UTF-8, never inside a character; lone surrogates as their codes."""
    encoded = text.encode(errors="backslashreplace")
    return encoded.decode() if len(encoded) <= size else encoded[: max(size - 3, 0)].decode(errors="ignore") + "…"


def cut_middle(text: str, size: int) -> str:
    """The text shortened to about `size` bytes by leaving out its middle: a traceback's ends matter most."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= size:
        return text
    half = max(size // 2 - 8, 0)
    return encoded[:half].decode(errors="ignore") + "\n…\n" + encoded[len(encoded) - half :].decode(errors="ignore")
