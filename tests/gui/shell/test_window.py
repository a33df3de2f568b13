"""The window composes: panels, actions, notices, files, settings, the end."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from operator import attrgetter
from pathlib import Path

import pytest
from PySide6.QtCore import QMimeData, QPoint, QPointF, Qt, QUrl
from PySide6.QtGui import QDragEnterEvent, QDropEvent
from PySide6.QtWidgets import QLabel, QMenu, QTreeWidget, QWidget
from pytestqt.qtbot import QtBot

from precgui.gui.notices import Notices
from precgui.gui.open_run import Problem
from precgui.gui.session import Session
from precgui.gui.shell.actions import ACTIONS, SUBMENUS
from precgui.gui.shell.command_palette import CommandPalette, KeyList, match
from precgui.gui.shell.navigation import PanelSpec
from precgui.gui.shell.panel_host import PanelHost
from precgui.gui.shell.status_bar import duration
from precgui.gui.shell.window import PANELS, Window
from precgui.gui.theme import themes
from tests.fakes import FakeChild

# Start-up --------------------------------------------------------------------------------------------------


# Parts of the package that a window with a run file may load before its first paint, and before its first plots. Each
# costs half a millisecond to two: what comes later is imported where it is used.
MOST_BEFORE_PAINT, MOST_BEFORE_PLOTS = 65, 195
LIBRARIES = {"numpy", "h5py", "pydantic", "pyqtgraph", "torch", "rich"}
NOT_BEFORE_PAINT = (*LIBRARIES, "multiprocessing", "subprocess", "ctypes", "precgui.events")
NOT_BEFORE_PLOTS = (
    "torch", "rich", "precgui.engine", "precgui.lint", "precgui.sweeps", "precgui.planner", "precgui.places.messages",
    "precgui.formats.checkpoints.contents", "precgui.gui.panels.live.study_grid",
    *(f"precgui.runs.{room}" for room in ("diagnosis", "study", "report", "verdict", "speedup", "models")),
)  # fmt: skip
START = """
import json, sys
from pathlib import Path
from precgui.gui.shell import startup
soon, seen = startup._soon, []
def note(act):
    seen.append(sorted(sys.modules))
    soon(act)
