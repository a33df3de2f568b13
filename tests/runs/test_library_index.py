"""Many runs in one folder: listed as they are read, and known again in the next session."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from precgui.runs import library as library_module
from precgui.runs.file.user_notes import Notes, write_notes
from precgui.runs.library import Library
from precgui.runs.library_index import INDEX


@pytest.fixture
def folder(write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Forty runs; an index is kept from twenty on."""
    monkeypatch.setattr(library_module, "LEAST_RUNS", 20)
    first, place = write(steps=4), tmp_path / "many"
    place.mkdir()
    for number in range(40):
        shutil.copyfile(first, place / f"run{number:02d}.h5")
    return place


def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are opened from now on."""
    names: list[str] = []
    read = library_module.read_entry
    monkeypatch.setattr(library_module, "read_entry", lambda path: (names.append(path.name), read(path))[1])
    return names


def test_that_the_first_rows_come_before_all_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = opened(monkeypatch)
    library = Library(folder)
    parts = [(len(entries), len(names)) for entries in library.scan()]
    assert parts[0][0] <= 16
    assert parts[0][1] <= 16
    assert parts[-1] == (40, 40)
    assert library.total == 40


def test_that_the_next_session_opens_no_file_that_has_not_changed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Library(folder).entries()
    write_notes(folder / "run03.h5", Notes("another title"))
    names = opened(monkeypatch)
    after = Library(folder).entries()
    assert names == ["run03.h5"]
    assert {entry.title for entry in after} == {before[0].title, "another title"}
    assert [entry for entry in after if entry.path.name != "run03.h5"] == [
        entry for entry in before if entry.path.name != "run03.h5"
    ]


def test_that_the_first_rows_of_an_index_come_before_all_files_are_looked_at(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Library(folder).entries()
    monkeypatch.setattr(library_module, "_FIRST_KNOWN", 10)
    names = opened(monkeypatch)
    assert [len(entries) for entries in Library(folder).scan()] == [10, 40]
    assert not names


def test_that_a_small_folder_gets_no_index(write: Callable[..., Path], tmp_path: Path) -> None:
    write()
    Library(tmp_path).entries()
    assert not (tmp_path / INDEX).exists()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "[" * 50_000,
        lambda text: json.dumps({"version": 2, "runs": {"../run01.h5": 3, "run01.h5": {"stamp": [1]}}}),
        lambda text: text.replace('"steps": 4', '"steps": "many"'),
        lambda text: text.replace('"title": "', '"title": "\\ud800'),
        lambda text: text.replace('"metric": {', '"metric": {"more": 1, '),
    ],
)
def test_that_a_damaged_index_is_not_believed(
    folder: Path, spoil: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Library(folder).entries()
    index = folder / INDEX
    index.write_text(spoil(index.read_text()))
    names = opened(monkeypatch)
    assert Library(folder).entries() == before
    assert len(names) == 40


def test_that_an_index_names_no_file_of_another_folder(folder: Path) -> None:
    Library(folder).entries()
    document: dict[str, Any] = json.loads((folder / INDEX).read_text())
    document["runs"]["../outside.h5"] = next(iter(document["runs"].values()))
    (folder / INDEX).write_text(json.dumps(document))
    assert {entry.path.parent for entry in Library(folder).entries()} == {folder}


def test_that_only_the_rows_that_are_shown_first_are_checked_before_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Library(folder).entries()
    monkeypatch.setattr(library_module, "_FIRST_KNOWN", 5)
    checked: list[str] = []
    check = library_module.entry_of_row  # type: ignore[attr-defined]

    def counted(path: Path, row: Any) -> Any:
        checked.append(path.name)
        return check(path, row)

    monkeypatch.setattr(library_module, "entry_of_row", counted)
    assert len(next(Library(folder).scan())) == len(checked) == 5
