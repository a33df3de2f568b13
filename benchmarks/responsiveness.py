"""How late the window is while a run feeds it, and what the window costs the run. Prints one JSON document.

    python benchmarks/responsiveness.py [--points 1000000] [--seconds 10] [--pairs 3]

(a) Lateness: four live plots are filled with up to `points` points each; a child process sends steps at the rate of a
real run; a 5 ms timer in the GUI thread notes how late it fires. Targets: 99th percentile below 5 ms.
(b) Loop: the same run under the window and from the command line, in pairs that alternate; the median of the ratios of
their speed. Target: 0.98 or more.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from PySide6.QtCore import QEventLoop, Qt, QTimer
from PySide6.QtWidgets import QApplication

from precgui.config import RunConfig
from precgui.events import Evaluated, Event, Incident, PowerRead, RunStarted, StepDone
from precgui.gui.panels.live import LivePanel
from precgui.gui.state import DRAIN_MS, OpenRun, State
from precgui.runs.live import LiveRun

TIMER_MS = 5
STEPS_PER_S = 400.0
BATCH_S = 0.05


def step(index: int, rng: np.random.Generator) -> StepDone:
    """A step with the noise of a real one; every thousandth is skipped."""
    loss = 2.3 * float(np.exp(-index / 3e5)) + 0.05 * abs(float(rng.standard_normal()))
    busy_s = 0.002 + 0.0002 * float(rng.random())
    return StepDone(
        step=index, time_s=index / STEPS_PER_S, loss=loss, scale=2.0 ** (16 + index // 5000 % 3),
        skipped=index % 1000 == 0, lr=0.05, grad_norm=float(rng.lognormal()), step_s=busy_s, data_s=1e-4, samples=64,
        memory_bytes=float("nan"),
    )  # fmt: skip


def other_events(index: int) -> Iterator[Event]:
    """What comes beside the steps: power, evaluations, skipped steps."""
    time_s = index / STEPS_PER_S
    if index % 40 == 0:
        yield PowerRead("GPU 0", time_s, 200.0 + index % 97, 0.0)
    if index % 2000 == 0:
        yield Evaluated(index, index // 2000, time_s, 0.5, 0.9)
    if index % 1000 == 0:
        yield Incident(time_s, index, "skipped_step", "info", "Gradients held Inf; the step was skipped.")


def feed(pipe: Connection, first: int) -> None:
    """The child: steps at the rate of a run, in batches, with as much arithmetic as keeps a core busy."""
    rng = np.random.default_rng(0)
    index, due = first, time.monotonic()
    work = rng.standard_normal((200, 200))
    while True:
        due += BATCH_S
        batch: list[Event] = []
        for _ in range(int(STEPS_PER_S * BATCH_S)):
            batch += [step(index, rng), *other_events(index)]
            index += 1
        try:
            pipe.send(batch)
        except OSError:
            return
        while time.monotonic() < due:
            work = np.tanh(work @ work.T / 200.0)


class Lateness:
    """How late a timer of 5 ms fires, in milliseconds, for each time that it fires."""

    def __init__(self) -> None:
        self.late_ms: list[float] = []
        self._timer = QTimer(interval=TIMER_MS)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self._fired)
        self._due = 0.0

    def start(self) -> None:
        self._due = time.perf_counter() + TIMER_MS / 1e3
        self._timer.start()

    def _fired(self) -> None:
        now = time.perf_counter()
        self.late_ms.append(max(now - self._due, 0.0) * 1e3)
        self._due = now + TIMER_MS / 1e3

    def percentiles(self) -> dict[str, float]:
        p50, p99 = np.percentile(self.late_ms, [50, 99])
        return {"p50_ms": round(p50, 2), "p99_ms": round(p99, 2), "max_ms": round(max(self.late_ms), 1)}


def filled_run(points: int) -> LiveRun:
    """A live run that has already gone on for `points` steps."""
    run = LiveRun(
        RunConfig(), run_id="bench", created="2026-01-01T00:00:00+00:00", machine={}, environment={}, path=None
    )
    run.extend([RunStarted(0.0, 10**9, 2000, "cpu")])
    rng = np.random.default_rng(1)
    for start in range(1, points + 1, 20_000):
        batch: list[Event] = []
        for index in range(start, min(start + 20_000, points + 1)):
            batch += [step(index, rng), *other_events(index)]
        run.extend(batch)
    return run


def wait(seconds: float) -> None:
    loop = QEventLoop()
    QTimer.singleShot(int(seconds * 1e3), loop.quit)
    loop.exec()


def lateness(points: int, seconds: float) -> dict[str, float]:
    """Percentiles of the lateness with four live plots of `points` points that go on growing."""
    state = State()
    panel = LivePanel(state)
    panel.resize(1280, 800)
    panel.show()
    run = filled_run(points)
    state.runs["bench"] = OpenRun("bench", run, "bench", 0, 0)
    state.run_added.emit("bench")
    ours, theirs = multiprocessing.get_context("spawn").Pipe(duplex=False)
    child = multiprocessing.get_context("spawn").Process(target=feed, args=(theirs, points + 1), daemon=True)
    child.start()
    theirs.close()

    def drain() -> None:
        fresh: list[Event] = []
        while ours.poll():
            fresh += ours.recv()
        if fresh:
            run.extend(fresh)
            state.data_arrived.emit("bench")

    timer = QTimer(interval=DRAIN_MS)
    timer.timeout.connect(drain)
    timer.start()
    wait(2.0)
    meter = Lateness()
    meter.start()
    wait(seconds)
    timer.stop()
    child.terminate()
    child.join()
    panel.close()
    return meter.percentiles()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    chosen = parser.parse_args()
    app = QApplication([])
    app.setQuitOnLastWindowClosed(False)
    sizes = [n for n in (10_000, 100_000) if n < chosen.points] + [chosen.points]
    found = {"lateness": {str(n): lateness(n, chosen.seconds) for n in sizes}}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
