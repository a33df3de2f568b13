"""The library shows the folder as it is, and what a user does there ends up on disk."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtCore import QItemSelectionModel, QModelIndex, Qt
from PySide6.QtTest import QAbstractItemModelTester
from pytestqt.qtbot import QtBot

from precgui import config
from precgui.events import Metric, RunEnded, StepDone
from precgui.gui.open_run import Problem
from precgui.gui.panels.library import panel as panel_module
from precgui.gui.panels.library.folder import RunsFolder
from precgui.gui.panels.library.panel import LibraryPanel
from precgui.gui.panels.library.table import (
    COLUMNS,
    GROUPS,
    NOTE,
    STATUS,
    TITLE,
    RunTable,
    loss_text,
    metric_text,
)
from precgui.gui.session import Session
from precgui.runs.errors import RunFileError
from precgui.runs.facts import date_text
from precgui.runs.file.writer import RunWriter
from precgui.runs.library import read_entry
from precgui.runs.library_index import LibraryEntry
from precgui.runs.live import LiveRun
from tests.gui.conftest import write_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "runs"
    write_run(made / "old.h5", "the old one", "fp32", "2026-01-01T10:00:00+00:00")
    write_run(made / "new.h5", "the new one", "bf16-amp", "2026-02-01T10:00:00+00:00")
    return made


@pytest.fixture
def session() -> Session:
    return Session()


def make_panel(qtbot: QtBot, session: Session, runs: int) -> LibraryPanel:
    panel = LibraryPanel(session)
    panel.resize(1000, 600)
    qtbot.addWidget(panel)
    panel.show()
    qtbot.waitUntil(lambda: panel.table.rowCount() == runs and not panel.findChild(RunsFolder).is_reading)
    return panel


@pytest.fixture
def panel(qtbot: QtBot, session: Session, folder: Path) -> LibraryPanel:
    return make_panel(qtbot, session, 2)


def column(panel: LibraryPanel, number: int) -> list[str]:
    return [str(panel.filtered.index(row, number).data()) for row in range(panel.filtered.rowCount())]


def choose(panel: LibraryPanel, *names: str) -> None:
    panel.view.clearSelection()
    flags = QItemSelectionModel.SelectionFlag
    for row in range(panel.filtered.rowCount()):
        index = panel.filtered.index(row, TITLE)
        if panel.table.entry(panel.filtered.mapToSource(index).row()).path.name in names:
            panel.view.selectionModel().select(index, flags.Select | flags.Rows)


def test_that_runs_are_listed_newest_first_with_their_figures(panel: LibraryPanel) -> None:
    assert column(panel, TITLE) == ["the new one", "the old one"]
    assert column(panel, 1) == ["bf16-amp", "fp32"]
    assert column(panel, STATUS) == ["completed", "completed"]
    assert column(panel, 4) == ["75.00 %", "75.00 %"]
    assert column(panel, 5) == ["4", "4"]


def test_that_the_model_keeps_the_rules_of_qt(qtbot: QtBot, folder: Path) -> None:
    model = RunTable(lambda entry, column, text: True)
    tester = QAbstractItemModelTester(model, QAbstractItemModelTester.FailureReportingMode.Fatal)
    model.show_entries([read_entry(path) for path in sorted(folder.glob("*.h5"))])
    assert model.rowCount() == 2 and model.columnCount() == len(COLUMNS)
    model.show_entries([])
    assert model.rowCount(QModelIndex()) == 0
    tester.deleteLater()


def test_that_sorting_goes_by_number_and_unknown_is_least(qtbot: QtBot) -> None:
    losses = {"a": 0.5, "b": 10.0, "c": None, "d": float("nan"), "e": 2.0}
    panel = LibraryPanel(Session())
    qtbot.addWidget(panel)
    qtbot.waitUntil(lambda: not panel.findChild(RunsFolder).is_reading)
    panel.table.show_entries([LibraryEntry(Path(f"{name}.h5"), name, final_loss=loss) for name, loss in losses.items()])
    panel.view.sortByColumn(3, Qt.SortOrder.DescendingOrder)
    assert column(panel, TITLE)[:3] == ["b", "e", "a"]
    panel.view.sortByColumn(3, Qt.SortOrder.AscendingOrder)
    assert column(panel, TITLE)[2:] == ["a", "e", "b"]


def test_that_the_filter_wants_every_word_in_any_column(panel: LibraryPanel, qtbot: QtBot) -> None:
    qtbot.keyClicks(panel.search, "ONE bf16")
    assert column(panel, TITLE) == ["the new one"]
    assert "1 hidden by the filter" in panel.message.text()
    panel.search.clear()
    assert panel.filtered.rowCount() == 2


def test_that_opening_several_runs_shows_them(session: Session, panel: LibraryPanel, qtbot: QtBot) -> None:
    choose(panel, "old.h5", "new.h5")
    with qtbot.waitSignal(session.requests.place) as wanted:
        panel.open_selected()
    assert wanted.args == ["live"]
    qtbot.waitUntil(lambda: {opened.name for opened in session.runs.values()} == {"the old one", "the new one"})


def test_that_enter_opens_the_run(session: Session, panel: LibraryPanel, qtbot: QtBot) -> None:
    panel.view.setFocus()
    panel.view.selectRow(1)
    with qtbot.waitSignal(session.runs.added):
        panel.view.activated.emit(panel.filtered.index(1, TITLE))
    assert [opened.name for opened in session.runs.values()] == ["the old one"]


def test_that_a_new_name_is_kept_on_disk_and_in_the_window(
    session: Session, panel: LibraryPanel, qtbot: QtBot, folder: Path
) -> None:
    choose(panel, "old.h5")
    panel.open_selected()
    panel.filtered.setData(panel.filtered.index(1, TITLE), "a better name")
    qtbot.waitUntil(lambda: "a better name" in column(panel, TITLE))
    assert read_entry(folder / "old.h5").title == "a better name"
    assert [opened.name for opened in session.runs.values()] == ["a better name"]


def test_that_a_note_is_kept_and_shown(panel: LibraryPanel, qtbot: QtBot, folder: Path) -> None:
    panel.filtered.setData(panel.filtered.index(0, NOTE), "learning rate too high")
    qtbot.waitUntil(lambda: "learning rate too high" in column(panel, NOTE))
    choose(panel, "new.h5")
    assert panel.message.text() == "new.h5\nlearning rate too high"


def test_that_a_run_made_elsewhere_is_seen_by_itself(panel: LibraryPanel, qtbot: QtBot, folder: Path) -> None:
    choose(panel, "old.h5")
    write_run(folder / "third.h5", "the third one")
    qtbot.waitUntil(lambda: panel.table.rowCount() == 3)
    assert [entry.path.name for entry in panel.selected()] == ["old.h5"]


def test_that_a_bad_file_is_listed_with_its_sentence(panel: LibraryPanel, qtbot: QtBot, folder: Path) -> None:
    (folder / "broken.h5").write_bytes((folder / "new.h5").read_bytes()[:300])
    (folder / "stranger.h5").write_text("no run at all", encoding="utf-8")
    qtbot.waitUntil(lambda: panel.table.rowCount() == 4)
    assert column(panel, STATUS).count("unreadable") == 2
    choose(panel, "stranger.h5")
    assert "stranger.h5" in panel.message.text()
    assert not panel.actions_["rename"].isEnabled() and panel.actions_["bin"].isEnabled()


def test_that_deleting_asks_first_and_can_be_declined(
    session: Session, panel: LibraryPanel, qtbot: QtBot, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone: list[Path] = []

    def delete(path: Path) -> None:
        gone.append(path)
        path.unlink()

    monkeypatch.setattr(panel_module, "delete", delete)
    choose(panel, "old.h5")
    panel.ask_to_delete()
    assert panel.bar.asking
    panel.bar.no.click()
    assert not panel.bar.asking and not gone
    panel.open_selected()
    panel.ask_to_delete()
    panel.bar.yes.click()
    qtbot.waitUntil(lambda: panel.table.rowCount() == 1)
    assert gone == [folder / "old.h5"]
    assert not session.runs


def test_that_what_cannot_be_deleted_is_told(
    session: Session, panel: LibraryPanel, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise RunFileError(f"{path.name} cannot be moved to the bin.")

    monkeypatch.setattr(panel_module, "delete", refuse)
    choose(panel, "old.h5")
    panel.ask_to_delete()
    with qtbot.waitSignal(session.notice) as told:
        panel.bar.yes.click()
    assert told.args == [Problem("old.h5 cannot be moved to the bin.")]
    assert panel.table.rowCount() == 2


def test_that_a_run_in_training_cannot_be_deleted(session: Session, panel: LibraryPanel, qtbot: QtBot) -> None:
    choose(panel, "old.h5")
    panel.open_selected()
    session.runs.active_key = next(iter(session.runs))
    with qtbot.waitSignal(session.notice):
        panel.ask_to_delete()
    assert not panel.bar.asking


@pytest.mark.parametrize(("status", "steps"), [("completed", "4"), ("running", "9")])
def test_that_a_file_that_has_ended_stands_with_its_own_steps(
    session: Session, folder: Path, qtbot: QtBot, status: str, steps: str
) -> None:
    """After a full disk the training of the window went on to 9 steps; its file ended with 4."""
    run = LiveRun(
        config.load("digits-quick"), run_id="7", created="", machine={}, environment={}, path=folder / "old.h5"
    )
    run.extend([StepDone(n, 0.1 * n, 1.0, 1.0, False, 0.05, 1.0, 0.09, 0.01, 64, math.nan) for n in range(1, 10)])
    session.runs.add(run)
    panel = make_panel(qtbot, session, 2)
    entries = [replace(read_entry(folder / "old.h5"), status=status), read_entry(folder / "new.h5")]
    panel.findChild(RunsFolder).read.emit(entries)
    assert column(panel, 5)[column(panel, TITLE).index("the old one")] == steps


def test_that_an_empty_folder_says_what_to_do(session: Session, qtbot: QtBot) -> None:
    panel = make_panel(qtbot, session, 0)
    assert panel.pages.is_empty
    assert str(session.folder) in panel.pages.empty.text.text()
    with qtbot.waitSignal(session.requests.place) as wanted:
        panel.pages.empty.button.click()
    assert wanted.args == ["setup"]


def test_that_another_folder_can_be_chosen(session: Session, panel: LibraryPanel, qtbot: QtBot, tmp_path: Path) -> None:
    write_run(tmp_path / "other" / "far.h5", "from far away")
    session.set_folder(tmp_path / "other")
    qtbot.waitUntil(lambda: column(panel, TITLE) == ["from far away"])
    write_run(tmp_path / "other" / "near.h5", "a second one")
    qtbot.waitUntil(lambda: panel.table.rowCount() == 2)


@pytest.mark.parametrize(("value", "text"), [(None, "–"), (float("nan"), "NaN"), (0.012345, "0.01235"), (2.0, "2")])
def test_that_losses_are_short_and_nan_is_said(value: float | None, text: str) -> None:
    assert loss_text(value) == text


def test_that_metrics_have_their_names_and_units_and_odd_dates_are_kept() -> None:
    run = LibraryEntry(Path("a.h5"), "a", val_accuracy=0.98765)
    assert (metric_text(run), metric_text(replace(run, val_accuracy=None))) == ("98.77 %", "–")
    assert metric_text(replace(run, metric=Metric("iou", "Mean IoU", "overlap"))) == "mean IoU 98.77 %"
    steps = Metric("return", "Return", "steps", unit="steps")
    assert metric_text(replace(run, val_accuracy=150.0, metric=steps)) == "return 150 steps"
    assert (date_text("last week"), date_text("")) == ("last week", "–")


def test_that_the_selection_stays_with_its_run_when_the_order_changes(panel: LibraryPanel) -> None:
    choose(panel, "old.h5")
    for order in (Qt.SortOrder.DescendingOrder, Qt.SortOrder.AscendingOrder):
        panel.view.sortByColumn(TITLE, order)
        assert [entry.path.name for entry in panel.selected()] == ["old.h5"]
    assert column(panel, TITLE) == ["the new one", "the old one"]


def test_that_the_place_of_a_run_is_a_column_once_a_run_has_one(qtbot: QtBot, session: Session, folder: Path) -> None:
    panel = make_panel(qtbot, session, 2)
    place = [column.title for column in COLUMNS].index("Place")
    assert panel.view.isColumnHidden(place)
    facts = {"created": "", "machine": {}, "environment": {"place": "gpu1"}}
    with RunWriter(folder / "there.h5", config.RunConfig(), run_id="there", **facts) as writer:
        writer(RunEnded(0.5, "completed"))
    panel.refresh()
    qtbot.waitUntil(lambda: panel.table.rowCount() == 3)
    assert not panel.view.isColumnHidden(place)
    shown = sorted(str(panel.table.index(row, place).data()) for row in range(3))
    assert shown == ["gpu1", "this machine", "this machine"]
    assert GROUPS["place"](read_entry(folder / "there.h5")) == "gpu1"
