"""Texts for people in their language: English is the source text, `resources/words` has the others (docs/words.md).

`_`, `n_` and `p_` translate at once; only the window and the command line call them. All other rooms stay English,
because their texts go into run files and JSON: there `L_` marks a text of a table and `Sentence` keeps template and
values apart (`precgui/sentences.py`), and `translated` shows either in the reader's language.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial, reduce
from gettext import NullTranslations
from itertools import pairwise
from pathlib import Path
from typing import Any

from precgui.catalogue import compile_catalogue, is_outdated, write_whole
from precgui.errors import SentenceError
from precgui.paths import resources
from precgui.sentences import L_ as L_
from precgui.sentences import NAMES_OF_USERS, Placeholder, Wording, pieces, placeholders, with_case
from precgui.sentences import Sentence as Sentence
from precgui.sentences import counted as counted
from precgui.sentences import filled as filled
from precgui.sentences import recased as recased
from precgui.sentences import together as together
from precgui.sentences import whole as whole
from precgui.translations import PseudoTranslations, SortedTranslations

VARIABLE = "PRECGUI_LANGUAGE"
LANGUAGES = {"en": "English", "zh_CN": "简体中文"}  # each in its own words
CHOICES = ("system", *LANGUAGES)
_TRANSLATED = tuple(tag for tag in LANGUAGES if tag != "en")
PSEUDO = "pseudo"  # for tests of the layout: longer, with accents
_LOCALE_VARIABLES = ("LC_ALL", "LC_MESSAGES", "LANG")
_TRADITIONAL = {"tw", "hk", "mo", "hant"}


class _Chosen:
    """The catalogue of this process: chosen once, at the first text or by `use`."""

    language = ""
    catalogue: NullTranslations = NullTranslations()


def _catalogue() -> NullTranslations:
    if not _Chosen.language:
        use(language_of_environment(os.environ))
    return _Chosen.catalogue


def use(language: str) -> None:
    """Show texts in a language of LANGUAGES, or in `pseudo`, from now on. What is on the screen stays as it is."""
    _Chosen.catalogue = PseudoTranslations() if language == PSEUDO else _read(language)
    _Chosen.language = language


def language() -> str:
    """The language that texts are shown in: a key of LANGUAGES, or `pseudo`."""
    _catalogue()
    return _Chosen.language


def _(text: str) -> str:
    """A text in the reader's language. It is one literal, whole, with named placeholders that the caller fills in."""
    return _catalogue().gettext(text)


def n_(one: str, many: str, count: int) -> str:
    """A text in its singular or plural form in the reader's language."""
    return _catalogue().ngettext(one, many, count)


def p_(context: str, text: str) -> str:
    """A text whose translation depends on where it stands: `p_("severity", "Error")`, not the error of a value."""
    return _catalogue().pgettext(context, text)


def translated(text: str) -> str:
    """A marked text or a sentence in the reader's language; any other text as it is."""
    if isinstance(text, Sentence):
        catalogue = _catalogue()
        if text.plural:
            template = catalogue.ngettext(text.template, text.plural, text.number)
        else:
            template = catalogue.gettext(text.template)
        as_given = NAMES_OF_USERS | _quoted(template)
        values = {name: _shown(value, as_given=name in as_given) for name, value in text.values.items()}
        shown = _filled(template, values)
        return with_case(shown, text.case if _Chosen.language in ("en", PSEUDO) else "")
    return _catalogue().gettext(text) if text else text


def _filled(template: str, values: Mapping[str, Any]) -> str:
    if _Chosen.language != "zh_CN":
        return template.format(**values)
    return filled_chinese(template, values)


# The places where a value meets the text of its template.
_HAN = "\u4e00-\u9fff"
_MARKS = "，。；：、（）“”"
_TIGHT = f"[{_HAN}{_MARKS}]{{2}}|[{_MARKS}][A-Za-z0-9]|[A-Za-z0-9][{_MARKS}]"
_BESIDE_LATIN = f"[{_HAN}][A-Za-z0-9]|[A-Za-z0-9][{_HAN}]"


def filled_chinese(template: str, values: Mapping[str, Any]) -> str:
    """`template.format(**values)` as Chinese sets it: a space beside a Latin word or number, none beside a Chinese one.

    Spaces change only where a value meets the text of the template.
    """
    parts = list(_parts(template, values))
    shown = parts[0][0] if parts else ""
    for (_text, was_value), (text, is_value) in pairwise(parts):
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
    if re.fullmatch(_TIGHT, edge):
        return bare_left + bare_right
    return f"{bare_left} {bare_right}" if re.fullmatch(_BESIDE_LATIN, edge) else left + right


