"""A folder of many runs in the window, without a screen: time to the first row and to the last, and CPU seconds.

python benchmarks/many_runs.py --runs 5000
The files are hard links of one short run: reading each costs as much as another file would, but for the disk.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

from PySide6.QtWidgets import QApplication

from precgui.config import build
from precgui.events import Evaluated, RunEnded, RunStarted, StepDone
from precgui.gui.panels.library.panel import LibraryPanel
from precgui.gui.session import Session
from precgui.runs.file.writer import RunWriter


def make(folder: Path, runs: int) -> None:
    config = build({"title": "one of many"})
    first = folder / "run00000.h5"
    with RunWriter(first, config, run_id="7f", created="2026-01-01T00:00:00+00:00", machine={}, environment={}) as emit:
        emit(RunStarted(0.0, 20, 20, "cpu"))
        for step in range(1, 21):
            emit(StepDone(step, 0.1 * step, 1 / step, 1.0, False, 0.05, 1.0, 0.09, 0.01, 64, float("nan")))
        emit(Evaluated(20, 1, 2.0, 0.3, 0.75))
        emit(RunEnded(2.1, "completed"))
    for number in range(1, runs):
        (folder / f"run{number:05d}.h5").hardlink_to(first)


def look(app: QApplication, folder: Path, runs: int) -> tuple[float, float, float, float]:
    """Seconds to the first row and to the last, CPU seconds of the process, longest gap of the event loop."""
    begin, cpu, first, gap = time.perf_counter(), time.process_time(), 0.0, 0.0
    session = Session()
    session.set_folder(folder)
    panel = LibraryPanel(session)
    panel.resize(1280, 800)
    panel.show()
    last = time.perf_counter()
    while panel.table.rowCount() < runs or panel._folder.is_reading:
        app.processEvents()
        time.sleep(0.002)
        now = time.perf_counter()
        gap, last = max(gap, now - last), now
        first = first or (now - begin if panel.table.rowCount() else 0.0)
    told = time.perf_counter() - begin, time.process_time() - cpu
    panel.close()
    panel.deleteLater()
    session.deleteLater()
    return first, *told, gap


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        os.environ["PRECGUI_STATE"] = f"{place}/state"
        folder = Path(place, "runs")
        folder.mkdir()
        make(folder, options.runs)
        app = QApplication([])
        for session in ("first session", "next session, with the index"):
            first, total, cpu, gap = look(app, folder, options.runs)
            print(f"{session}: first row {first:.2f} s, last {total:.2f} s, {cpu:.1f} CPU s, longest gap {gap:.2f} s",
                  flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
