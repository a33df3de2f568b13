"""Sentences as plain JSON data: the message key and the values, kept beside the English text.

Files and frames keep the English text where it is. `key_of` gives what stands beside it, `sentence_of` reads it back
from files and processes of others: a template is used only if the catalogue has it, values are texts and numbers only,
and whatever is not the same English text as the one it belongs to is left as that text.
"""

from __future__ import annotations

import json
import math
import numbers
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from precgui.sanitize import sanitize_tree
from precgui.sentences import Sentence, message_of, placeholders
from precgui.words import is_known

SENTENCES = "sentences"  # the entry of a JSON document that holds the keys of its sentences, by JSON Pointer (RFC 6901)
MOST_DEPTH = 16  # of sentences inside sentences
MOST_CHARACTERS = 1 << 16
MOST_SENTENCES = 10_000  # of one document, with those inside others
_MOST_POINTER = 4096  # characters
_MOST_OF_DOCUMENT = 1 << 20  # characters of all its sentences
_MOST_VALUES = 64
_FIELDS = {"text", "plural", "number", "case", "values"}
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_DIGITS = re.compile("0|[1-9][0-9]{0,8}")  # each place has one pointer only
_Known = Callable[[str, str], bool]


def key_of(text: str) -> dict[str, Any] | None:
    """Template and values of a sentence as JSON data, from which `sentence_of` makes the same English text.

    {"text": template, "plural": template, "number": n, "case": "lower" or "upper", "values": {name: value}}; what is
    "", 1 or {} is left out. A value is a text, a number, true, false, null, such an object for a sentence, or
    {"number": "nan", "inf" or "-inf"}. None for a text that is no sentence, and for one without values, which is its
    own key.
    """
    if not isinstance(text, Sentence) or not (text.values or text.plural or text.case):
        return None
    try:
        key = _key(text, MOST_DEPTH)
        most = min(len(text), MOST_CHARACTERS)
        return key if _sentence(key, MOST_DEPTH, lambda *_: True, most) == text else None
    except (ValueError, TypeError, KeyError):  # too deep, too long, or a value that only its own class can format
        return None


def sentence_of(text: str, key: object) -> str:
    """The text as the sentence of its key; the text itself where the key is not one of it, or not known here."""
    try:
        made = _sentence(key, MOST_DEPTH, is_known, min(len(text), MOST_CHARACTERS))
    except (ValueError, TypeError, KeyError, IndexError, OverflowError):
        return text
    return made if made == text else text


def keys_in(document: Any) -> dict[str, dict[str, Any]]:
    """The keys of all sentences of a JSON document, by JSON Pointer."""
    return {pointer: key for pointer, text in _texts(document, "") if (key := key_of(text)) is not None}


