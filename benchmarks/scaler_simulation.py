"""CPU time from a moved slider of Inspect > Loss scale to the redrawn plots: 1000 steps, three policies.

Prints the median and the largest of 60 moves. Usage: QT_QPA_PLATFORM=offscreen python benchmarks/scaler_simulation.py
"""

from __future__ import annotations

import statistics
import time

from PySide6.QtWidgets import QApplication

from precgui.gui.panels.inspect.scaler.panel import ScalerTab
from precgui.gui.session import Session

MOVES = 60


def main() -> None:
    application = QApplication([])
    tab = ScalerTab(Session())
    tab.resize(1080, 760)
    tab.show()
    tab.show_run(None)
    for row in tab.rows:
        row.box.setChecked(True)
    application.processEvents()
    slider, times = tab.rows[0].initial.slider, []
    for move in range(MOVES):
        begin = time.process_time()
        slider.setValue(move % (slider.maximum() + 1))
        tab.redraw()
        application.processEvents()
        times.append(1e3 * (time.process_time() - begin))
    print(
        f"{len(tab.gradients.steps)} steps, {len(tab.rows)} policies, {MOVES} moves of a slider, simulated and drawn:"
    )
    print(f"median {statistics.median(times):.1f} ms of CPU, largest {max(times):.1f} ms")


if __name__ == "__main__":
    main()
