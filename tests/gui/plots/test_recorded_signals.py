"""Whether a signal is recorded is asked with each step that comes, so no row is looked at twice."""

from __future__ import annotations

import numpy as np
from pytestqt.qtbot import QtBot

from precgui.gui.panels.live.panel import LivePanel
from precgui.gui.plots.signals import READ_AT_ONCE, RecordedSignals
from precgui.gui.session import Session
from precgui.runs.signals import Axis, Series
from tests.gui.plotted import Opened, training_run
from tests.runs.synthetic import live_run


class _GrowingScale:
    """A run of which only the loss scale is asked for."""

    def __init__(self, *scales: float) -> None:
        self.scales = np.array(scales)

    def series(self, name: str, over: Axis = "step") -> Series:
        return np.arange(len(self.scales), dtype=float), self.scales


def test_that_a_scale_is_shown_once_it_moves() -> None:
    run, recorded = _GrowingScale(np.nan, 8.0, 8.0), RecordedSignals()
    assert not recorded.has("scale", [run])  # type: ignore[list-item]
    run.scales = np.append(run.scales, 4.0)
    assert recorded.has("scale", [run])  # type: ignore[list-item]


def test_that_each_row_is_looked_at_once() -> None:
    run, recorded = _GrowingScale(8.0, 8.0), RecordedSignals()
    assert not recorded.has("scale", [run])  # type: ignore[list-item]
    run.scales = np.array([4.0, 4.0, 8.0])  # rows that were looked at do not change in a run
    assert not recorded.has("scale", [run])  # type: ignore[list-item]


def test_that_a_run_without_steps_has_its_loss_alone() -> None:
    recorded, run = RecordedSignals(), live_run([])
    assert [key for key in ("loss", "scale", "events", "power") if recorded.has(key, [run])] == ["loss"]


def test_that_many_runs_are_looked_at_in_several_turns(qtbot: QtBot) -> None:
    """All files in one turn made the window stand still when Live was first shown with thirty runs."""
    count = 2 * READ_AT_ONCE + 3
    runs = [training_run(f"run {number}", 400, scaled=number == count - 1) for number in range(count)]
    recorded = RecordedSignals()
    turns = [recorded.read(runs) for _ in range(4)]
    assert [(len(known), left) for known, left in turns] == [
        (READ_AT_ONCE, True), (2 * READ_AT_ONCE, True), (count, False), (count, False)
    ]  # fmt: skip
    session = Session()
    panel = LivePanel(session)
    qtbot.addWidget(panel)
    panel.resize(1200, 900)
    for run in runs:
        session.runs.put(Opened(run.run_id, run, run.run_id, 0, 0))
    qtbot.waitUntil(lambda: panel.plots.frames[2].isVisibleTo(panel))  # of the last run alone