def with_keys(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with the keys of its sentences under `sentences`; without that where it has none."""
    keys = keys_in(document)
    return {**document, SENTENCES: keys} if keys else dict(document)


def restored(document: dict[str, Any]) -> dict[str, Any]:
    """The document without `sentences`, and with the sentences at their places; changes lists and objects in it."""
    keys = document.pop(SENTENCES, None)
    restore(document, keys)
    return document


def restore(document: Any, keys: object) -> None:
    """Put the sentences of `keys_in` at their places in a document. What does not fit is left as it is."""
    if not isinstance(keys, dict) or len(keys) > MOST_SENTENCES:
        return
    room, left = _MOST_OF_DOCUMENT, MOST_SENTENCES
    for pointer, key in keys.items():
        left -= _count(key, MOST_DEPTH)
        if left < 0:
            return
        parent, name = _place(document, pointer)
        if parent is not None and isinstance(parent[name], str) and (room := room - len(parent[name])) >= 0:
            parent[name] = sentence_of(parent[name], key)


def line_of(text: str) -> str:
    """The key of a sentence as a line of JSON; empty for a text without one."""
    key = key_of(text)
    return "" if key is None else json.dumps(key, ensure_ascii=False, allow_nan=False) + "\n"


def sentence_of_line(line: bytes) -> Sentence | None:
    """The sentence of such a line of a file of others; None where it is none that is known here."""
    if len(line) > MOST_CHARACTERS:
        return None
    most = min(2 * len(line) + 1000, MOST_CHARACTERS)  # a template may name a value twice, again and again
    try:
        return _sentence(sanitize_tree(json.loads(line)), MOST_DEPTH, is_known, most)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError):
        return None


def _count(key: Any, depth: int) -> int:
    """How many sentences a key has, itself and those inside."""
    values = key.get("values") if isinstance(key, dict) and depth else None
    return 1 + sum(_count(value, depth - 1) for value in values.values()) if isinstance(values, dict) else 1


def _key(text: Sentence, depth: int) -> dict[str, Any]:
    if not depth:
        raise ValueError("sentences are nested too deep")
    named = _placeholders(text.template) | _placeholders(text.plural)
    values = {name: _plain(value, depth - 1) for name, value in text.values.items() if name in named}
    key = {"text": text.template, "plural": text.plural, "number": text.number, "case": text.case, "values": values}
    return {name: value for name, value in key.items() if name == "text" or value not in ("", {}, 1)}


def _plain(value: Any, depth: int) -> Any:
    if isinstance(value, BaseException):
        value = message_of(value)
    if isinstance(value, Sentence):
        return _key(value, depth)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, numbers.Real):
        number = int(value) if isinstance(value, numbers.Integral) else float(value)
        return number if math.isfinite(number) else {"number": f"{number:g}"}
    return str(value)


def _sentence(key: Any, depth: int, known: _Known, most: int) -> Sentence:
    """The sentence of a key, of at most `most` characters.

    Raises ValueError, TypeError, KeyError, IndexError or OverflowError where it is none.
    """
    if not isinstance(key, dict) or not key.keys() <= _FIELDS or not depth:
        raise ValueError("not the key of a sentence")
    template, plural, number = key["text"], key.get("plural", ""), key.get("number", 1)
    case, values = key.get("case", ""), key.get("values", {})
    if not isinstance(template, str) or not isinstance(plural, str) or case not in ("", "lower", "upper"):
        raise ValueError("not the texts of a sentence")
    if type(number) is not int or not isinstance(values, dict) or len(values) > _MOST_VALUES:
        raise ValueError("not the values of a sentence")
    if not known(template, plural):
        raise ValueError("not a text of the catalogue")
    shown, other = (plural, template) if plural and number != 1 else (template, plural)
    made_values = {name: _value(values[name], depth - 1, known, most) for name in _placeholders(shown)}
    # The other form may fill in more. It is not in the English text, so a file could say there whatever it likes.
    hidden = {name: _value(number, 1, known, most) for name in _placeholders(other) - made_values.keys()}
    made = Sentence(template, plural, number, case, **made_values, **hidden)
    if len(made) > most:
        raise ValueError("longer than a sentence may be")
    other.format(**made_values, **hidden)  # a language with one form takes either
    return made


def _value(value: Any, depth: int, known: _Known, most: int) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"number"}:
            return _NON_FINITE[value["number"]]
        return _sentence(value, depth, known, most)
    if value is None or type(value) in (bool, int, float):
        if type(value) is int and not -(1 << 63) <= value < 1 << 64:
            raise ValueError("a number of more than 64 bits")
        return value
    if not isinstance(value, str) or len(value) > most:
        raise ValueError("not a value of a sentence")
    return value


def _placeholders(template: str) -> set[str]:
    """The names that a template fills in. Raises ValueError where one is no plain name."""
    named = {each.name for each in placeholders(template)}
    if not all(name.isidentifier() for name in named):
        raise ValueError("a placeholder that is no name")
    return named


def _texts(value: Any, pointer: str) -> Iterator[tuple[str, str]]:
    """Every text of a JSON value with its JSON Pointer."""
    if isinstance(value, str):
        yield pointer, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _texts(item, f"{pointer}/{str(name).replace('~', '~0').replace('/', '~1')}")
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            yield from _texts(item, f"{pointer}/{place}")


def _place(document: Any, pointer: str) -> tuple[Any, Any]:
    """The object or list that holds what the pointer names, and its key in it; None where there is none."""
    if len(pointer) > _MOST_POINTER:
        return None, None
    parts = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    parent: Any = None
    name: Any = None
    for part in parts:
        parent = document if parent is None else parent[name]
        if isinstance(parent, dict) and part in parent:
            name = part
        elif isinstance(parent, list) and _DIGITS.fullmatch(part) and int(part) < len(parent):
            name = int(part)
        else:
            return None, None
    return parent, name