startup._soon = note
code = startup.open_window([Path(name) for name in sys.argv[1:]])
print(json.dumps(seen), "torch" in sys.modules, sep="\\n")
sys.exit(code)
"""


def test_that_the_start_is_traced_and_loads_what_it_needs(run_file: Path) -> None:
    environment = {**os.environ, "PRECGUI_TRACE_STARTUP": "1", "PRECGUI_EXIT_AFTER_PLOTS": "1"}
    environment.pop("PRECGUI_LANGUAGE", None)
    ended = subprocess.run(
        [sys.executable, "-c", START, str(run_file)],
        capture_output=True, text=True, check=False, timeout=240, env=environment,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    traced, loaded, torch_loaded = ended.stdout.splitlines()
    moments = json.loads(traced)
    assert 0 < moments["first_paint_s"] < moments["plots_painted_s"]
    assert torch_loaded == "False"
    at_paint, at_plots = json.loads(loaded)
    for modules, most, not_yet in (
        (at_paint, MOST_BEFORE_PAINT, NOT_BEFORE_PAINT), (at_plots, MOST_BEFORE_PLOTS, NOT_BEFORE_PLOTS),
    ):  # fmt: skip
        assert not [name for name in modules if any(f"{name}.".startswith(f"{early}.") for early in not_yet)]
        assert sum(name.startswith("precgui.") for name in modules) <= most


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux can have no display at all")
def test_that_without_a_display_one_sentence_says_what_to_do() -> None:
    hidden = ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    script = "import sys\nfrom precgui.cli.main import main\nsys.exit(main([]))"
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=240, env=environment
    )
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert "precgui run" in ended.stderr and "xvfb-run" in ended.stderr


# Panels ----------------------------------------------------------------------------------------------------


def test_that_every_panel_opens(working: Window, notices: Notices) -> None:
    for spec in PANELS:
        working.show_panel(spec.id)
        panel = working.host.panels[spec.id]
        assert type(panel).__name__ == spec.place.partition(":")[2]
        assert panel.isVisible()
        assert not [entry for entry in notices.entries() if entry.notice.severity == "error"]


def test_that_every_place_has_its_title(working: Window) -> None:
    for spec in PANELS:
        working.show_panel(spec.id)
        titles = [
            label.text()
            for label in working.host.panels[spec.id].findChildren(QLabel)
            if label.property("kind") == "title" and label.isVisible()
        ]
        assert spec.title in titles


def test_that_only_the_shown_panel_is_made_at_first(working: Window) -> None:
    assert set(working.host.panels) == {"setup"}
    while working.load_next_panel():
        pass
    assert set(working.host.panels) == {spec.id for spec in PANELS}
    assert working.host.current == "setup"


def test_that_a_panel_that_is_not_there_says_so_in_its_place(qtbot: QtBot) -> None:
    host = PanelHost([PanelSpec("lost", "Lost", "info", "precgui.gui.panels.lost:LostPanel", "")])
    qtbot.addWidget(host)
    host.attach(Session(host))
    texts = [label.text() for label in host.panels["lost"].findChildren(QLabel)]
    assert len(texts) == 1
    assert texts[0].startswith("The panel Lost could not be loaded: No module named")


def test_that_the_keys_choose_panels(working: Window, qtbot: QtBot) -> None:
    working.activateWindow()
    qtbot.keyClick(working, Qt.Key.Key_6, Qt.KeyboardModifier.ControlModifier)
    assert working.host.current == PANELS[5].id
    assert working.navigation.buttons[PANELS[5].id].isChecked()


def test_that_the_navigation_gives_way_in_a_small_window(working: Window) -> None:
    working.resize(1280, 800)
    wide = working.navigation.width()
    working.resize(800, 560)
    assert working.navigation.narrow and working.navigation.width() < wide
    working.resize(1280, 800)
    assert not working.navigation.narrow
    working.toggle_navigation()
    working.resize(1400, 800)
    assert working.navigation.narrow


def test_that_no_panel_forces_the_window_wider(working: Window, qtbot: QtBot) -> None:
    for panel, size in itertools.product(("setup", "library", "compare", "diagnose"), ((1280, 800), (800, 560))):
        working.show_panel(panel)
        working.resize(*size)
        qtbot.wait(20)
        assert (working.width(), working.height()) == size, panel


def test_that_the_title_stands_at_the_same_height_in_every_place(
    working: Window, children: list[FakeChild], qtbot: QtBot
) -> None:
    def titles(place: str) -> list[tuple[int, int]]:
        """Left edge and middle of the text of each title in view."""
        found = [each for each in working.host.panels[place].findChildren(QLabel) if each.property("kind") == "title"]
        corners = [(each, each.mapTo(working, QPoint())) for each in found if each.isVisible()]
        return [(corner.x(), corner.y() + each.contentsRect().center().y()) for each, corner in corners]

    working.resize(1280, 800)
    places = {}
    for panel in PANELS:
        working.show_panel(panel.id)
        qtbot.waitUntil(lambda place=panel.id: len(titles(place)) == 1)
        places[panel.id] = titles(panel.id)[0]
    (left,) = {left for left, _ in places.values()}
    middles = [middle for _, middle in places.values()]
    assert left > 0 and max(middles) - min(middles) <= 1, places  # of half a pixel


def test_that_everything_reached_by_keys_has_a_name(working: Window) -> None:
    for panel in ("setup", "library", "compare", "diagnose"):
        working.show_panel(panel)
    nameless = [
        widget
        for widget in working.findChildren(QWidget)
        if widget.isVisible()
        and widget.focusPolicy() & Qt.FocusPolicy.TabFocus
        and not (widget.accessibleName() or getattr(widget, "text", str)() or widget.toolTip())
        and type(widget).__module__.startswith("precgui")
    ]
    assert not nameless


# Actions ---------------------------------------------------------------------------------------------------


def test_that_every_action_leads_somewhere_and_no_key_is_taken_twice(working: Window) -> None:
    specs = working.actions_.specs.values()
    for spec in specs:
        for name in filter(None, (spec.callback, spec.enabled, spec.checked)):
            assert callable(attrgetter(name)(working)), spec.id
    shortcuts = [spec.shortcut for spec in specs if spec.shortcut]
    assert len(shortcuts) == len(set(shortcuts))


def test_that_the_palette_finds_an_action_by_a_few_letters(working: Window, qtbot: QtBot) -> None:
    working.show_palette()
    palette = working.findChild(CommandPalette)
    assert palette is not None
    assert palette.list.topLevelItemCount() == len(working.actions_.by_id)
    qtbot.keyClicks(palette.search, "thdark")
    first = palette.list.topLevelItem(0)
    assert first is not None and first.text(0) == "View > Theme: Dark"
    qtbot.keyClick(palette.search, Qt.Key.Key_Return)
    assert themes().mode == "dark"
    assert working.settings["window/theme"] == "dark"


def test_that_the_palette_does_not_run_what_is_disabled(working: Window, qtbot: QtBot) -> None:
    working.show_palette()
    palette = working.findChild(CommandPalette)
    assert palette is not None
    qtbot.keyClicks(palette.search, "run: stop")
    qtbot.keyClick(palette.search, Qt.Key.Key_Return)
    assert palette.isVisible()
    qtbot.keyClicks(palette.search, " zzzz")
    qtbot.keyClick(palette.search, Qt.Key.Key_Down)
    qtbot.keyClick(palette.search, Qt.Key.Key_Return)
    assert palette.isVisible()
    palette.close()


@pytest.mark.parametrize(("typed", "text", "found"), [("dk", "Dark", True), ("kd", "Dark", False), ("", "Dark", True)])
def test_that_letters_match_in_their_order(typed: str, text: str, found: bool) -> None:
    assert (match(typed, text) is not None) == found


def test_that_a_match_in_one_piece_is_better_than_a_spread_one() -> None:
    together, spread = match("run", "Run: New run"), match("run", "Reset the unknown")
    assert together is not None and spread is not None and together < spread


def test_that_the_key_list_names_every_shortcut(working: Window) -> None:
    working.show_keys()
    dialog = working.findChild(KeyList)
    assert dialog is not None
    table = dialog.findChild(QTreeWidget)
    assert table is not None
    rows = [table.topLevelItem(n) for n in range(table.topLevelItemCount())]
    told = {row.text(1) for row in rows if row is not None}
    assert told >= {spec.shortcut for spec in working.actions_.specs.values() if spec.shortcut}
    dialog.close()


def test_that_stop_is_disabled_while_nothing_runs(working: Window) -> None:
    working.actions_.refresh()
    assert not working.actions_.by_id["run.stop"].isEnabled()
    assert working.actions_.by_id["run.start"].isEnabled()
    assert {spec.id for spec in ACTIONS if spec.id not in working.actions_.by_id} == set(SUBMENUS)


# Files -----------------------------------------------------------------------------------------------------


def drop(window: Window, *paths: Path) -> None:
    data = QMimeData()
    data.setUrls([QUrl.fromLocalFile(str(path)) for path in paths])
    buttons, keys = Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier
    entered = QDragEnterEvent(QPoint(9, 9), Qt.DropAction.CopyAction, data, buttons, keys)
    window.dragEnterEvent(entered)
    assert entered.isAccepted()
    window.dropEvent(QDropEvent(QPointF(9, 9), Qt.DropAction.CopyAction, data, buttons, keys))


def test_that_dropped_files_are_opened_shown_and_remembered(working: Window, run_file: Path) -> None:
    drop(working, run_file)
    assert working.session is not None and len(working.session.runs) == 1
    assert working.host.current == "live"
    menu = QMenu()
    working.files.fill_recent(menu)
    assert [action.text() for action in menu.actions()] == [run_file.name]


def test_that_a_file_that_is_no_run_becomes_a_notice(working: Window, notices: Notices, tmp_path: Path) -> None:
    stranger = tmp_path / "notes.h5"
    stranger.write_text("not a run", encoding="utf-8")
    drop(working, stranger)
    assert working.session is not None and not working.session.runs
    assert "notes.h5" in notices.entries()[0].notice.text
    assert working.host.current == "setup"


def test_that_a_recent_file_that_is_gone_cannot_be_chosen(working: Window, tmp_path: Path) -> None:
    working.settings.remember_file(tmp_path / "gone.h5")
    menu = QMenu()
    working.files.fill_recent(menu)
    assert not menu.actions()[0].isEnabled()


def test_that_a_problem_of_the_state_is_shown(working: Window, notices: Notices) -> None:
    assert working.session is not None
    working.session.notice.emit(Problem("The disk is full.", "details", "warning"))
    entry = notices.entries()[0]
    assert (entry.notice.severity, entry.notice.text, entry.notice.details) == (
        "warning",
        "The disk is full.",
        "details",
    )


def test_that_a_note_on_damage_goes_with_its_run(working: Window, run_file: Path, qtbot: QtBot) -> None:
    """It stayed in the strip, over whatever was opened next."""
    cut = run_file.with_name("cut.h5")
    cut.write_bytes(run_file.read_bytes()[:-100])
    drop(working, cut)
    session = working.session
    assert session is not None
    qtbot.waitUntil(lambda: len(session.runs) == 1)
    told = "cut.h5: The file is cut short"
    qtbot.waitUntil(lambda: any(told in each.text() for each in working.banners.findChildren(QLabel)))
    session.runs.close(next(iter(session.runs)))
    qtbot.waitUntil(
        lambda: not any(each.isVisible() and told in each.text() for each in working.banners.findChildren(QLabel))
    )
    assert any(told in entry.notice.text for entry in working.notices.entries())


# The status bar --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0 s"), (0.4, "0 s"), (9.4, "9 s"), (59.7, "1:00"), (75, "1:15"), (3725, "1:02:05")]
)
def test_that_a_time_span_is_short_and_exact(seconds: float, text: str) -> None:
    assert duration(seconds) == text
