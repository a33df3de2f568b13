"""Time and Memory: what the tabs of Inspect tell of the profile that is kept beside a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QPushButton
from pytestqt.qtbot import QtBot

from precgui.config import RunConfig
from precgui.gui.panels.inspect.panel import InspectPanel
from precgui.gui.panels.inspect.speedup.memory_tab import MemoryTab
from precgui.gui.panels.inspect.speedup.time_tab import TimeTab
from precgui.gui.panels.inspect.speedup.time_views import TimeViews
from precgui.gui.session import Session
from precgui.runs.speedup.profile_file import profile_path, write_profile
from tests.cli.test_profile_cli import document
from tests.fakes import FakeChild
from tests.gui.conftest import write_run
from tests.gui.theme_changes import change_theme


@pytest.fixture
def run(session: Session, tmp_path: Path) -> Path:
    path = write_run(tmp_path / "kept.h5", "kept", "bf16-amp")
    write_profile(profile_path(path), _document())
    session.runs.open_file(path)
    return path


def _document() -> dict[str, Any]:
    plain = document() | {"created": "2026-11-22T10:00:00+00:00"}
    measured = plain["memory"]["measured"]
    measured |= {
        "owners": [{"part": "activations", "module": "<b>head</b>", "size_bytes": 1 << 20, "tensors": 2,
                    "dtype": "float32", "shape": [4, 8], "operation": "mm"}],
        "timeline": [[0, 5], [3, 9], [7, 2]], "phases": [["forward", 0], ["backward", 4], ["end", 7]],
    }  # fmt: skip
    return plain


def time_tab(panel: InspectPanel) -> TimeTab:
    views = panel.tab("time")
    assert isinstance(views, TimeViews)
    views.show_run(panel.key)
    return views.step


def memory_tab(panel: InspectPanel) -> MemoryTab:
    tab = panel.tab("memory")
    assert isinstance(tab, MemoryTab)
    tab.show_run(panel.key)
    return tab


def test_that_the_account_and_its_first_cause_are_shown(panel: InspectPanel, run: Path) -> None:
    tab = time_tab(panel)
    assert "most is lost to: waiting for data" in tab.verdict.text()
    assert "Waiting for data" in tab.chart.accessibleDescription()
    assert tab.operations.topLevelItemCount() == 1
    assert tab.operations.topLevelItem(0).text(8) == "2"  # 10^9 operations in 0.5 s
    told = [label.text() for label in tab.causes.findChildren(QLabel)]
    assert told[0].startswith("Waiting for data (93% of the step)")
    assert "Unexplained" not in told[0]


def test_that_a_fix_goes_into_run(panel: InspectPanel, session: Session, run: Path, qtbot: QtBot) -> None:
    tab = time_tab(panel)
    button = tab.causes.findChildren(QPushButton)[0]
    assert button.text() == "Try data.workers = 2"
    with qtbot.waitSignal(session.requests.settings) as caught:
        button.click()
    changed: RunConfig = caught.args[0]
    assert (changed.data.workers, changed.precision) == (2, "bf16-amp")


@pytest.mark.parametrize(
    ("gains", "offered", "told"),
    [
        ([1.50, 1.52, 1.51, 1.49], True, "Tried here in pairs: 1.50 [1.48, 1.53] times as many samples a second."),
        ([0.90, 0.92, 0.91, 0.90], False, "times as many samples a second, so it is no gain here."),
        ([0.90, 1.30, 1.01, 0.97], False, "times as many samples a second, so a gain is not certain."),
        ([], False, "It could not be tried here: the loader cannot be pickled."),
    ],
)
def test_that_only_a_measured_gain_is_offered(
    panel: InspectPanel, session: Session, run: Path, gains: list[float], offered: bool, told: str
) -> None:
    fault = "" if gains else "the loader cannot be pickled"
    trials = [{"settings": {"data.workers": "2"}, "gains": gains, "fault": fault}]
    write_profile(profile_path(run), {**_document(), "trials": trials})
    tab = time_tab(panel)
    texts = [button.text() for button in tab.causes.findChildren(QPushButton)]
    assert ("Try data.workers = 2" in texts) == offered
    assert told in tab.causes.findChildren(QLabel)[0].text()


def test_that_the_swatches_of_the_ledger_follow_the_theme(panel: InspectPanel, run: Path, qtbot: QtBot) -> None:
    tab = memory_tab(panel)

    def swatch() -> object:
        return tab.table.topLevelItem(0).data(0, Qt.ItemDataRole.DecorationRole)

    change_theme(qtbot, "light")
    light = swatch()
    change_theme(qtbot, "dark")
    assert swatch() != light


def test_that_the_ledgers_are_shown_side_by_side(panel: InspectPanel, run: Path) -> None:
    tab = memory_tab(panel)
    assert tab.chart.accessibleDescription() == "FP32, predicted 4 MiB; Predicted 2 MiB; Measured 3 MiB"
    assert "+33.3%.\nThe difference is more than a tenth" in tab.sentence.text()
    assert [tab.table.topLevelItem(row).text(3) for row in range(tab.table.topLevelItemCount())] == ["3 MiB", "3 MiB"]
    assert tab.owners.topLevelItem(0).text(1) == "<b>head</b>"
    assert tab.timeline.getAxis("left").range == pytest.approx([0, 9 * 1.05])


def test_that_a_run_without_a_profile_offers_to_make_one(panel: InspectPanel, session: Session, tmp_path: Path) -> None:
    session.runs.open_file(write_run(tmp_path / "bare.h5", "bare"))
    tab = time_tab(panel)
    assert "Profiling takes up to about 56.3 s on" in tab.bar.text.text()
    assert tab.bar.button.isEnabled()
    assert tab.verdict.isHidden() or not tab.verdict.isVisible()


def test_that_a_damaged_profile_is_as_none(panel: InspectPanel, session: Session, run: Path) -> None:
    profile_path(run).write_text('{"schema": 1, "fp32": []}', encoding="utf-8")
    tab = time_tab(panel)
    assert tab.bar.document is None
    profile_path(run).write_text("{}", encoding="utf-8")
    assert memory_tab(panel).bar.document is None


def test_that_ledgers_that_cannot_be_read_are_left_out(panel: InspectPanel, run: Path) -> None:
    plain = _document()
    plain["memory"] = {"measured": {"parts": []}, "fp32": 3}
    write_profile(profile_path(run), plain)
    tab = memory_tab(panel)
    assert tab.bar.document is not None
    assert tab.chart.accessibleDescription() == ""


def test_that_what_the_child_says_is_shown(
    panel: InspectPanel, session: Session, tmp_path: Path, children: list[FakeChild]
) -> None:
    path = write_run(tmp_path / "bare.h5", "bare")
    session.runs.open_file(path)
    tab = time_tab(panel)
    short = tab.bar.text.text()
    tab.bar.seconds.setValue(600)
    assert "up to about 10" in tab.bar.text.text() and tab.bar.text.text() != short
    tab.bar.button.click()
    children[0].said.emit({"kind": "progress", "text": "round 1"})
    assert tab.bar.text.text() == "Round 1 ..."
    assert children[0].task == "precgui.profile_job:serve_profile"
    assert (children[0].arguments["seconds"], children[0].arguments["path"]) == (600.0, str(path))
    assert tab.bar.button.text() == "Stop"
    write_profile(profile_path(path), _document())
    children[0].ended.emit("")
    assert tab.bar.button.text() == "Profile again"
    assert "most is lost" in tab.verdict.text()
    tab.bar.button.click()
    children[1].said.emit({"kind": "fault", "message": "the data set of this run is not there any more"})
    children[1].ended.emit("")
    assert tab.bar.text.text() == "the data set of this run is not there any more"
    assert tab.bar.button.text() == "Profile again"


def test_that_both_tabs_are_drawn_in_both_themes(panel: InspectPanel, run: Path, qtbot: QtBot) -> None:
    time, memory = time_tab(panel), memory_tab(panel)
    pictures = []
    for mode in ("light", "dark"):
        change_theme(qtbot, mode)
        for tab in (time, memory):
            tab.resize(900, 600)
            pictures.append(tab.chart.grab().toImage())
    assert pictures[0] != pictures[2]
    assert pictures[1] != pictures[3]


def test_that_products_of_the_model_stand_in_a_table_and_under_the_roofline(panel: InspectPanel, run: Path) -> None:
    layers = time_tab(panel).layers
    first, second = (layers.table.topLevelItem(row) for row in range(layers.table.topLevelItemCount()))
    assert [first.text(column) for column in (2, 3, 5, 6)] == ["4", "1 (0.25x)", "3", "2 x 8 x 3"]
    assert second.text(4) == "not measured"
    assert "about 9.0 s" in second.toolTip(4)
    drawn = {item.objectName(): item for item in layers.roofline.plotItem.items}
    assert drawn["roof bf16"].isVisible()
    assert len(drawn["products fp32"].getData()[0]) == 2
    assert "90% of the FLOPs" in layers.caption.text()


def test_that_an_older_profile_says_how_to_get_the_products(panel: InspectPanel, run: Path) -> None:
    older = _document()
    del older["products"]
    write_profile(profile_path(run), older)
    layers = time_tab(panel).layers
    assert "Profile again" in layers.caption.text()
    assert not layers.table.isVisible()


def test_that_the_bar_stays_on_top_where_there_is_no_profile(qtbot: QtBot) -> None:
    for tab in (TimeTab(Session()), MemoryTab(Session())):
        qtbot.addWidget(tab)
        tab.resize(800, 600)
        tab.show()
        tab.show_run(None)
        qtbot.waitUntil(lambda tab=tab: tab.layout().sizeHint().height() < 100)  # the content is hidden
        tab.layout().activate()
        centre = tab.bar.button.mapTo(tab, tab.bar.button.rect().center())
        assert centre.y() < 100
