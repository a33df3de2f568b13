"""Error: replayed steps beside a run, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from precgui.gui.panels.inspect.panel import InspectPanel
from precgui.gui.panels.inspect.shadow.error_tab import ErrorTab, left_together
from precgui.gui.panels.inspect.shadow.error_views import ErrorViews
from precgui.gui.session import Session
from precgui.runs.replays import REPLAYS, ReplayedLine, StepReplay
from tests.gui.conftest import write_run
from tests.gui.panels.inspect.conftest import lead_to_tabs


def line(number: int, share: float, left: float | None, measured: float | None = None) -> dict[str, Any]:
    return {"line": f"model.py:{number}", "module": "blocks.*", "source": "<b>x + 64 - 64</b>", "share": share,
            "left_predicted": left, "left_measured": measured}  # fmt: skip


def replay(step: int, **changed: Any) -> StepReplay:
    told = {
        "step": step, "verdict": "problems", "message": f"model.py:3 makes 64% of the error of step {step}.",
        "precision_is_to_blame": True, "gradient_error": 0.05, "ideal_error": 0.01, "explained": 1.0,
        "mechanisms": {"flush": 0.0, "rounding": 0.8, "casts": 0.2, "flips": 0.0, "overflow": 0.0},
        "lines": [line(3, 0.64, 0.6, 0.55), line(7, 0.3, 0.84), line(9, -0.1, 1.0)], "first_nonfinite": None,
        "blamed": ["model.py:3"],
    }  # fmt: skip
    return StepReplay.model_validate({**told, **changed})


@pytest.fixture
def shown(qtbot: QtBot, tmp_path: Path) -> tuple[ErrorTab, Path]:
    session = Session()
    path = write_run(tmp_path / "one.h5", "one")
    key = session.runs.open_file(path)
    panel = InspectPanel(session)
    lead_to_tabs(panel, session)
    qtbot.addWidget(panel)
    panel.resize(1000, 600)
    panel.show()
    qtbot.waitExposed(panel)
    session.requests.inspect(key, "error")
    tab = panel.tab("error")
    assert isinstance(tab, ErrorViews)
    tab.show_run(key)
    return tab.lines, path


def test_that_a_run_without_replays_says_how_to_make_one(shown: tuple[ErrorTab, Path]) -> None:
    tab, _ = shown
    assert tab.is_empty
    assert "Choose a step above" in tab.empty.text.text()


def test_that_a_replay_shows_its_verdict_its_lines_and_the_one_to_blame(shown: tuple[ErrorTab, Path]) -> None:
    tab, path = shown
    REPLAYS.keep(path, replay(3))
    REPLAYS.keep(path, replay(5, verdict="healthy", message="All is well.", blamed=[]))
    tab.refresh()
    assert not tab.is_empty
    assert tab.step_choice.count() == 2
    assert "step 3" in tab.verdict.text()
    assert "rounding 80.0%" in tab.mechanisms.text()
    texts = [tab.tree.topLevelItem(row).text(2) for row in range(tab.tree.topLevelItemCount())]
    assert texts == ["model.py:3", "model.py:7", "model.py:9"]
    assert tab.left.text().startswith("55% of the error")
    tab.step_choice.setCurrentIndex(1)
    assert tab.verdict.text() == "All is well."
    assert tab.left.text().startswith("Tick lines")


def test_that_ticked_lines_say_what_is_left_of_the_error(shown: tuple[ErrorTab, Path]) -> None:
    tab, path = shown
    REPLAYS.keep(path, replay(3))
    tab.refresh()
    tab.tree.topLevelItem(1).setCheckState(0, Qt.CheckState.Checked)
    assert tab.left.text().startswith("About 26%")


def test_that_what_cannot_be_predicted_is_not_told() -> None:
    lines = [ReplayedLine.model_validate(line(1, 0.5, None)), ReplayedLine.model_validate(line(2, 0.36, 0.8))]
    assert left_together(lines) is None
    assert left_together(lines[1:]) == pytest.approx(0.8)
