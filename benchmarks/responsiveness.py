"""How late the window is while a run feeds it, and what the window costs the run. Prints one JSON document.

    python benchmarks/responsiveness.py [--points 1000000] [--seconds 10] [--pairs 5] [--epochs 60]

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
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from PySide6.QtCore import QEventLoop, Qt, QTimer
from PySide6.QtWidgets import QApplication

from precgui.config import RunConfig, load
from precgui.events import Evaluated, Event, Incident, PowerRead, RunStarted, StepDone
from precgui.gui.panels.live.panel import LivePanel
from precgui.gui.session import Session
from precgui.gui.shell.startup import GcTimer
from precgui.gui.training_queue import DRAIN_MS
from precgui.runs.file.reader import open_run
from precgui.runs.live import LiveRun

TIMER_MS = 5
STEPS_PER_S = 400.0
BATCH_S = 0.05
RECIPE = "digits-quick"
WARM_STEPS = 50
MAIN = Path(__file__).parent.parent / "main.py"


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
        return {"p50_ms": round(float(p50), 2), "p99_ms": round(float(p99), 2), "max_ms": round(max(self.late_ms), 1)}


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
    session = Session()
    panel = LivePanel(session)
    panel.resize(1280, 800)
    panel.show()
    run = filled_run(points)
    key = session.runs.add(run)
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
            session.runs.data_arrived.emit(key)

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


def steps_per_s(path: Path) -> float:
    """The speed of the loop as the run file tells it, without the first steps."""
    with open_run(path) as saved:
        time_s = saved.series("loss", "time_s")[0]
    return float((len(time_s) - 1 - WARM_STEPS) / (time_s[-1] - time_s[WARM_STEPS]))


def speed_from_command_line(epochs: int, path: Path) -> float:
    command = [sys.executable, str(MAIN), "run", RECIPE, "--set", f"train.epochs={epochs}", "-o", str(path), "--json"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return steps_per_s(path)


def speed_under_window(epochs: int, folder: Path) -> float:
    """The same run, started as the button does, with the Live panel in view and its garbage collected as always."""
    session = Session()
    session.set_folder(folder)
    panel = LivePanel(session)
    panel.resize(1280, 800)
    panel.show()
    session.training.start(load(RECIPE, [f"train.epochs={epochs}"]))
    loop = QEventLoop()
    session.training.idle.connect(loop.quit)
    loop.exec()
    (opened,) = session.runs.values()
    QTimer.singleShot(0, lambda: session.shutdown(loop.quit))
    loop.exec()
    panel.close()
    if opened.run.path is None or opened.run.status != "completed":
        raise SystemExit(f"the run under the window ended as {opened.run.status}")
    return steps_per_s(opened.run.path)


def loop_speed(pairs: int, epochs: int) -> dict[str, Any]:
    """Ratio of the speed under the window to that from the command line, in pairs that take turns to go first."""
    ratios, alone, under = [], [], []
    with tempfile.TemporaryDirectory() as name:
        for pair in range(pairs):
            place = Path(name) / str(pair)
            place.mkdir()
            if pair % 2:
                under.append(speed_under_window(epochs, place))
                alone.append(speed_from_command_line(epochs, place / "alone.h5"))
            else:
                alone.append(speed_from_command_line(epochs, place / "alone.h5"))
                under.append(speed_under_window(epochs, place))
            ratios.append(round(under[-1] / alone[-1], 3))
    return {
        "median_ratio": round(statistics.median(ratios), 3),
        "ratios": ratios,
        "command_line_steps_per_s": round(statistics.median(alone), 1),
        "window_steps_per_s": round(statistics.median(under), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=1_000_000, help="points in each plot (default 1000000)")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long lateness is measured (default 10)")
    parser.add_argument("--pairs", type=int, default=5, help="paired runs (default 5; 0: lateness only)")
    parser.add_argument("--epochs", type=int, default=60, help="length of a paired run (default 60)")
    chosen = parser.parse_args()
    app = QApplication([])
    app.setQuitOnLastWindowClosed(False)
    collector = GcTimer(app)
    sizes = [n for n in (10_000, 100_000) if n < chosen.points] + [chosen.points]
    found: dict[str, Any] = {"lateness": {str(n): lateness(n, chosen.seconds) for n in sizes}}
    if chosen.pairs:
        found["loop"] = loop_speed(chosen.pairs, chosen.epochs)
    collector.stop()
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
