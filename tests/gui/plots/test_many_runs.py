"""Plots of many runs: their files are read a few in a turn of the event loop, and all are drawn in the end."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pytestqt.qtbot import QtBot

from precgui.gui.plots import curve_chart
from precgui.gui.plots.linked import LinkedPlots
from precgui.gui.plots.signals import READ_AT_ONCE
from tests.gui.plotted import ArrayRun, items, opened, training_run


def runs_of(count: int) -> list[ArrayRun]:
    return [training_run(f"run {number}", 50 + number, seed=number) for number in range(count)]


def test_that_another_signal_of_many_runs_is_read_in_several_turns(
    qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[str] = Counter()
    series = ArrayRun.series

    def counted(run: ArrayRun, name: str, *more: Any) -> Any:
        asked[run.run_id] += name == "grad_norm"
        return series(run, name, *more)

    monkeypatch.setattr(ArrayRun, "series", counted)
    runs = runs_of(READ_AT_ONCE + 3)
    plots = LinkedPlots()
    qtbot.addWidget(plots)
    plots.resize(900, 700)
    with qtbot.waitExposed(plots):
        plots.show()
    plots.set_runs([opened(run) for run in runs])
    qtbot.waitUntil(lambda: not plots.frames[0].chart.has_unread_runs)
    plots.frames[0].show_signal("grad_norm")
    assert sum(times > 0 for times in asked.values()) == READ_AT_ONCE
    qtbot.waitUntil(lambda: not plots.frames[0].chart.has_unread_runs)
    assert [asked[run.run_id] for run in runs] == [1] * len(runs)
    plots.draw_pending()
    for run in runs:
        (line,) = items(plots.frames[0].chart, "line", run.run_id)
        np.testing.assert_array_equal(line.getData()[1], np.log10(run.values["grad_norm"]))


def test_that_a_turn_ends_after_one_run_that_takes_long_to_read(qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    plots = LinkedPlots()
    qtbot.addWidget(plots)
    plots.resize(900, 700)
    plots.set_runs([opened(run) for run in runs_of(READ_AT_ONCE)])
    plots.draw_pending()
    seconds = iter(range(10_000))
    monkeypatch.setattr(curve_chart, "time", SimpleNamespace(perf_counter=lambda: float(next(seconds))))
    asked = list[str]()
    series = ArrayRun.series

    def counted(run: ArrayRun, name: str, *more: Any) -> Any:
        asked.append(run.run_id)
        return series(run, name, *more)

    monkeypatch.setattr(ArrayRun, "series", counted)
    plots.frames[0].show_signal("grad_norm")
    for turn in range(1, 4):
        assert len(set(asked)) == turn
        plots.frames[0].chart.pull()


def test_that_all_runs_are_drawn_where_everything_is_drawn_at_once(qtbot: QtBot) -> None:
    runs = runs_of(2 * READ_AT_ONCE + 1)
    plots = LinkedPlots()
    qtbot.addWidget(plots)
    plots.resize(900, 700)
    plots.set_runs([opened(run) for run in runs])
    plots.draw_pending()
    assert not plots.frames[0].chart.has_unread_runs
    assert plots.last_x() == max(run.steps[-1] for run in runs)
