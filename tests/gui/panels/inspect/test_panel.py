"""Inspect: one run, its tabs, its facts, its note, exports and "run again"."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QLabel, QTreeWidgetItem
from pytestqt.qtbot import QtBot

from precgui.config import RunConfig
from precgui.gui.panels.inspect import panel as panel_module
from precgui.gui.panels.inspect.exporting import KINDS, Exports, why_not
from precgui.gui.panels.inspect.fact_tree import FactTree
from precgui.gui.panels.inspect.overview import OverviewTab
from precgui.gui.panels.inspect.panel import InspectPanel
from precgui.gui.panels.inspect.tabs import TABS, TabSpec
from precgui.gui.panels.inspect.tensors.panel import TensorsPanel
from precgui.gui.panels.setup.panel import SetupPanel
from precgui.gui.session import Session
from precgui.runs.facts import FactGroup, RunFact
from precgui.runs.library import read_entry
from tests.gui.conftest import write_run


@pytest.fixture
def two(session: Session, tmp_path: Path) -> tuple[str, str]:
    keys = [session.runs.open_file(write_run(tmp_path / f"{name}.h5", name, kind)) for name, kind in PAIR]
    assert keys[0] and keys[1]
    return keys[0], keys[1]


PAIR = (("one", "fp32"), ("two", "bf16-amp"))


def overview(panel: InspectPanel) -> OverviewTab:
    tab = panel.tab("overview")
    assert isinstance(tab, OverviewTab)
    return tab


def rows(tree: FactTree) -> dict[str, str]:
    """Name and value of every fact that is not hidden."""
    found = {}

    def walk(item: QTreeWidgetItem) -> None:
        if not item.isHidden():
            found[item.text(0)] = item.text(1)
            for row in range(item.childCount()):
                walk(item.child(row))

    for row in range(tree.topLevelItemCount()):
        walk(tree.topLevelItem(row))
    return found


def test_that_the_newest_run_is_shown_until_another_is_chosen(
    panel: InspectPanel, session: Session, qtbot: QtBot, tmp_path: Path
) -> None:
    assert panel.empty.isVisible()
    first = session.runs.open_file(write_run(tmp_path / "a.h5", "first"))
    qtbot.waitUntil(lambda: rows(overview(panel).tree).get("Precision") == "fp32")
    session.runs.open_file(write_run(tmp_path / "b.h5", "second", "bf16-amp"))
    assert panel.run_choice.currentText() == "first"
    panel.run_choice.setCurrentIndex(1)
    panel.run_choice.activated.emit(1)
    assert rows(overview(panel).tree)["Precision"] == "bf16-amp"
    session.runs.close(str(panel.key))
    assert panel.key == first
    assert rows(overview(panel).tree)["Precision"] == "fp32"


def test_that_any_place_can_lead_to_a_run_and_a_tab(
    panel: InspectPanel, session: Session, two: tuple[str, str], qtbot: QtBot
) -> None:
    with qtbot.waitSignal(session.requests.place) as wanted:
        session.requests.inspect(two[0], "tensors")
    assert wanted.args == ["inspect/tensors"]
    qtbot.waitUntil(lambda: isinstance(panel.tabs.currentWidget().findChild(TensorsPanel), TensorsPanel))
    tensors = panel.tab("tensors")
    assert isinstance(tensors, TensorsPanel)
    assert "This run holds no tensors" in tensors.empty.text.text()
    session.requests.inspect(two[1])
    assert panel.tabs.currentIndex() == 1
    assert panel.run_choice.currentText() == "two"


def test_that_a_new_tab_says_that_it_loads(panel: InspectPanel, two: tuple[str, str], qtbot: QtBot) -> None:
    panel.tabs.setCurrentIndex(1)
    page = panel.tabs.currentWidget()
    label = page.findChild(QLabel)
    assert isinstance(label, QLabel)
    assert label.text() == "Loading Tensors..."
    qtbot.waitUntil(lambda: page.findChild(TensorsPanel) is not None)


def test_that_a_tab_without_anything_to_show_is_greyed_and_says_why(
    qtbot: QtBot, session: Session, two: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    only_bf16 = TabSpec(
        "another", "Another", "inspect.overview:OverviewTab", "where the time goes",
        lambda run: run.config.precision == "bf16-amp",
        "Only for BF16.",
    )  # fmt: skip
    monkeypatch.setattr(panel_module, "TABS", (*TABS, only_bf16))
    made, place = InspectPanel(session), len(TABS)
    qtbot.addWidget(made)
    session.requests.inspect(two[0])
    assert not made.tabs.isTabEnabled(place)
    assert made.tabs.tabToolTip(place) == "Only for BF16."
    session.requests.inspect(two[1])
    assert made.tabs.isTabEnabled(place)
    assert made.tabs.tabToolTip(place) == "Where the time goes"


def test_that_a_note_is_kept_beside_the_file(panel: InspectPanel, session: Session, two: tuple[str, str]) -> None:
    tab = overview(panel)
    session.requests.inspect(two[1])
    tab.note.setText("the good one")
    tab.note.editingFinished.emit()
    path = session.runs[two[1]].run.path
    assert path is not None
    assert read_entry(path).note == "the good one"
    session.requests.inspect(two[0])
    assert tab.note.text() == ""
    session.requests.inspect(two[1])
    assert tab.note.text() == "the good one"


def test_that_facts_are_filtered_and_copied(qtbot: QtBot) -> None:
    tree = FactTree()
    qtbot.addWidget(tree)
    inside = RunFact(
        "Optimizer", "1 changed", "", True, (RunFact("Learning rate", "0.25", "", True), RunFact("Epsilon", "1e-8"))
    )
    tree.show_groups(
        [FactGroup("Settings", (inside, RunFact("Seed", "0"))), FactGroup("Machine", (RunFact("host", "h"),))]
    )
    tree.set_words("learning 0.25")
    assert list(rows(tree)) == ["Settings", "Optimizer", "Learning rate"]
    tree.set_words("settings seed")
    assert list(rows(tree)) == ["Settings", "Seed"]
    tree.set_words("")
    tree.topLevelItem(0).child(1).setSelected(True)
    tree.copy()
    assert QGuiApplication.clipboard().text() == "Seed\t0"


def test_that_new_values_leave_the_tree_as_it_stands(qtbot: QtBot) -> None:
    tree = FactTree()
    qtbot.addWidget(tree)
    tree.show_groups([FactGroup("Result", (RunFact("Steps", "1"),))])
    item = tree.topLevelItem(0)
    item.setExpanded(False)
    tree.show_groups([FactGroup("Result", (RunFact("Steps", "2"),))])
    assert tree.topLevelItem(0) is item
    assert not item.isExpanded()
    assert item.child(0).text(1) == "2"


def test_that_settings_of_a_run_come_into_run(
    panel: InspectPanel, session: Session, two: tuple[str, str], qtbot: QtBot
) -> None:
    setup = SetupPanel(session)
    qtbot.addWidget(setup)
    session.runs.choose(two[1])
    with qtbot.waitSignal(session.requests.place) as wanted:
        panel.again_button.click()
    assert wanted.args == ["setup"]
    config = setup.form.value()
    assert isinstance(config, RunConfig)
    assert (config.precision, config.title) == ("bf16-amp", "two")
    assert "two" in setup.recipe_note.text()


def test_that_a_run_is_exported_and_the_files_are_named(
    panel: InspectPanel, session: Session, two: tuple[str, str], qtbot: QtBot, tmp_path: Path
) -> None:
    exports, opened = Exports(session, panel), session.runs[two[0]]
    for kind, place, name in (("csv", "tables", "steps.csv"), ("html", "one.html", "one.html")):
        with qtbot.waitSignal(session.notice) as told:
            exports.write(next(each for each in KINDS if each.id == kind), opened, tmp_path / place)
        problem = told.args[0]
        assert problem.severity == "info"
        assert name in problem.details
    with qtbot.waitSignal(session.notice) as told:
        exports.write(next(each for each in KINDS if each.id == "html"), opened, tmp_path / "one.html")
    assert "already exists" in told.args[0].message
    with qtbot.waitSignal(session.notice) as told:
        exports.write(next(each for each in KINDS if each.id == "weights"), opened, tmp_path / "one.safetensors")
    assert "the run kept no weights: set train.save_to = auto" in told.args[0].message
    exports.fill(opened)
    offered = [action.text() for action in exports.menu.actions()]
    assert "Weights..." in offered
    assert "FP32 master weights..." not in offered  # its precision has none


def test_that_a_run_that_is_written_cannot_be_exported_yet(session: Session, two: tuple[str, str]) -> None:
    opened = session.runs[two[0]]
    assert why_not(opened) == ""
    opened.run.status = "running"
    assert "still being written" in why_not(opened)
