"""How often in a second the Tensors panel answers a loss scale that is dragged: 200 tensors, everything drawn.

    python benchmarks/whatif_slider.py [--tensors 200] [--moves 120]

Each move sets the slider and waits until prediction, table, sentence and lines are painted. Target: 60 a second.
The CPU time of a move stands beside it, since a busy machine lets wall time grow.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

from open_large import write_tensors
from PySide6.QtWidgets import QApplication

from precgui.gui.panels.inspect.tensors.panel import TensorsPanel
from precgui.gui.session import Session


def moves(panel: TensorsPanel, count: int) -> tuple[list[float], list[float]]:
    """Wall and CPU milliseconds of each move, from the slider to the last paint."""
    wall_ms, cpu_ms = [], []
    for move in range(count):
        while panel.bar._pace.isActive():
            QApplication.processEvents()
        begin, cpu = time.perf_counter(), time.process_time()
        panel.bar.slider.setValue(move % 48 - 12)
        QApplication.processEvents()
        wall_ms.append(1e3 * (time.perf_counter() - begin))
        cpu_ms.append(1e3 * (time.process_time() - cpu))
    return wall_ms, cpu_ms


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tensors", type=int, default=200)
    parser.add_argument("--moves", type=int, default=120)
    asked = parser.parse_args()
    application = QApplication(sys.argv[:1])
    application.setStyle("Fusion")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.h5"
        write_tensors(path, 60, asked.tensors)
        session = Session()
        panel = TensorsPanel(session)
        session.run_added.connect(panel.show_run)
        panel.resize(1280, 760)
        panel.show()
        session.open_file(path)
        moves(panel, 10)
        wall_ms, cpu_ms = moves(panel, asked.moves)
        panel.close()
    cpu = statistics.median(cpu_ms)
    print(f"{asked.tensors} tensors: a move takes {cpu:.1f} ms of CPU time, {statistics.median(wall_ms):.1f} ms in all")
    print(f"{1e3 / cpu:.0f} answers a second of CPU time, {1e3 / statistics.median(wall_ms):.0f} by the clock")
    return 0 if cpu < 1e3 / 60 else 1


if __name__ == "__main__":
    sys.exit(main())
