"""A hundred runs of ten thousand steps in the plots of the window, without a screen: the first picture, and panning.

    python benchmarks/many_curves.py [--runs 100] [--steps 10000]

A frame of a pan is a new range, all lines drawn anew for it, and one painting of the window.

Seconds are CPU time of the process beside those of the clock, of which the first picture has half a second of waiting.
Target: first picture below 2 s, a frame of a pan below 16.7 ms.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

import numpy as np
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from precgui.config import build
from precgui.events import RunEnded, RunStarted, StepDone
from precgui.gui.open_runs import OpenRun
from precgui.gui.plots.linked import LinkedPlots
from precgui.runs.live import LiveRun

PAUSE_MS = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--steps", type=int, default=10_000)
    args = parser.parse_args()
    app = QApplication([])
    opened = [_opened(number, args.steps) for number in range(args.runs)]
    plots = LinkedPlots(["loss"])
    plots.resize(1200, 700)
    plots.show()
    app.processEvents()

    def first_picture() -> None:
        plots.set_runs(opened)
        QTest.qWait(PAUSE_MS)  # lines follow at the next ticks
        plots.grab()

    print("first picture: {:.2f} s of CPU time, {:.2f} s by the clock".format(*_timed(first_picture)))
    plots.show_range(0, args.steps / 4)
    plots.draw_pending()
    app.processEvents()
    frames = []
    for place in range(60):
        left = args.steps / 4 + place * args.steps / 200

        def pan(left: float = left) -> None:
            plots.show_range(left, left + args.steps / 4)
            plots.draw_pending()
            app.processEvents()

        frames.append(_timed(pan))
    cpu, wall = ([each[side] * 1e3 for each in frames] for side in (0, 1))
    told = f"median {statistics.median(cpu):.1f} ms of CPU time, largest {max(cpu):.1f} ms"
    print(f"a frame of a pan: {told}; by the clock median {statistics.median(wall):.1f} ms")


def _opened(number: int, steps: int) -> OpenRun:
    draw = np.random.default_rng(number)
    loss = np.exp(-np.arange(steps) / steps * 4) * draw.lognormal(sigma=0.2, size=steps)
    run = LiveRun(build({"title": f"run {number}"}), run_id=str(number), created="", machine={}, environment={})
    run.extend([RunStarted(0.0, steps, steps, "cpu", {})])
    run.extend(
        [StepDone(n, n * 0.01, float(v), 1.0, False, 0.1, 1.0, 0.01, 0.0, 64, 1.0) for n, v in enumerate(loss, 1)]
    )
    run.extend([RunEnded(steps * 0.01, "completed")])
    return OpenRun(f"{number}", run, f"run {number}", number % 7, number % 4)


def _timed(work: Callable[[], None]) -> tuple[float, float]:
    begin, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - begin, time.perf_counter() - wall


if __name__ == "__main__":
    main()
