"""A window with many open runs, without a screen: the longest turns of its event loop, and the memory of a run.

    open_runs.py [--runs 100] [--trace] [--profile ACT] [--file RUN.h5]

The files are copies of one run with identities and ends of their own. Every act is done twice: first, and again. A turn
is measured in CPU seconds of the thread of the window, between two ticks of a timer. `--trace` counts the bytes that
Python holds for the runs, by the lines that asked for them, and makes everything slower.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import sys
import tempfile
import time
import traceback
import tracemalloc
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

import h5py
from PySide6.QtCore import QLocale, Qt, QTimer
from PySide6.QtWidgets import QApplication

from precgui.config import build
from precgui.events import Evaluated, RunEnded, RunStarted, StepDone
from precgui.gui.notices import Notices
from precgui.gui.settings import Settings
from precgui.gui.shell.startup import GcTimer, StartupStages
from precgui.gui.shell.window import PANELS, Window
from precgui.gui.theme import themes
from precgui.runs.file.writer import RunWriter

SIZE = (1280, 800)
EPOCH, STEPS = 23, 400
TRACED_LINES = 25


def make(folder: Path, runs: int) -> list[Path]:
    """Files of runs that ended after 200 to 400 steps, with a validation each epoch."""
    paths = []
    for number in range(runs):
        path = folder / f"run{number:03d}.h5"
        config = build({"title": "digits cnn", "precision": ("fp32", "bf16-amp", "fp16-amp")[number % 3]})
        created = f"2026-01-01T{number // 60:02d}:{number % 60:02d}:00+00:00"
        with RunWriter(path, config, run_id=f"{number:032x}", created=created, machine={}, environment={}) as emit:
            emit(RunStarted(0.0, STEPS, EPOCH, "cpu"))
            for step in range(1, STEPS // 2 + number * 37 % (STEPS // 2) + 1):
                loss = 2.3 / (1 + 0.05 * step) + 0.1 * ((step * 7919 + number * 104729) % 97) / 97
                emit(StepDone(step, 0.02 * step, loss, 1.0, False, 0.05, 1.0 + loss, 0.018, 0.002, 64, float("nan")))
                if step % EPOCH == 0:
                    emit(Evaluated(step, step // EPOCH, 0.02 * step, loss, 1 - loss / 3))
            emit(RunEnded(10.0, "completed"))
        paths.append(path)
    return paths


def copies(first: Path, folder: Path, runs: int) -> list[Path]:
    """Copies of a file with identities of their own."""
    paths = []
    for number in range(runs):
        path = folder / f"run{number:03d}.h5"
        path.write_bytes(first.read_bytes())
        with h5py.File(path, "r+") as file:
            file.attrs["run_id"] = f"{number:032x}"
        paths.append(path)
    return paths


class Turns:
    """The longest turn of the event loop since the last look, in CPU seconds of its thread."""

    def __init__(self, app: QApplication) -> None:
        self._app = app
        self._timer = QTimer(interval=1)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self._tick)
        self._last = self.longest = 0.0

    def _tick(self) -> None:
        now = time.thread_time()
        self.longest, self._last = max(self.longest, now - self._last), now

    def of(self, act: Callable[[], object], seconds: float = 1.5) -> tuple[float, float]:
        """Do it, wait, and return the longest turn and the sum."""
        self._last = start = time.thread_time()
        self.longest = 0.0
        self._timer.start()
        act()
        self.wait(seconds)
        self._timer.stop()
        return self.longest, time.thread_time() - start

    def wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._app.processEvents()
            time.sleep(0.001)


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def acts(window: Window, again: Path) -> dict[str, Callable[[], object]]:
    """What is done, by its name."""
    session = window.session
    assert session is not None
    key = next(iter(session.runs))
    result: dict[str, Callable[[], object]] = {}
    for spec in PANELS:
        result[spec.id] = lambda name=spec.id: window.show_panel(name)  # type: ignore[misc]
        if spec.id in ("live", "compare", "inspect"):
            result[f"change a run in {spec.id}"] = lambda: session.runs.changed.emit(key)
            result[f"data in {spec.id}"] = lambda: session.runs.data_arrived.emit(key)
            result[f"dark in {spec.id}"] = lambda: window.set_theme("dark")
            result[f"light in {spec.id}"] = lambda: window.set_theme("light")
            result[f"small {spec.id}"] = lambda: window.resize(1000, 640)
            result[f"large {spec.id}"] = lambda: window.resize(1600, 900)
            result[f"hide a run in {spec.id}"] = lambda: session.runs.set_visible(key, not session.runs[key].visible)
            result[f"open a run in {spec.id}"] = lambda: session.runs.open_file(again)
            result[f"close a run in {spec.id}"] = lambda: session.runs.close(session.runs.key_of(again) or "")
    return result


def measure(options: argparse.Namespace, folder: Path) -> None:
    """Print the figures while they come."""
    paths = copies(options.file, folder, options.runs + 1) if options.file else make(folder, options.runs + 1)
    QLocale.setDefault(QLocale.c())
    app = QApplication(sys.argv[:1])
    app.setStyle("Fusion")
    themes().set_mode("light")
    window = Window(Settings(fresh=True), Notices())
    start = StartupStages(window, [])
    collector = GcTimer(app, start)
    window.resize(*SIZE)
    window.show()
    turns = Turns(app)
    while window.session is None or window.host.waiting():
        turns.wait(0.2)
    turns.wait(1.0)
    session = window.session
    before = resident_mib()
    if options.trace:
        tracemalloc.start(12)
    began = tracemalloc.take_snapshot() if options.trace else None
    for path in paths[:-1]:
        session.runs.open_file(path)
        turns.wait(0.01)
    for repeat in ("first", "again"):
        for name, act in acts(window, paths[-1]).items():
            profile = cProfile.Profile() if options.profile == f"{name}, {repeat}" else None
            if profile is not None:
                profile.enable()
            longest, total = turns.of(act)
            if profile is not None:
                profile.disable()
                pstats.Stats(profile).sort_stats("cumtime").print_stats(70)
            print(f"{longest:.3f} {total:.3f} {name}, {repeat}", flush=True)
        print(f"memory: {resident_mib():.0f} MiB, {(resident_mib() - before) / options.runs:.2f} a run", flush=True)
    if began is not None:
        show_trace(began, options.runs)
    collector.stop()
    ended: list[bool] = []
    session.shutdown(lambda: ended.append(True))
    while not ended:
        turns.wait(0.1)
    start.deleteLater()


def show_trace(began: tracemalloc.Snapshot, runs: int) -> None:
    """The lines that hold most bytes for a run."""
    differences = tracemalloc.take_snapshot().compare_to(began, "lineno")
    print(f"Python: {sum(each.size_diff for each in differences) / runs / 1024:.0f} KiB a run")
    for each in sorted(differences, key=lambda each: -each.size_diff)[:TRACED_LINES]:
        place = each.traceback[0]
        print(f"{each.size_diff / runs / 1024:8.1f} KiB {each.count_diff / runs:8.1f} {place.filename}:{place.lineno}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--profile", default="", help="such as `compare, first`")
    parser.add_argument("--file", type=Path, help="a run to copy; without it runs of losses alone")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as own:
        os.environ.update(HOME=own, PRECGUI_STATE=f"{own}/state", PRECGUI_RUNS=f"{own}/runs")
        measure(options, Path(own))


if __name__ == "__main__":
    code = 1
    try:
        main()
        code = 0
    finally:  # Qt would wait for threads
        if code:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(code)
