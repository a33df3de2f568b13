"""How late the window's event loop is while the bench runs in view, in turns with none running.

    python benchmarks/bench_window.py [--seconds 8] [--pairs 3]

A timer of 5 ms tells how much later than that it came. The bench is the real one, in a process of its own, as the
button Measure starts it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

import numpy as np
from PySide6.QtCore import QEventLoop, QTimer
from PySide6.QtWidgets import QApplication

from precgui.gui.panels.hardware.bench_tab import MeasuredTab
from precgui.gui.panels.hardware.panel import TABS, HardwarePanel

TICK_S = 0.005


def lateness_ms(seconds: float) -> np.ndarray:
    """Of each tick, in the order in which they came."""
    late: list[float] = []
    before = [time.perf_counter()]

    def tick() -> None:
        now = time.perf_counter()
        late.append(max(0.0, now - before[0] - TICK_S) * 1e3)
        before[0] = now

    timer = QTimer(interval=round(TICK_S * 1e3))
    timer.timeout.connect(tick)
    timer.start()
    turn(seconds)
    timer.stop()
    return np.array(late)


def turn(seconds: float) -> None:
    """The event loop for this long; to quit the application would end the bench, too."""
    loop = QEventLoop()
    QTimer.singleShot(round(seconds * 1e3), loop.quit)
    loop.exec()


def measure(seconds: float, pairs: int) -> None:
    panel = HardwarePanel(None)
    panel.resize(1140, 760)
    panel.show()
    index = [name for name, _, _ in TABS].index("Measured")
    panel.tabs.setCurrentIndex(index)
    bench = panel.tab(index)
    assert isinstance(bench, MeasuredTab)
    while panel.model.machine is None:
        turn(0.2)
    turn(4.0)  # torch is asked meanwhile
    for _ in range(pairs):
        report("no bench", lateness_ms(seconds))
        bench.start()
        while not bench.view.rows.rowCount():
            turn(0.2)
        report("bench", lateness_ms(seconds))
        bench.stop.click()
        while not bench.measure.isEnabled():
            turn(0.2)
    panel.close()


def report(name: str, late: np.ndarray) -> None:
    middle, high = np.quantile(late, (0.5, 0.99))
    load = os.getloadavg()[0]
    print(f"{name:9} median {middle:.2f} ms, 99th percentile {high:.1f} ms, most {late.max():.0f} ms, load {load:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--pairs", type=int, default=3)
    asked = parser.parse_args()
    application = QApplication(sys.argv[:1])
    with tempfile.TemporaryDirectory() as own:
        os.environ["PRECGUI_STATE"] = own
        measure(asked.seconds, asked.pairs)
