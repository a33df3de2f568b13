"""The sentences of a run file: English for every reader, and in the reader's language for those of precgui."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import h5py
import numpy as np
import pytest

import precgui
from precgui import words
from precgui.events import Incident, RunEnded, RunStarted, StepDone
from precgui.hardware.environment import environment
from precgui.hardware.power import SensorReport
from precgui.hardware.readings import Missing
from precgui.runs.file import sentence_lines
from precgui.runs.file.earlier_part import EarlierPart
from precgui.runs.file.repair import repair
from precgui.runs.file.sentence_lines import TABLE
from precgui.runs.summary import energy_used_j
from precgui.sentence_keys import line_of
from precgui.sentences import L_, Sentence
from precgui.words import translated
from tests import needs
from tests.runs.synthetic import open_writer

pytestmark = needs.babel


@pytest.fixture(autouse=True)
def english_again() -> Iterator[None]:
    yield
    words.use("en")


def said(size: int) -> Sentence:
    """A sentence of the catalogue."""
    return Sentence("a frame has {size} bytes, fewer than its head", size=size)


def incidents() -> list[Incident]:
    texts = ["a word of a loop", said(3), said(4), said(3), Sentence("{clause}.", clause="x" * 300)]
    return [Incident(0.1 * place, place, "note", "info", text) for place, text in enumerate(texts, 1)]


def written(path: Path, *, ended: bool = True, incidents: list[Incident] = incidents()) -> Path:  # noqa: B008
    facts = {"census": {"unavailable": said(5)}, "list": ["x", said(6)]}
    with open_writer(path, environment={"power": {"why": said(7)}}) as writer:
        writer(RunStarted(0.0, 10, 5, "cpu", facts, 3))
        for event in incidents:
            writer(event)
        writer(StepDone(1, 0.5, 0.5, 1.0, False, 0.1, 1.0, 0.01, 0.0, 8, 0.0))
        if ended:
            writer(RunEnded(1.0, "stopped", said(8)))
    return path


def shown(run: Any) -> list[str]:
    """Every sentence of `written`, in the language of the reader."""
    engine, power = run.environment, run.environment["power"]
    texts = [engine["census"]["unavailable"], *engine["list"], power["why"], run.message]
    return [translated(text) for text in (*(event.message for event in run.events()), *texts)]


def english() -> list[str]:
    sentences = [event.message for event in incidents()]
    return [str(text) for text in (*sentences, said(5), "x", said(6), said(7), said(8))]


def test_that_a_file_is_read_in_the_language_of_its_reader(tmp_path: Path) -> None:
    with precgui.open_run(written(tmp_path / "run.h5")) as run:
        assert shown(run) == english()
        assert run.notes == []
    words.use("zh_CN")
    with precgui.open_run(tmp_path / "run.h5") as run:
        texts = [event.message for event in incidents()]
        assert shown(run) == [translated(text) for text in (*texts, said(5), "x", said(6), said(7), said(8))]
        assert shown(run)[1] != english()[1]
        assert [event.message for event in run.events()] == texts


def test_that_the_file_is_the_same_in_every_language_and_english(tmp_path: Path) -> None:
    def content(path: Path) -> dict[str, Any]:
        with h5py.File(path, "r") as file:
            tables = {name: file[name][:].tobytes() for name in ("events", "texts", TABLE)}
            end = {name: value for name, value in json.loads(file["end"][()]).items() if name != "ended"}
            return {**tables, "engine": file["engine"][()], "end": end}

    plain = content(written(tmp_path / "run.h5"))
    words.use("zh_CN")
    assert content(written(tmp_path / "run-2.h5")) == plain
    assert plain["end"]["message"] == str(said(8))
    assert plain[TABLE].count(b"\n") == 3, "a sentence is written once"
    with h5py.File(tmp_path / "run-2.h5", "r") as file:
        assert [message.decode() for message in file["events"]["message"][:4]] == english()[:4]


def test_that_why_nothing_was_measured_is_read_in_the_language_of_the_reader(tmp_path: Path) -> None:
    sensor = SensorReport.of("NVML", "", False, L_("the driver is there but lists no GPU"))
    with open_writer(tmp_path / "run.h5", environment=environment([sensor])) as writer:
        writer(RunEnded(1.0, "completed"))
    words.use("zh_CN")
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert run.environment["power_sensors"][0]["reason"] == "the driver is there but lists no GPU."
        why = energy_used_j(run)
        assert isinstance(why, Missing)
        assert why.reason == "the driver is there but lists no GPU"
        assert translated(why.reason) == translated(L_("the driver is there but lists no GPU")) != why.reason


def without_keys(path: Path) -> Path:
    """The file as an older version writes it."""
    with h5py.File(path, "r+") as file:
        names = file["rows_valid"].attrs["tables"]
        counts = file["rows_valid"][:][names != TABLE.encode()]
        del file["rows_valid"], file[TABLE]
        file["rows_valid"] = counts
        file["rows_valid"].attrs["tables"] = names[names != TABLE.encode()]
        for name in ("engine", "end", "environment"):
            document = json.loads(file[name][()])
            document.pop("sentences", None)
            file[name][()] = json.dumps(document).encode()
    return path


def test_that_a_file_of_an_older_version_is_read_in_english(tmp_path: Path) -> None:
    without_keys(written(tmp_path / "run.h5"))
    words.use("zh_CN")
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert shown(run)[:-1] == english()[:-1]
        assert shown(run)[-1] == english()[-1]
        assert run.notes == []


HOSTILE = [
    b'{"text": "{x.__class__}", "values": {"x": "a frame has 3 bytes, fewer than its head"}}\n',
    b'{"text": "{text:>1000000000}", "values": {"text": "x"}}\n',
    b"[" * 100_000 + b"\n",
    b"\xff\n{\n\n1\n",
    b'{"text": "a text"}',
    line_of(said(3)).encode().replace(b'"size": 3', b'"size": {"text": "{size.__init__}"}'),
    line_of(said(3)).encode().replace(b'"size": 3', b'"size": "\\u001b[31m"'),
    b" " * (1 << 20),
]


@pytest.mark.parametrize("lines", HOSTILE)
def test_that_foreign_lines_leave_the_english_texts(tmp_path: Path, lines: bytes) -> None:
    written(tmp_path / "run.h5")
    with h5py.File(tmp_path / "run.h5", "r+") as file:
        table, counts = file[TABLE], file["rows_valid"]
        table.resize((len(lines),))
        table[:] = np.frombuffer(lines, np.uint8)
        place = list(counts.attrs["tables"]).index(TABLE.encode())
        counts[place] = len(lines)
    words.use("zh_CN")
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert [event.message for event in run.events()] == english()[:5]
        assert shown(run)[:5] == english()[:5]


class _Lines:
    """The table of a file with these bytes."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def rows(self, _table: str) -> int:
        return len(self.content)

    def read(self, _table: str, _column: str, start: int, stop: int) -> Any:
        return np.frombuffer(self.content[start:stop], np.uint8)


