"""How soon the Diagnose panel says its first verdict on a long run: 10 000 steps with 200 tensors.

`python benchmarks/first_verdict.py [--times 5] [--keep FILE]` opens the file in the panel, offscreen, and prints the
seconds until the verdict stands in the table, by the clock and of CPU time of the process (asked: below 0.5 s), and
the longest time for which the window did not answer meanwhile.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

from PySide6.QtCore import QEventLoop, QTimer
from PySide6.QtWidgets import QApplication

from precgui.gui.panels.diagnose.panel import DiagnosePanel
from precgui.gui.session import Session

sys.path.insert(0, str(Path(__file__).parent.parent))
from diagnosis import write_long_run

LONGEST_S = 60.0


def verdict_s(app: QApplication, path: Path) -> tuple[float, float, float]:
    """Seconds by the clock and of CPU time from opening the file to its sentence, and the longest gap between two turns
    of the event loop, in seconds."""
    session = Session()
    panel = DiagnosePanel(session)
    panel.resize(1000, 700)
    panel.show()
    app.processEvents()
    ticks = [time.perf_counter()]
    timer = QTimer(interval=2)
    timer.timeout.connect(lambda: ticks.append(time.perf_counter()))
    timer.start()
    clock, cpu = time.perf_counter(), time.process_time()
    session.open_file(path)
    while not panel.diagnoses and time.perf_counter() - clock < LONGEST_S:
        app.processEvents(QEventLoop.ProcessEventsFlag.WaitForMoreEvents)
    panel.grab()
    ticks.append(time.perf_counter())
    gap = max(after - before for before, after in itertools.pairwise(ticks))
    result = ticks[-1] - clock, time.process_time() - cpu, gap
    panel.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="the run file; made when it is not there")
    args = parser.parse_args()
    app = QApplication.instance() or QApplication([])
    assert isinstance(app, QApplication)
    with tempfile.TemporaryDirectory() as folder:
        path = args.keep or Path(folder) / "long.h5"
        if not path.exists():
            write_long_run(path)
        taken = [verdict_s(app, path) for _ in range(args.times)]
    for title, values in zip(("clock", "CPU time", "gap"), zip(*taken, strict=True), strict=True):
        print(f"{title}: first {values[0]:.2f} s, median {statistics.median(values):.2f} s")


if __name__ == "__main__":
    main()
