"""Runs in groups and with tags: what is chosen above the list, and what a tag leaves in the notes of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import QItemSelectionModel, Qt
from PySide6.QtWidgets import QInputDialog
from pytestqt.qtbot import QtBot

from precgui.gui.panels.library.folder import RunsFolder
from precgui.gui.panels.library.panel import LibraryPanel
from precgui.gui.session import Session
from precgui.runs.errors import RunFileError
from precgui.runs.library import add_tag, annotate, read_entry, tags_of
from tests.gui.conftest import write_run


@pytest.fixture
def panel(qtbot: QtBot, tmp_path: Path) -> LibraryPanel:
    runs = tmp_path / "runs"
    for name, precision, day in (("a", "fp32", 1), ("b", "bf16-amp", 2), ("c", "fp32", 3), ("d", "bf16-amp", 4)):
        write_run(runs / f"{name}.h5", name, precision, f"2026-01-0{day}T10:00:00+00:00")
    annotate(runs / "a.h5", "as in the paper #Keep, #long")
    made = LibraryPanel(Session())
    made.resize(1000, 600)
    qtbot.addWidget(made)
    made.show()
    qtbot.waitUntil(lambda: made.table.rowCount() == 4 and not made.findChild(RunsFolder).is_reading)
    return made


def titles(panel: LibraryPanel) -> list[str]:
    return [str(panel.filtered.index(row, 0).data()) for row in range(panel.filtered.rowCount())]


def test_that_tags_are_words_with_a_hash() -> None:
    assert tags_of("as in #Paper, again #paper and # or #2: yes") == ["#paper", "#2"]


def test_that_a_tag_of_two_words_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFileError, match="'two words' cannot be a tag; give one word"):
        add_tag(write_run(tmp_path / "a.h5"), "two words")


def test_that_groups_stay_together_whatever_the_order(panel: LibraryPanel) -> None:
    assert titles(panel) == ["d", "c", "b", "a"]
    panel.arrange.group.setCurrentText("precision")
    assert titles(panel) == ["d", "b", "c", "a"]
    panel.view.sortByColumn(0, Qt.SortOrder.AscendingOrder)
    assert titles(panel) == ["b", "d", "a", "c"]
    header = [panel.filtered.headerData(row, Qt.Orientation.Vertical) for row in range(4)]
    assert header == ["bf16-amp", "bf16-amp", "fp32", "fp32"]
    assert panel.view.verticalHeader().isVisible()
    panel.arrange.group.setCurrentText("nothing")
    assert titles(panel) == ["a", "b", "c", "d"]
    assert not panel.view.verticalHeader().isVisible()


def test_that_runs_are_tagged_together_and_found_by_the_tag(panel: LibraryPanel, qtbot: QtBot, tmp_path: Path) -> None:
    flags = QItemSelectionModel.SelectionFlag
    for row in (titles(panel).index("b"), titles(panel).index("c")):
        panel.view.selectionModel().select(panel.filtered.index(row, 0), flags.Select | flags.Rows)
    dialog = panel.ask_for_tag()
    assert isinstance(dialog, QInputDialog)
    dialog.setTextValue("#keep")
    dialog.accept()
    assert tags_of(read_entry(tmp_path / "runs" / "b.h5").note) == ["#keep"]
    qtbot.waitUntil(lambda: panel.arrange.tag.findText("#keep (3)") >= 0)
    panel.arrange.tag.setCurrentIndex(panel.arrange.tag.findData("#keep"))
    assert titles(panel) == ["c", "b", "a"]
    panel.search.setText("fp32")
    assert titles(panel) == ["c", "a"]


def test_that_all_runs_come_back_with_the_last_run_of_a_tag_gone(
    panel: LibraryPanel, qtbot: QtBot, tmp_path: Path
) -> None:
    panel.arrange.tag.setCurrentIndex(panel.arrange.tag.findData("#long"))
    assert titles(panel) == ["a"]
    annotate(tmp_path / "runs" / "a.h5", "")
    panel.refresh()
    qtbot.waitUntil(lambda: len(titles(panel)) == 4)
    assert not panel.arrange.tag.isVisible()
