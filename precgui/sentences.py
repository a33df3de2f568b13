"""Texts that stay English and can still be shown in another language: marked literals, and sentences with values.

Rooms without Qt write these; `precgui/words.py` translates them where they are shown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from string import Formatter
from typing import Any, Literal, NamedTuple

Case = Literal["", "lower", "upper"]


# Placeholders of names that the user has given: shown as they are, though a module may be called "loss". So is what
# `!r` puts into quotes.
NAMES_OF_USERS = frozenset(
    (
        "file",
        "folder",
        "function",
        "functions",
        "given",
        "layer",
        "layers",
        "line",
        "methods",
        "missing_module",
        "module",
        "modules",
        "name",
        "name2",
        "operation",
        "other_file",
        "other_tensor",
        "parameter",
        "parameters",
        "path",
        "pattern",
        "run",
        "signal",
        "tag",
        "tensor",
        "tensors",
    )
)


class Placeholder(NamedTuple):
    """`{name!conversion:spec}` of a template; what is not there is empty."""

    name: str
    conversion: str
    spec: str

    def filled(self, values: Mapping[str, Any]) -> str:
        """The text that takes its place."""
        conversion = f"!{self.conversion}" if self.conversion else ""
        return f"{{{self.name}{conversion}:{self.spec}}}".format(**values)


def pieces(template: str) -> Iterator[str | Placeholder]:
    """The texts and the placeholders of a template, in their order. Raises ValueError where it is none."""
    for literal, name, spec, conversion in Formatter().parse(template):
        if literal:
            yield literal
        if name is not None:
            yield Placeholder(name, conversion or "", spec or "")


def placeholders(template: str) -> list[Placeholder]:
    """The placeholders of a template, in their order. Raises ValueError where it is none."""
    return [piece for piece in pieces(template) if isinstance(piece, Placeholder)]


def L_(text: str) -> str:
    """Mark a text of a table for translation; it stays English until `translated` shows it."""
    return text


class Sentence(str):
    """An English text that remembers its template and values, so that `translated` can show it in another language.

    Everywhere else (files, JSON, comparisons) it is its English text. Values may be sentences themselves. `case` is
    that of its first letter, in languages that have one; "" leaves it.
    """

    template: str
    values: Mapping[str, Any]
    plural: str
    number: int
    case: Case

    def __new__(cls, template: str, plural: str = "", number: int = 1, case: Case = "", /, **values: Any) -> Sentence:
        text = (template if number == 1 or not plural else plural).format(**values)
        made = super().__new__(cls, with_case(text, case))
        made.template, made.plural, made.number, made.case, made.values = template, plural, number, case, values
        return made

    def __getnewargs_ex__(self) -> tuple[tuple[str, str, int, Case], dict[str, Any]]:
        return (self.template, self.plural, self.number, self.case), dict(self.values)

    def with_values(self, **values: Any) -> Sentence:
        """The same sentence with other values."""
        return Sentence(self.template, self.plural, self.number, self.case, **{**self.values, **values})

    def __copy__(self) -> Sentence:
        return self

    def __deepcopy__(self, memo: object) -> Sentence:
        return self


def filled(template: str, **values: Any) -> Sentence:
    """The sentence of a template that a table marks."""
    return Sentence(template, **values)


def as_given(name: str) -> Sentence:
    """A name of somebody else, of a module or an operation: the same in every language, though a text may be alike."""
    return filled("{module}", module=name)


def counted(one: str, many: str, count: int, **values: Any) -> Sentence:
    """A sentence in its singular or plural form; `{count}` in it is the count."""
    return Sentence(one, many, count, **{"count": count, **values})


def with_case(text: str, case: Case) -> str:
    """The text with its first letter in a case."""
    return text if not case else (text[:1].lower() if case == "lower" else text[:1].upper()) + text[1:]


def recased(text: str, case: Case) -> Sentence:
    """A text or sentence with its first letter in a case: a clause as a sentence, a title inside one."""
    return Sentence("{text}", "", 1, case, text=text)


def whole(clause: str) -> Sentence:
    """A clause as a sentence of its own."""
    return Sentence("{clause}.", clause=recased(clause, "upper"))


def kept_text(value: object) -> str:
    """A value of a document as text; a `Sentence` stays one, so that it can still be translated."""
    return value if isinstance(value, Sentence) else str(value)


def without_stop(text: str) -> str:
    """A text without the stops at its end, to stand inside a sentence; a `Sentence` without them stays one.

    Of a `Sentence` made of a clause it is that clause.
    """
    if isinstance(text, Sentence) and text.template == "{clause}.":
        return kept_text(text.values["clause"])
    return text.rstrip(".") if text.endswith(".") else text


def message_of(error: BaseException) -> str:
    """The message of an error; where it is a `Sentence` it stays one, so that it can still be translated."""
    match error.args:
        case (Sentence() as sentence,):
            return sentence
    return str(error)


def first_line(error: BaseException, most: int | None = None) -> str:
    """The first line of the message of an error of somebody else, without its last stop; the class where there is none.

    `most`: at most so many characters of it. A `Sentence` that is such a line stays one.
    """
    lines = str(error).strip().splitlines()
    line = (lines[0].strip().rstrip(".:") if lines else type(error).__name__)[:most]
    message = message_of(error)
    return message if message == line else line


def read_fault(error: BaseException) -> str:
    """Plain words for an error of Python on the content of a file, without advice for programmers."""
    match error:
        case json.JSONDecodeError():
            return Sentence("its JSON is damaged at character {place}", place=error.pos + 1)
        case UnicodeDecodeError():
            return Sentence("byte {place} of its text is not UTF-8", place=error.start + 1)
        case RecursionError():
            return L_("it is nested too deep")
        case OSError() if error.strerror:
            return error.strerror
        case KeyError() if error.args:
            return str(error.args[0])
        case ValueError() if "int_max_str_digits" in str(error):
            return L_("a number in it has too many digits")
    return first_line(error)


# Between whole sentences, entries of a list, clauses: other languages write other marks, or none.
_JOINTS = {
    " ": L_("{sentence} {next_sentence}"),
    ", ": L_("{entry}, {next_entry}"),
    "; ": L_("{clause}; {next_clause}"),
    " and ": L_("{first} and {second}"),
    " or ": L_("{first} or {second}"),
    ", and ": L_("{clause}, and {next_clause}"),
}


def together(*parts: str, between: Literal[" ", ", ", "; ", " and ", " or ", ", and "] = " ") -> Sentence:
    """Whole sentences, or the entries of a list, one behind the other; empty ones are left out."""
    template = _JOINTS[between]
    first, second = re.findall(r"{(\w+)}", template)
    kept = [*filter(None, parts)]
    return reduce(lambda one, other: Sentence(template, **{first: one, second: other}), kept[1:], _whole(*kept[:1]))


def _whole(text: str = "") -> Sentence:
    return text if isinstance(text, Sentence) else Sentence("{text}", text=text)


@dataclass(frozen=True)
class Wording:
    """The language of a page that somebody reads: its tag, such as `zh-CN`, and what shows a text in it."""

    language: str = "en"
    shown: Callable[[str], str] = str


ENGLISH = Wording()
