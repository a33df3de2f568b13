"""Thousands of runs: what the window asks the list for does not grow with them, and of parts read the newest counts."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from precgui.gui.panels.library import folder as folder_module
from precgui.gui.panels.library.folder import RunsFolder
from precgui.gui.panels.library.table import DATE, RunFilter, RunTable
from precgui.gui.panels.library.view import RunsView
from precgui.runs.library import read_entry
from precgui.runs.library_index import LibraryEntry
from tests.gui.conftest import write_run


class CountingTable(RunTable):
    """Counts what the view asks for."""

    asked = 0

    def data(self, index, role=Qt.ItemDataRole.DisplayRole):
        self.asked += 1
        return super().data(index, role)

    def flags(self, index):
        self.asked += 1
        return super().flags(index)


def entries(tmp_path: Path, count: int) -> list[LibraryEntry]:
    path = tmp_path / "one.h5"
    if not path.exists():
        write_run(path, "one", "fp32", "2026-01-01T10:00:00+00:00")
    one = read_entry(path)
    return [
        replace(
            one, path=tmp_path / f"{number}.h5", created=f"2026-01-01T10:{number // 60 % 60:02d}:{number % 60:02d}Z"
        )
        for number in range(count)
    ]


def test_that_what_a_view_asks_for_does_not_grow_with_the_runs(qtbot: QtBot, tmp_path: Path) -> None:
    asked = {}
    for count in (200, 4000):
        table = CountingTable(lambda entry, column, text: True)
        filtered = RunFilter()
        filtered.setSourceModel(table)
        parent = QWidget()
        qtbot.addWidget(parent)
        view = RunsView(filtered, [], parent)
        view.resize(900, 500)
        parent.resize(900, 500)
        with qtbot.waitExposed(parent):
            parent.show()
        table.asked = 0
        table.show_entries(entries(tmp_path, count))
        QApplication.processEvents()
        view.sortByColumn(DATE, Qt.SortOrder.AscendingOrder)
        QApplication.processEvents()
        asked[count] = table.asked
    assert 0 < asked[4000] <= 1.5 * asked[200]


def test_that_chosen_rows_are_few_parts_and_read_without_a_question_to_the_table(qtbot: QtBot, tmp_path: Path) -> None:
    table = CountingTable(lambda entry, column, text: True)
    filtered = RunFilter()
    filtered.setSourceModel(table)
    parent = QWidget()
    qtbot.addWidget(parent)
    view = RunsView(filtered, [], parent)
    table.show_entries(entries(tmp_path, 400))
    view.select_rows([])
    assert view.selected_rows() == []
    rows = [7, *range(399, 200, -1), 5, 6, 20]
    view.select_rows(rows)
    table.asked = 0
    assert view.selected_rows() == sorted(rows)
    assert table.asked == 0
    assert len(view.selectionModel().selection()) == 3


def test_that_of_several_parts_only_the_newest_is_shown(
    qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = threading.Event()

    def read(_library, tell):
        for count in range(1, 5):
            tell([None] * count, 5)
        told.set()
        return [None] * 5

    monkeypatch.setattr(folder_module, "_read", read)
    folder, parts, whole = RunsFolder(tmp_path), [], []
    folder.read_so_far.connect(lambda entries, total: parts.append((len(entries), total)))
    folder.read.connect(lambda entries: whole.append(len(entries)))
    folder.refresh()
    assert told.wait(30)  # the event loop of the window does not run meanwhile
    qtbot.waitUntil(lambda: not folder.is_reading)
    assert (parts, whole) == ([(4, 5)], [5])
