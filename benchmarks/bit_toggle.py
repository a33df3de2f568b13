"""How long a toggled bit takes with all formats shown: from the click to the last paint, everything computed anew.

    python benchmarks/bit_toggle.py [--toggles 200]

The bits clicked go over all rows. Target: less than 16 ms in the median, of CPU time, since a busy machine lets wall
time grow; that stands beside it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from types import SimpleNamespace

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from precgui.formats.registry import formats, get
from precgui.gui.panels.formats.bits import BitsTab
from precgui.gui.theme import themes

TARGET_MS = 16.0


def toggles(tab: BitsTab, count: int) -> tuple[list[float], list[float]]:
    """Wall and CPU milliseconds of each click on a bit, all paints included."""
    places = [(name, bit) for name in formats() for bit in range(get(name).bits)]
    wall_ms, cpu_ms = [], []
    for place in range(count):
        name, bit = places[place * 97 % len(places)]
        point = tab.grid.cell_rect(name, bit).center()
        begin, cpu = time.perf_counter(), time.process_time()
        QTest.mouseClick(tab.grid, Qt.MouseButton.LeftButton, pos=point)
        QApplication.processEvents()
        wall_ms.append(1e3 * (time.perf_counter() - begin))
        cpu_ms.append(1e3 * (time.process_time() - cpu))
    return wall_ms, cpu_ms


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toggles", type=int, default=200)
    asked = parser.parse_args()
    application = QApplication(sys.argv[:1])
    application.setStyle("Fusion")
    themes().set_mode("light")
    tab = BitsTab(SimpleNamespace(runs={}))
    tab.menu.choose(list(formats()))
    tab.resize(1280, 2400)  # high enough for all rows to be painted
    tab.show()
    toggles(tab, 20)
    wall_ms, cpu_ms = toggles(tab, asked.toggles)
    for what, found in (("CPU time", cpu_ms), ("by the clock", wall_ms)):
        late = sorted(found)[int(0.99 * len(found))]
        print(
            f"{len(formats())} formats, {asked.toggles} bits toggled, {what}: {statistics.median(found):.1f} ms in the "
            f"median, {late:.1f} ms at the 99th percentile, {max(found):.1f} ms at most"
        )
    return 0 if statistics.median(cpu_ms) < TARGET_MS else 1


if __name__ == "__main__":
    sys.exit(main())