def is_known(template: str, plural: str = "") -> bool:
    """Whether a catalogue of this precgui has the text, so that one of a file or another process may be filled in."""
    catalogue = _Chosen.catalogue if _Chosen.language in _TRANSLATED else _catalogue_of_keys()
    return bool(template) and isinstance(catalogue, SortedTranslations) and catalogue.has(template, plural)


@cache
def _catalogue_of_keys() -> NullTranslations:
    """A catalogue that has the texts, for a reader of English."""
    return _read(_TRANSLATED[0])


def paragraph(*sentences: str) -> str:
    """Sentences in the reader's language behind one another, with the space that the language has between them."""
    kept = [*filter(None, sentences)] or [""]
    return reduce(lambda one, other: _("{sentence} {next_sentence}").format(sentence=one, next_sentence=other), kept)


def wording() -> Wording:
    """The reader's language, for a page that another room writes."""
    return Wording(language().replace("_", "-"), translated)


@cache
def _quoted(template: str) -> frozenset[str]:
    """The placeholders with `!r`, which show a text as it was typed."""
    return frozenset(each.name for each in placeholders(template) if each.name and each.conversion == "r")


def _shown(value: Any, *, as_given: bool) -> Any:
    if isinstance(value, BaseException):
        return error_text(value)
    if as_given and not isinstance(value, Sentence):
        return value
    return translated(value) if isinstance(value, str) else value


def error_text(error: BaseException) -> str:
    """The message of an error in the reader's language, where it is a sentence."""
    match error.args:
        case (str() as message,):
            return translated(message)
    return str(error)


def language_of_environment(environment: Mapping[str, str]) -> str:
    """The language that the variables ask for, `en` where they ask for none that there is.

    Raises SentenceError where PRECGUI_LANGUAGE names none.
    """
    asked = environment.get(VARIABLE, "")
    if asked and asked != "system":
        return checked_language(asked)
    return language_of(environment[name] for name in _LOCALE_VARIABLES if environment.get(name))


def checked_language(asked: str) -> str:
    """The language that PRECGUI_LANGUAGE asks for. Raises SentenceError where there is none of that name."""
    if asked == PSEUDO:
        return PSEUDO
    if (found := _known(asked)) is None:
        raise SentenceError(f"{VARIABLE} is {asked}; choose from {', '.join(CHOICES)}")
    return found


def language_of(tags: Iterable[str]) -> str:
    """The language of the first locale (`zh_CN.UTF-8`) or tag (`zh-Hans-CN`); English where it has no catalogue."""
    return _known(next(iter(tags), "en")) or "en"


def _known(tag: str) -> str | None:
    parts = tag.partition(".")[0].partition("@")[0].replace("-", "_").lower().split("_")
    if parts[0] == "zh" and not _TRADITIONAL & {*parts}:
        return "zh_CN"
    return "en" if parts[0] == "en" else None


def _read(language: str) -> NullTranslations:
    """The catalogue of a language; English, with a warning, where it is damaged.

    A checkout with a newer .po compiles it first, where Babel is there; one with a damaged .mo compiles it again.
    """
    if language == "en":
        return NullTranslations()
    mo = resources() / "words" / f"{language}.mo"
    po = mo.with_suffix(".po")
    sources: list[Callable[[], bytes]] = [mo.read_bytes, partial(_compile, po, mo)]
    fault = ""
    for source in reversed(sources) if is_outdated(mo, po) else sources:
        try:
            return SortedTranslations(source())
        except (ImportError, FileNotFoundError):
            continue
        except (OSError, ValueError) as error:
            fault = fault or str(error)
    if fault:
        _warn(f"{mo} cannot be read, so texts are in English: {fault}")
    return NullTranslations()


def _compile(po: Path, mo: Path) -> bytes:
    """The compiled form of a catalogue, kept for the next start. Raises as `compile_catalogue` does."""
    modified_ns = po.stat().st_mtime_ns
    content = compile_catalogue(po)
    with suppress(OSError):  # a folder that may not be written to
        write_whole(mo, content, modified_ns)
    return content


def _warn(sentence: str) -> None:
    import logging  # seldom needed

    logging.getLogger(__name__).warning("%s", sentence)
