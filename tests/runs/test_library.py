"""A folder of runs: listed fast, renamed, annotated, deleted to the bin."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

import precgui
from precgui.config import RunConfig
from precgui.events import RunEnded, StepDone
from precgui.runs import library
from precgui.runs.errors import RunFileError
from precgui.runs.file.user_notes import notes_path, read_notes
from precgui.runs.library import Library, annotate, delete, new_run_path, read_entry, rename
from tests.runs.synthetic import open_writer


def test_that_a_folder_is_listed_newest_first_with_figures(write: Callable[..., Path], tmp_path: Path) -> None:
    write("a.h5")
    with open_writer(tmp_path / "b.h5", RunConfig(title="mine")) as emit:
        emit(StepDone(1, 0.1, math.nan, 1.0, False, 0.1, 1.0, 0.1, 0.0, 8, math.nan))
        emit(RunEnded(0.2, "failed", "broke"))
    (tmp_path / "c.h5").write_text("nothing")
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / ".hidden.h5").write_text("")
    entries = {entry.path.name: entry for entry in Library(tmp_path).entries()}
    assert set(entries) == {"a.h5", "b.h5", "c.h5"}
    a, b, c = (entries[name] for name in ("a.h5", "b.h5", "c.h5"))
    assert (a.precision, a.status, a.steps, a.error) == ("fp16-amp", "completed", 300, "")
    with precgui.open_run(a.path) as run:
        assert (a.final_loss, a.val_accuracy) == tuple(
            run.summary["final"][key] for key in ("train_loss", "val_accuracy")
        )
    assert (b.title, b.status, b.steps) == ("mine", "failed", 1)
    assert b.final_loss is not None and math.isnan(b.final_loss)
    assert c.status is None and "is not an HDF5 file" in c.error


def test_that_a_run_under_way_has_no_final_loss_yet(tmp_path: Path) -> None:
    with open_writer(tmp_path / "run.h5") as emit:
        emit(StepDone(1, 0.1, 1.0, 1.0, False, 0.1, 1.0, 0.1, 0.0, 8, math.nan))
        emit.flush()
        entry = read_entry(tmp_path / "run.h5")
    assert (entry.status, entry.steps, entry.final_loss) == ("running", 1, None)


def test_that_a_missing_folder_is_an_empty_library(tmp_path: Path) -> None:
    assert Library(tmp_path / "none").entries() == []


def test_that_only_changed_files_are_opened_again(
    write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("a.h5")
    write("b.h5")
    shelf = Library(tmp_path)
    before = shelf.entries()
    opened: list[Path] = []
    monkeypatch.setattr(library, "read_entry", lambda path: opened.append(path) or read_entry(path))
    assert shelf.entries() == before
    assert opened == []
    annotate(tmp_path / "b.h5", "look at this")
    (tmp_path / "a.h5").unlink()
    assert [entry.note for entry in shelf.entries()] == ["look at this"]
    assert opened == [tmp_path / "b.h5"]


def test_that_title_and_note_lie_beside_the_run(write: Callable[..., Path]) -> None:
    path = write()
    before = path.read_bytes()
    rename(path, "  a better\ntitle ")
    annotate(path, "two\nlines ")
    assert path.read_bytes() == before
    entry = read_entry(path)
    assert (entry.title, entry.note) == ("a better title", "two\nlines")
    with precgui.open_run(path) as run:
        assert run.title == "a better title"
        rename(path, "")
        run.refresh()
        assert run.title == "digits cnn fp16-amp"
    annotate(path, "")
    assert not notes_path(path).exists()


def test_that_damaged_notes_are_no_notes(write: Callable[..., Path]) -> None:
    path = write()
    for content in (b"\xff\xfe", b"[1]", b"{" * 50_000, json.dumps({"title": 5, "note": None}).encode()):
        notes_path(path).write_bytes(content)
        assert (read_notes(path).title, read_notes(path).note) == ("", "")


def test_that_notes_that_cannot_be_written_are_told(tmp_path: Path) -> None:
    with pytest.raises(RunFileError, match=r"notes of .* cannot be written"):
        annotate(tmp_path / "nowhere" / "run.h5", "a note")


def test_that_delete_moves_the_run_and_its_notes_to_the_bin(
    write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write()
    annotate(path, "with a note")
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr("send2trash.send2trash", lambda gone: Path(gone).rename(tmp_path / "bin" / Path(gone).name))
    delete(path)
    assert {item.name for item in (tmp_path / "bin").iterdir()} == {"run.h5", "run.h5.notes.json"}
    assert not path.exists()


def test_that_a_run_that_is_not_there_cannot_be_deleted(tmp_path: Path) -> None:
    with pytest.raises(RunFileError, match="cannot be moved to the bin"):
        delete(tmp_path / "gone.h5")


def test_that_new_names_are_readable_and_free(tmp_path: Path) -> None:
    config = RunConfig(title="Größe: 3/4 ../..", precision="bf16-amp")
    first = new_run_path(tmp_path / "runs", config)
    assert first.parent == tmp_path / "runs"
    assert first.name.endswith("-größe-3-4-bf16-amp.h5")
    first.write_text("")
    second = new_run_path(tmp_path / "runs", config)
    assert second != first and not second.exists()
