"""Examples in the window: from Help and from empty places, marked, without a trace in what is the user's own."""

from __future__ import annotations

from PySide6.QtWidgets import QMenu
from pytestqt.qtbot import QtBot

from precgui.examples import EXAMPLES, example
from precgui.gui.kit.empty_state import EmptyState
from precgui.gui.panels.compare.panel import ComparePanel
from precgui.gui.panels.diagnose.panel import DiagnosePanel
from precgui.gui.panels.live.panel import LivePanel
from precgui.gui.run_task import EXAMPLE
from precgui.gui.shell.window import Window
from precgui.paths import state_dir


def entry(menu: QMenu, title: str) -> object:
    return next(action for action in menu.actions() if action.text().replace("&", "") == title)


def test_that_help_opens_an_example_in_diagnose_without_a_trace(working: Window, qtbot: QtBot) -> None:
    working.actions_.by_id["help.example_clip-before-unscale"].trigger()
    assert working.session is not None
    opened = next(iter(working.session.runs.values()))
    assert opened.name == "Example: clip before unscale"
    assert working.host.current == "diagnose"
    panel = working.host.panels["diagnose"]
    assert isinstance(panel, DiagnosePanel)
    qtbot.waitUntil(lambda: bool(panel.cards))
    assert panel.cards[0].title.text() == "Gradients are clipped before they are unscaled"
    assert working.settings["files/recent"] == []
    assert not (state_dir() / "step-times").exists()
    working.session.requests.inspect(opened.key, "overview")
    note = working.host.panels["inspect"].tab("overview").note  # type: ignore[attr-defined]
    qtbot.waitUntil(note.isReadOnly)
    assert "example" in note.toolTip()


def test_that_help_opens_the_example_of_a_study_that_cannot_grow(working: Window, qtbot: QtBot) -> None:
    working.actions_.by_id["help.example_digits-study"].trigger()
    compare = working.host.panels["compare"]
    assert isinstance(compare, ComparePanel)
    groups = compare.groups
    qtbot.waitUntil(lambda: groups.report_content is not None)
    assert groups.source.currentText() == "Study Example: study of the digits"
    assert not groups.more_seeds.isVisible()
    assert not groups.targets_button.isEnabled()
    working.show_panel("live/study")
    live = working.host.panels["live"]
    assert isinstance(live, LivePanel)
    qtbot.waitUntil(lambda: "example" in live.study.state.text())
    assert not live.study.seeds_button.isEnabled()


def test_that_each_empty_place_opens_an_example(working: Window, qtbot: QtBot) -> None:
    session = working.session
    assert session is not None
    for name in ("live", "compare", "inspect", "diagnose", "library"):
        working.show_panel(name)
        panel = working.host.panels[name]
        states = [each for each in panel.findChildren(EmptyState) if each.isVisible()]
        qtbot.waitUntil(lambda states=states: all(each.heading.text() != "Reading the folder" for each in states))
        titles = [action.text() for action in states[0].menu.actions()]
        assert titles == [each.short_title for each in EXAMPLES]
        entry(states[0].menu, "Collapsed loss scale").trigger()  # type: ignore[attr-defined]
        key = next(iter(session.runs))
        assert working.host.current == ("diagnose" if name == "library" else name)
        assert session.runs.current == key
        session.runs.close(key)


def test_that_nothing_is_measured_beside_an_example(working: Window) -> None:
    from precgui.gui.panels.diagnose.measurement import REFUSALS

    each = example("scale-collapse")
    assert each is not None and working.session is not None
    key = working.session.runs.open_file(each.path)
    assert key is not None
    assert REFUSALS.reason(working.session.runs[key].run) == EXAMPLE
