"""The column Diagnosis of Runs: filled one by one, broken runs first when it is sorted."""

from __future__ import annotations

import math
from pathlib import Path

from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from precgui.config import build
from precgui.events import RunEnded, RunStarted, StepDone
from precgui.gui.panels.library.panel import LibraryPanel
from precgui.gui.panels.library.table import DIAGNOSIS, TITLE
from precgui.gui.session import Session
from precgui.runs.file.writer import RunWriter
from tests.gui.conftest import write_run


def write_broken(path: Path) -> None:
    with RunWriter(
        path,
        build({"title": "broken"}),
        run_id="broken",
        created="2026-03-01T11:00:00+00:00",
        machine={},
        environment={},
    ) as writer:
        writer(RunStarted(0.0, total_steps=60, steps_per_epoch=60, device="cpu"))
        for step in range(1, 61):
            loss = 2.0 * 0.95**step if step < 21 else math.nan
            writer(StepDone(step, 0.1 * step, loss, 1.0, False, 0.05, 1.0, 0.09, 0.01, 64, math.nan))
        writer(RunEnded(6.0, "completed"))


def test_that_the_diagnosis_of_each_run_stands_in_runs_and_broken_ones_sort_first(qtbot: QtBot, tmp_path: Path) -> None:
    session = Session()
    session.set_folder(tmp_path / "runs")
    write_run(tmp_path / "runs" / "well.h5", "well")
    write_broken(tmp_path / "runs" / "broken.h5")
    panel = LibraryPanel(session)
    qtbot.addWidget(panel)
    panel.resize(1200, 700)
    panel.show()

    def column(number: int) -> list[str]:
        return [str(panel.filtered.index(row, number).data()) for row in range(panel.filtered.rowCount())]

    qtbot.waitUntil(lambda: len(column(DIAGNOSIS)) == 2 and "–" not in column(DIAGNOSIS))
    assert column(TITLE) == ["well", "broken"]
    healthy, broken = column(DIAGNOSIS)
    assert healthy == "Healthy" and "step 21" in broken
    panel.view.sortByColumn(DIAGNOSIS, Qt.SortOrder.AscendingOrder)
    assert column(TITLE) == ["broken", "well"]
    header = panel.view.horizontalHeader()
    assert header.visualIndex(DIAGNOSIS) == 3  # beside the status, within reach without scrolling
