"""One current run in every place, the way back to where one was, and the proof of a finding."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pyqtgraph as pg
import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from precgui.events import Event, RunEnded, RunStarted, StepDone
from precgui.examples import example
from precgui.gui.notices import Notices
from precgui.gui.panels.compare.panel import ComparePanel
from precgui.gui.panels.diagnose.panel import DiagnosePanel
from precgui.gui.panels.inspect.panel import InspectPanel
from precgui.gui.panels.library.panel import LibraryPanel
from precgui.gui.panels.live.panel import LivePanel
from precgui.gui.plots.chart import colour_of
from precgui.gui.session import Session
from precgui.gui.settings import Settings
from precgui.gui.shell.startup import StartupStages
from precgui.gui.shell.window import Window
from tests.gui.conftest import close_window, write_run
from tests.gui.theme_changes import change_theme
from tests.runs.synthetic import live_run


def panel(window: Window, name: str) -> QWidget:
    found = window.host.load(name)
    assert found is not None
    return found


def session_of(window: Window) -> Session:
    assert window.session is not None
    return window.session


@pytest.fixture
def three(working: Window, tmp_path: Path) -> tuple[str, str, str]:
    """The keys of three open runs in the folder of the session, the first of them current."""
    session = session_of(working)
    session.set_folder(tmp_path / "runs")
    names = ("one", "two", "three")
    keys = tuple(session.runs.open_file(write_run(tmp_path / "runs" / f"{name}.h5", name)) or "" for name in names)
    return keys[0], keys[1], keys[2]


def rows_of_live(window: Window) -> dict[str, Callable[[], object]]:
    tree = panel(window, "live").run_list.tree  # type: ignore[attr-defined]
    items = [tree.topLevelItem(row) for row in range(tree.topLevelItemCount())]
    return {item.text(0): lambda item=item: tree.setCurrentItem(item) for item in items}


def shown_everywhere(window: Window, name: str) -> bool:
    """Whether every place shows this run as the current one."""
    live, inspect = panel(window, "live"), panel(window, "inspect")
    compare, diagnose = panel(window, "compare"), panel(window, "diagnose")
    assert isinstance(live, LivePanel) and isinstance(inspect, InspectPanel)
    assert isinstance(compare, ComparePanel) and isinstance(diagnose, DiagnosePanel)
    in_live = live.run_list.tree.currentItem().text(0)
    heads = [compare.table.verticalHeaderItem(row) for row in range(compare.table.rowCount())]
    in_compare = [head.text().removesuffix(" (baseline)") for head in heads if head and head.font().bold()]
    in_diagnose = [session_of(window).runs[key].name for key in diagnose.verdicts.chosen()]
    told = {in_live, inspect.run_choice.currentText(), *in_compare, *in_diagnose, window.run_bar.run.text()}
    return told == {name}


def visit_all(window: Window, qtbot: QtBot) -> None:
    for name in ("live", "compare", "inspect", "diagnose"):
        window.show_panel(name)
        qtbot.wait(30)


def test_that_a_run_chosen_in_any_place_is_the_current_one_everywhere(
    working: Window, three: tuple[str, str, str], qtbot: QtBot
) -> None:
    visit_all(working, qtbot)
    qtbot.waitUntil(lambda: shown_everywhere(working, "one"))
    working.show_panel("live")
    rows_of_live(working)["two"]()
    visit_all(working, qtbot)
    qtbot.waitUntil(lambda: shown_everywhere(working, "two"))
    compare = panel(working, "compare")
    assert isinstance(compare, ComparePanel)
    working.show_panel("compare")
    qtbot.waitUntil(lambda: compare.table.rowCount() == 3)
    place = compare.table.visualItemRect(compare.table.item(2, 0)).center()
    qtbot.mouseClick(compare.table.viewport(), Qt.MouseButton.LeftButton, pos=place)
    visit_all(working, qtbot)
    qtbot.waitUntil(lambda: shown_everywhere(working, "three"))
    inspect, diagnose = panel(working, "inspect"), panel(working, "diagnose")
    assert isinstance(inspect, InspectPanel) and isinstance(diagnose, DiagnosePanel)
    inspect.run_choice.activated.emit(inspect.run_choice.findText("one"))
    inspect.run_choice.setCurrentIndex(inspect.run_choice.findText("one"))
    inspect.run_choice.activated.emit(0)
    visit_all(working, qtbot)
    qtbot.waitUntil(lambda: shown_everywhere(working, "one"))
    qtbot.waitUntil(lambda: len(diagnose.diagnoses) == 3)
    diagnose.verdicts.selectRow(diagnose.verdicts.keys.index(three[1]))
    visit_all(working, qtbot)
    qtbot.waitUntil(lambda: shown_everywhere(working, "two"))


def test_that_a_run_chosen_in_runs_is_current_and_named_there_in_bold(
    working: Window, three: tuple[str, str, str], qtbot: QtBot
) -> None:
    library = panel(working, "library")
    assert isinstance(library, LibraryPanel)
    working.show_panel("library")
    qtbot.waitUntil(lambda: library.table.rowCount() == 3)
    titles = [library.filtered.index(row, 0).data() for row in range(3)]
    library.view.selectRow(titles.index("three"))
    assert session_of(working).runs.current == three[2]
    fonts = [library.filtered.index(row, 0).data(Qt.ItemDataRole.FontRole) for row in range(3)]
    assert [title for title, font in zip(titles, fonts, strict=True) if font and font.bold()] == ["three"]
    session_of(working).runs.choose(three[0])
    library.refresh()
    qtbot.wait(50)
    assert session_of(working).runs.current == three[0]  # what is still selected in Runs does not come back by itself


def test_that_the_menu_of_the_corner_chooses_the_run_and_goes_with_the_last_one(
    working: Window, three: tuple[str, str, str]
) -> None:
    bar = working.run_bar
    bar.run.menu().aboutToShow.emit()
    assert [action.text() for action in bar.run.menu().actions()] == ["one", "two", "three"]
    assert [action.isChecked() for action in bar.run.menu().actions()] == [True, False, False]
    bar.run.menu().actions()[1].trigger()
    assert session_of(working).runs.current == three[1] and bar.run.text() == "two"
    session_of(working).runs.close(three[1])
    assert session_of(working).runs.current == three[2] and bar.run.text() == "three"
    for key in (three[0], three[2]):
        session_of(working).runs.close(key)
    assert session_of(working).runs.current is None and not bar.run.isVisible()


def test_that_back_and_forward_show_places_with_their_run_tab_and_zoom(
    working: Window, three: tuple[str, str, str], qtbot: QtBot
) -> None:
    def settle() -> None:
        qtbot.wait(20)

    working.activateWindow()
    qtbot.waitUntil(working.isActiveWindow)
    working.show_panel("live")
    settle()
    live = panel(working, "live")
    assert isinstance(live, LivePanel)
    live.plots.show_range(1.0, 2.0)
    session_of(working).requests.inspect(three[1], "tensors")
    settle()
    assert working.host.current == "inspect"
    working.show_panel("formats")
    settle()
    live.plots.show_range(3.0, 4.0)  # another zoom, made while the place was left
    assert not working.actions_.by_id["view.forward"].isEnabled()
    qtbot.keyClick(working, Qt.Key.Key_Left, Qt.KeyboardModifier.AltModifier)
    assert working.host.current == "inspect" and panel(working, "inspect").place()[0] == "tensors"  # type: ignore[attr-defined]
    qtbot.keyClick(working, Qt.Key.Key_Left, Qt.KeyboardModifier.AltModifier)
    assert working.host.current == "live" and session_of(working).runs.current == three[0]
    assert live.plots.x_range == (1.0, 2.0)
    qtbot.keyClick(working, Qt.Key.Key_Right, Qt.KeyboardModifier.AltModifier)
    assert working.host.current == "inspect" and session_of(working).runs.current == three[1]
    working.show_panel("library")
    settle()
    assert not working.can_go_forward()  # another way was taken
    session_of(working).runs.close(three[1])
    settle()
    working.history.back()
    assert working.host.current == "inspect" and session_of(working).runs.current in session_of(working).runs


def test_that_a_changed_tab_is_a_place_of_its_own(working: Window, qtbot: QtBot) -> None:
    working.show_panel("formats")
    qtbot.wait(20)
    formats = panel(working, "formats")
    formats.tabs.setCurrentIndex(2)  # type: ignore[attr-defined]
    qtbot.wait(20)
    working.history.back()
    assert formats.tabs.currentIndex() == 0  # type: ignore[attr-defined]


def test_that_show_me_draws_the_numbers_of_the_finding_with_their_limit_and_back_returns(
    working: Window, three: tuple[str, str, str], qtbot: QtBot
) -> None:
    session = session_of(working)
    broken: list[Event] = [RunStarted(0.0, 0, 0, "cpu")]
    for step in range(1, 61):
        loss = 2.0 * 0.95**step if step < 21 else math.nan
        broken.append(StepDone(step, 0.1 * step, loss, 1.0, False, 0.1, 1.0, 0.1, 0.0, 8, math.nan))
    key = session.runs.add(live_run([*broken, RunEnded(9.0, "completed")]))
    live, diagnose = panel(working, "live"), panel(working, "diagnose")
    assert isinstance(live, LivePanel) and isinstance(diagnose, DiagnosePanel)
    working.show_panel("live")
    qtbot.wait(20)
    live.plots.show_range(1.0, 3.0)
    working.show_panel("diagnose")
    qtbot.waitUntil(lambda: len(diagnose.diagnoses) == 4)
    qtbot.waitUntil(lambda: diagnose.verdicts.chosen() == [key])  # broken, and nobody has chosen another one
    card = diagnose.cards[0]
    assert any(len(each.series) > 1 for each in card.finding.evidence)
    card.show_button.click()
    assert working.host.current == "live" and live.proof_card is not None and live.proof_card.isVisible()
    assert card.finding.title in live.proof_card.title.text()
    drawn = live.proof_card.plots[0]
    proof = live.proof_card
    working.resize(800, 600)
    qtbot.waitUntil(lambda: all(proof.rect().contains(each.geometry()) for each in proof.plots))
    assert drawn.evidence.series == next(e.series for e in card.finding.evidence if len(e.series) > 1)
    for mode in ("dark", "light"):
        change_theme(qtbot, mode)
        (line,) = (item for item in drawn.plotItem.items if isinstance(item, pg.PlotDataItem))
        assert line.opts["pen"].color() == QColor(colour_of(session.runs[key]))
    assert [run.key for run in live.plots.frames[0].chart.runs] == [key]  # this run alone
    qtbot.wait(20)
    working.history.back()
    assert working.host.current == "diagnose"
    working.history.forward()
    assert working.host.current == "live" and live.proof is not None
    live.proof_card.close_button.click()
    assert live.proof is None and live.plots.x_range == (1.0, 3.0)
    assert len(live.plots.frames[0].chart.runs) == 4


def test_that_the_proof_of_clipping_is_the_norm_times_the_scale_with_its_limit(working: Window, qtbot: QtBot) -> None:
    clipped = example("clip-before-unscale")
    assert clipped is not None
    session_of(working).runs.open_file(clipped.path)
    live, diagnose = panel(working, "live"), panel(working, "diagnose")
    assert isinstance(live, LivePanel) and isinstance(diagnose, DiagnosePanel)
    working.show_panel("diagnose")
    qtbot.waitUntil(lambda: bool(diagnose.cards))
    diagnose.cards[0].show_button.click()
    assert live.proof_card is not None
    plot = live.proof_card.plots[0]
    written = [item.toPlainText() for item in plot.plotItem.items if isinstance(item, pg.TextItem)]
    assert "limit 1" in written and all(abs(value - 1) < 0.02 for _, value in plot.evidence.series)
    assert [frame.chart.signal.key for frame in live.plots.frames if frame.isVisible()] == ["loss", "scale"]


def test_that_the_current_run_and_the_tab_come_back_after_a_restart(
    qtbot: QtBot, notices: Notices, tmp_path: Path
) -> None:
    before = Window(Settings(), notices)
    before.show()
    session = Session(before)
    before.attach(session)
    keys = [session.runs.open_file(write_run(tmp_path / f"{name}.h5", name)) or "" for name in ("one", "two", "three")]
    session.requests.inspect(keys[1], "tensors")
    close_window(qtbot, before)
    again = Window(Settings(), notices)
    start = StartupStages(again, [])
    again.show()
    qtbot.waitUntil(lambda: again.session is not None and not again.host.waiting())
    try:
        assert again.host.current == "inspect"
        qtbot.waitUntil(lambda: again.run_bar.run.text() == "two")
        assert len(session_of(again).runs) == 3 and panel(again, "inspect").place()[0] == "tensors"  # type: ignore[attr-defined]
    finally:
        close_window(qtbot, again)
        start.deleteLater()