@pytest.mark.parametrize("line", [b"\n", b"1\n", line_of(said(3)).encode()])
def test_that_only_so_many_lines_of_a_file_are_read(line: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[bytes] = []
    monkeypatch.setattr(sentence_lines, "sentence_of_line", tried.append)
    reader = sentence_lines.SentenceReader()
    lines = _Lines(line * 100_000)
    reader.read(cast(Any, lines))
    lines.content *= 2
    reader.read(cast(Any, lines))
    assert len(tried) == 10_000


def test_that_the_texts_that_are_kept_of_a_file_have_a_bound() -> None:
    long = [line_of(Sentence("{clause}.", clause=f"{place}" + "x" * 60_000)).encode() for place in range(60)]
    reader = sentence_lines.SentenceReader()
    reader.read(cast(Any, _Lines(b"".join(long))))
    kept = [reader.sentence(f"{place}" + "x" * 60_000 + ".") for place in range(60)]
    assert 0 < sum(isinstance(text, Sentence) for text in kept) < 40


@pytest.mark.parametrize("sentences", [1, {"/message": 1}, {"/message": {"text": "{message.__class__}"}}, {"": {}}])
def test_that_foreign_keys_of_a_document_leave_its_english(tmp_path: Path, sentences: Any) -> None:
    written(tmp_path / "run.h5")
    with h5py.File(tmp_path / "run.h5", "r+") as file:
        file["end"][()] = json.dumps({"message": "it ended", "sentences": sentences}).encode()
    words.use("zh_CN")
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert translated(run.message) == "it ended"


def test_that_a_table_that_is_no_table_costs_the_translation_only(tmp_path: Path) -> None:
    written(tmp_path / "run.h5")
    with h5py.File(tmp_path / "run.h5", "r+") as file:
        del file[TABLE]
        file[TABLE] = h5py.SoftLink("/texts")
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert [event.message for event in run.events()] == english()[:5]


def test_that_the_sentences_of_a_killed_run_are_kept_when_it_is_repaired(
    tmp_path: Path, write: Callable[..., Path]
) -> None:
    path = written(tmp_path / "run.h5", ended=False)
    with h5py.File(path, "r+") as file:
        file["status"][()], file["end"][()], file["summary"][()] = b"running", b"{}", b"{}"
        environment = json.loads(file["environment"][()])
        environment["writer"] |= {"pid": 1 << 22, "start_ticks": 1}
        file["environment"][()] = json.dumps(environment).encode()
    repair(path, "failed", said(8))
    words.use("zh_CN")
    with precgui.open_run(path) as run:
        assert translated(run.message) == translated(said(8))
        assert [translated(event.message) for event in run.events()] == [
            *(translated(event.message) for event in incidents()), translated(said(8))
        ]  # fmt: skip


def test_that_a_run_that_goes_on_keeps_the_sentences_before(tmp_path: Path) -> None:
    path = written(tmp_path / "run.h5", incidents=incidents()[:2])
    earlier = EarlierPart.open(path, 1, 0.5)
    with open_writer(path, earlier=earlier) as writer:
        writer(incidents()[2])
        writer(RunEnded(2.0, "completed"))
    earlier.close()
    words.use("zh_CN")
    with precgui.open_run(path) as run:
        assert [translated(event.message) for event in run.events()] == [
            translated(event.message) for event in (incidents()[0], incidents()[2])
        ]
