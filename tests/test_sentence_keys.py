"""Sentences as JSON data: they come back as they were, and nothing of a foreign file is filled in."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precgui import sentence_keys, words
from precgui.errors import SentenceError
from precgui.runs.side_files import SideFilePart, SideFiles, Text
from precgui.sentence_keys import (
    MOST_CHARACTERS,
    key_of,
    keys_in,
    line_of,
    restored,
    sentence_of,
    sentence_of_line,
    with_keys,
)
from precgui.sentences import Sentence, counted, recased, together, whole
from precgui.words import translated
from tests import needs

pytestmark = needs.babel


@pytest.fixture(autouse=True)
def english_again() -> Iterator[None]:
    yield
    words.use("en")


def said(clause: str = "a frame has {size} bytes, fewer than its head", **values: Any) -> Sentence:
    """A sentence of the catalogue."""
    return Sentence(clause, **(values or {"size": 3}))


EXAMPLES = [
    said(),
    counted("{count} run", "{count} runs", 2),
    counted("{count} run", "{count} runs", 1),
    together(whole(said()), whole(said(size=7))),
    together(*(said(size=size) for size in range(12)), between="; "),
    recased(said(), "upper"),
    Sentence("a frame has the unknown flags {flags:#x}", flags=12),
    said(size=math.nan),
    said(size=-math.inf),
    said(size=np.float64(0.25)),
    said(size=np.int64(3)),
    said(size=None),
    said(size=True),
    said(size=Path("a/b")),
    said(size=SentenceError(said())),
]


@pytest.mark.parametrize("text", EXAMPLES)
@pytest.mark.parametrize("language", ["en", "zh_CN"])
def test_that_a_sentence_comes_back_from_json_as_it_was(text: Sentence, language: str) -> None:
    words.use(language)
    back = sentence_of(str(text), json.loads(json.dumps(key_of(text), allow_nan=False)))
    assert isinstance(back, Sentence)
    assert back == text
    assert translated(back) == translated(text)
    assert sentence_of_line(line_of(text).encode()) == text


def test_that_a_text_without_values_has_no_key() -> None:
    assert key_of("a text") is None
    assert key_of(Sentence("a text")) is None
    assert line_of("a text") == ""


def test_that_a_value_which_only_its_class_can_format_keeps_the_english_text() -> None:
    assert (
        key_of(Sentence("a frame begins with {magic!r}; something else writes to the same stream", magic=b"x")) is None
    )


def nested(levels: int) -> dict[str, Any]:
    key: dict[str, Any] = {"text": "{text}", "values": {"text": "x"}}
    for _ in range(levels):
        key = {"text": "{text}", "values": {"text": key}}
    return key


SAME = {"text": "{text}", "values": {"text": "y"}}
HOSTILE: list[tuple[str, Any]] = [
    ("<class 'int'>", {"text": "{x.__class__}", "values": {"x": 1}}),
    ("hello 1", {"text": "hello {x}", "values": {"x": 1}}),
    ("x" * 100, {"text": "{x:>100}", "values": {"x": "x"}}),
    ("x", {"text": "{text}", "values": {"text": {"text": "{x[0]}", "values": {"x": "x"}}}}),
    ("x", nested(40)),
    ("x", nested(2000)),
    ("a frame has 3 bytes, fewer than its head", {"text": "a frame has {size} bytes, fewer than its head"}),
    ("a frame has 4 bytes, fewer than its head", key_of(said())),
    ("a frame has [3] bytes, fewer than its head", {"text": said().template, "values": {"size": [3]}}),
    ("a frame has the unknown flags x", {"text": "a frame has the unknown flags {flags:#x}", "values": {"flags": "x"}}),
    ("2 runs", {"text": "{count} run", "plural": "{count} rums", "number": 2, "values": {"count": 2}}),
    ("2 runs", {"text": "{count} run", "plural": "{count} runs", "number": "2", "values": {"count": 2}}),
    ("2 runs", {"text": "{count} run", "plural": "{count} runs", "number": 2, "values": {"count": 2}, "x": 1}),
    ("x", {"text": "{text}", "case": "title", "values": {"text": "x"}}),
    ("x", {"text": "{text}", "case": [], "values": {"text": "x"}}),
    ("x", {"text": "{text}", "values": {"text": {"number": "x"}}}),
    ("x", {"text": "{text}", "values": {"text": {"number": {}}}}),
    ("x", {"text": "{text}", "values": [["text", "x"]]}),
    ("x", {"text": ["{text}"], "values": {"text": "x"}}),
    ("x", {"text": "", "values": {"text": "x"}}),
    ("", {"text": "", "values": {"text": "x"}}),
    ("x ", {"text": "{sentence} {next_sentence}", "values": {"sentence": "x", "next_sentence": {"text": ""}}}),
    ("x", {"text": "severity\x04Error", "values": {}}),
    ("x" * (MOST_CHARACTERS + 1), {"text": "{text}", "values": {"text": "x" * (MOST_CHARACTERS + 1)}}),
    (str(1 << 70), {"text": "{text}", "values": {"text": 1 << 70}}),
    ("x", None),
    ("x", 1),
    ("x", "{text}"),
    ("x", []),
]


@pytest.mark.parametrize(("text", "key"), HOSTILE)
@pytest.mark.parametrize("language", ["en", "zh_CN"])
def test_that_a_foreign_key_leaves_the_english_text(text: str, key: Any, language: str) -> None:
    words.use(language)
    assert type(sentence_of(text, key)) is str
    assert translated(sentence_of(text, key)) == text


def test_that_a_value_which_the_english_text_does_not_show_is_not_shown_in_another_language() -> None:
    forms = "The run in the queue will not start.", "The {count} runs in the queue will not start."
    words.use("zh_CN")
    for count in ("\x1b[31m<b>all is well</b>", nested(12), [], 1e308):
        key = {"text": forms[0], "plural": forms[1], "values": {"count": count}}
        assert translated(sentence_of(forms[0], key)) == translated(counted(*forms, 1))
    assert type(sentence_of(forms[0], {"text": forms[0], "plural": forms[1], "number": 1 << 70})) is str


def test_that_values_may_not_make_a_text_longer_than_the_one_that_they_belong_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    template = "the runs of {home} are in the queue at {place}; name it with --place {place}"
    key: Any = "x"
    for _ in range(15):
        key = {"text": template, "values": {"home": "", "place": key}}
    made: list[int] = []
    create = Sentence.__new__
    monkeypatch.setattr(
        Sentence, "__new__", lambda *args, **values: made.append(len(text := create(*args, **values))) or text
    )
    assert type(sentence_of("x", key)) is str
    assert sentence_of_line(json.dumps(key).encode()) is None
    assert max(made) < 10_000


def test_that_the_sentences_of_a_document_together_have_a_bound() -> None:
    text = "y" * (MOST_CHARACTERS - 1)
    key = {"text": "{text}", "values": {"text": text}}
    back = restored({"l": [text] * 40, "sentences": {f"/l/{place}": key for place in range(40)}})["l"]
    assert back == [text] * 40
    assert 0 < sum(isinstance(each, Sentence) for each in back) < 20


def test_that_the_sentences_inside_others_count(monkeypatch: pytest.MonkeyPatch) -> None:
    key: Any = "x"
    for _ in range(8):
        key = {"text": "{first} and {second}", "values": {"first": key, "second": key}}
    asked: list[str] = []
    monkeypatch.setattr(sentence_keys, "is_known", lambda text, _plural: asked.append(text) or True)
    restored({"l": ["y" * 4000] * 100, "sentences": {f"/l/{place}": key for place in range(100)}})
    assert 0 < len(asked) <= 10_000


@pytest.mark.parametrize("line", [b"", b"{", b"[" * 100_000, b"\xff", b'"x"', b"1e999", b"9" * 5000, b" " * 70_000])
def test_that_a_foreign_line_is_no_sentence(line: bytes) -> None:
    assert sentence_of_line(line) is None


def test_that_a_document_keeps_its_english_and_has_keys_beside_it() -> None:
    document = {"a": {"b/c~": [said(), "x"]}, "n": 1.5, "d": said(size=7)}
    stored = json.loads(json.dumps(with_keys(document)))
    assert {name: stored[name] for name in document} == json.loads(json.dumps(document))
    assert [*stored["sentences"]] == ["/a/b~1c~0/0", "/d"]
    back = restored(stored)
    assert back == document
    assert keys_in(back) == keys_in(document)
    assert with_keys({"a": "x"}) == {"a": "x"}


@pytest.mark.parametrize(
    "keys",
    [1, [], {"/" * 100_000: {}}, {"": {}}, {"/": {}}, {"a": {}}, {"/a/b": {}}, {"/l/9": {}}, {"/l/-1": {}},
     {"/l/²": {}}, {"/l/00": SAME},
     {"/l/" + "9" * 5000: {}}, {"/n": key_of(said())}, {"/l": key_of(said())}, {"/s/0": key_of(said())}],
)  # fmt: skip
def test_that_pointers_to_nowhere_change_nothing(keys: Any) -> None:
    document = {"a": "x", "l": ["y"], "n": 1, "s": "z"}
    back = restored({**document, "sentences": keys})
    assert back == document
    assert not any(isinstance(text, Sentence) for text in (*back.values(), *back["l"]))


class _Note(SideFilePart):
    step: int
    message: Text


def test_that_a_side_file_is_read_in_the_language_of_the_reader(tmp_path: Path) -> None:
    files, run = SideFiles("note", _Note, 1 << 16), tmp_path / "run.h5"
    path = files.keep(run, _Note(step=3, message=said()))
    stored = json.loads(path.read_text())
    assert stored["message"] == "a frame has 3 bytes, fewer than its head"
    note = files.one(run, 3)
    assert note is not None
    assert note.message == str(said())
    words.use("zh_CN")
    assert translated(note.message) == translated(said()) != str(said())
    del stored["sentences"]
    path.write_text(json.dumps(stored))
    old = files.one(run, 3)
    assert old is not None
    assert translated(old.message) == str(said())
