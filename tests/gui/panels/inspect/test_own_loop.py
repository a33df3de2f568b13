"""Tabs of a recorded loop, which precgui cannot start: lines to paste, or one sentence, and no controls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PySide6.QtGui import QGuiApplication

from precgui.config import OWN_LOOP, RunConfig
from precgui.gui.panels.inspect.panel import InspectPanel
from precgui.gui.session import Session
from precgui.runs.replays import REPLAYS
from tests.gui.panels.inspect.test_error_tab import replay
from tests.runs.synthetic import open_writer, synthetic_events


@pytest.fixture
def key(tmp_path: Path, session: Session, panel: InspectPanel) -> str:
    with open_writer(tmp_path / "own.h5", RunConfig(task=OWN_LOOP, precision="bf16-amp")) as writer:
        for event in synthetic_events(20):
            writer(event)
    opened = session.runs.open_file(tmp_path / "own.h5")
    assert opened is not None
    return opened


@pytest.mark.parametrize("name", ["step", "error"])
def test_that_step_and_error_offer_lines_to_paste_and_show_what_they_kept(
    tmp_path: Path, session: Session, panel: InspectPanel, key: str, name: str
) -> None:
    session.requests.inspect(key, name)
    tab: Any = panel.tab(name)
    tab = tab if name == "step" else tab.lines
    block = tab.bar.own_loop
    tab.show_run(key)
    assert not block.isHidden() and tab.bar.controls.isHidden() and tab.empty.text.isHidden()
    block.copy.click()
    copied = QGuiApplication.clipboard().text()
    assert f"precgui.keep_shadow(shadow, {str(tmp_path / 'own.h5')!r}, 20)" in copied
    compile(copied, "pasted", "exec")
    if name == "error":
        REPLAYS.keep(tmp_path / "own.h5", replay(20))
        tab.refresh()
        assert not tab.is_empty and tab.chosen.step == 20


def test_that_the_other_tabs_say_in_one_sentence_why_they_stay_empty(
    session: Session, panel: InspectPanel, key: str
) -> None:
    error: Any = panel.tab("error")
    for name in ("error", "time", "memory"):
        session.requests.inspect(key, name)
        tab: Any = panel.tab(name)
        tab.show_run(key)
    time: Any = panel.tab("time")
    memory: Any = panel.tab("memory")
    for view in (error.layers, error.twins, time.step, memory):
        block = view.bar.own_loop
        assert not block.isHidden() and block.copy.isHidden() and view.bar.controls.isHidden()
        assert "task of your own" in block.sentence.text()
    assert not panel.again_button.isEnabled()


def test_that_a_run_of_precgui_keeps_its_controls(
    tmp_path: Path, session: Session, panel: InspectPanel, key: str
) -> None:
    with open_writer(tmp_path / "started.h5", RunConfig()) as writer:
        for event in synthetic_events(20):
            writer(event)
    session.requests.inspect(key, "step")
    tab: Any = panel.tab("step")
    started = session.runs.open_file(tmp_path / "started.h5")
    assert started is not None
    tab.show_run(started)
    assert tab.bar.own_loop.isHidden() and not tab.bar.controls.isHidden() and tab.bar.button.isEnabled()
