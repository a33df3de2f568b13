"""Undo: a run that was closed or deleted, and another start of the form, by Ctrl+Z or in the notice."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtWidgets import QToolButton
from pytestqt.qtbot import QtBot

from precgui.gui.panels.library.panel import LibraryPanel
from precgui.gui.panels.setup.panel import SetupPanel
from precgui.gui.shell.window import Window
from precgui.runs.bin import can_restore
from precgui.runs.library import annotate
from tests.gui.conftest import write_run
from tests.gui.panels.library.test_panel import choose


def undo_buttons(window: Window) -> list[QToolButton]:
    buttons = [b for banner in window.banners.banners.values() for b in banner.findChildren(QToolButton)]
    return [button for button in buttons if button.text() == "Undo"]


def test_that_a_run_that_was_closed_comes_back_as_the_current_one(working: Window, tmp_path: Path) -> None:
    session, action = working.session, working.actions_.by_id["file.undo"]
    assert session is not None and not action.isEnabled()
    first, second = (session.runs.open_file(write_run(tmp_path / f"{name}.h5", name)) for name in ("one", "two"))
    assert first is not None and second is not None
    session.runs.choose(second)
    session.runs.close(second, by_hand=True)
    assert session.runs.current == first and action.isEnabled()
    [button] = undo_buttons(working)
    assert "“two” was closed." in [banner.notice.text for banner in working.banners.banners.values()]
    action.trigger()
    assert session.runs.current == second and not undo_buttons(working) and not action.isEnabled()
    session.runs.close(second)
    assert not action.isEnabled()  # the program closed it
    assert button is not None


def test_that_another_recipe_is_undone_with_all_that_was_changed(working: Window) -> None:
    setup = working.host.load("setup")
    assert isinstance(setup, SetupPanel) and working.session is not None
    setup.form.set_value(setup.base.model_copy(update={"seed": 7}))
    setup.recipes.setCurrentIndex(setup.recipes.findText("gpt-quick"))
    setup.recipes.activated.emit(setup.recipes.currentIndex())
    value = setup.form.value()
    assert value is not None and setup.source == "gpt-quick" and value.task != "digits"
    setup.new_run()
    [*_, button] = undo_buttons(working)
    button.click()
    working.undo()
    value = setup.form.value()
    assert value is not None and (setup.source, value.task, value.seed) == ("digits-quick", "digits", 7)
    working.undo()  # nothing is left
    assert working.session.undo.last is None


@pytest.mark.skipif(not can_restore(), reason="the bin of this system is its file manager's alone")
def test_that_a_deleted_run_comes_back_from_the_bin_with_its_note(
    qtbot: QtBot, working: Window, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.setattr("send2trash.plat_other.HOMETRASH_B", str(tmp_path / "share/Trash").encode(), raising=False)
    session = working.session
    assert session is not None
    path = write_run(session.folder / "kept.h5", "kept")
    annotate(path, "#mine")
    key = session.runs.open_file(path)
    working.show_panel("library")
    library = working.host.panels["library"]
    assert isinstance(library, LibraryPanel)
    qtbot.waitUntil(lambda: library.table.rowCount() == 1)
    choose(library, "kept.h5")
    library.ask_to_delete()
    library.bar.yes.click()
    qtbot.waitUntil(lambda: bool(undo_buttons(working)))
    assert not path.exists() and not session.runs
    working.undo()
    qtbot.waitUntil(lambda: key in session.runs)
    assert path.exists() and list(path.parent.glob("kept*")) != [path]
