"""How soon the window answers, offscreen: a scenario for each thing that people do and wait for.

    python benchmarks/window_latency.py [SCENARIO] [--count N] [--file RUN.h5 ...]

Without a scenario each runs in a process of its own. Targets, of CPU time, since a busy machine lets wall time grow:

- bits: a toggled bit with all formats shown, below 16 ms in the median of N clicks over all rows
- slider: a loss scale that is dragged over 200 tensors, everything painted, 60 moves a second
- typing: a key typed in Run, a change of theme, the first opening of each tab of Formats, with the files opened
- library: a folder of N runs: first row within 1 s, then from the index; the files are hard links of one short run
- curves: N runs of 10 000 steps in the plots: first picture below 2 s, a frame of a pan below 16.7 ms
- verdict: the first verdict of Diagnose on 10 000 steps with 200 tensors, below 0.5 s
- bench: how late the event loop is while the bench runs in view, in N pairs with none running
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

import numpy as np
from PySide6.QtCore import QEventLoop, QLocale, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLineEdit
from responsiveness import Lateness, wait

from precgui.config import build
from precgui.events import Evaluated, RunEnded, RunStarted, StepDone
from precgui.formats.registry import formats, get
from precgui.gui.notices import Notices
from precgui.gui.open_run import OpenRun
from precgui.gui.panels.diagnose.panel import DiagnosePanel
from precgui.gui.panels.formats.bits import BitsTab
from precgui.gui.panels.formats.panel import FormatsPanel
from precgui.gui.panels.hardware.bench_tab import MeasuredTab
from precgui.gui.panels.hardware.panel import TABS, HardwarePanel
from precgui.gui.panels.inspect.tensors.panel import TensorsPanel
from precgui.gui.panels.library.panel import LibraryPanel
from precgui.gui.plots.linked import LinkedPlots
from precgui.gui.session import Session
from precgui.gui.settings import Settings
from precgui.gui.shell.startup import StartupStages
from precgui.gui.shell.window import Window
from precgui.gui.theme import themes
from precgui.runs.file.writer import RunWriter
from precgui.runs.live import LiveRun

Spent = tuple[float, float]  # CPU time of the process and time by the clock, in milliseconds
LONGEST_S = 300.0
DRESSING_TURNS = 20  # in which hidden panels are dressed
CURVE_STEPS = 10_000
BENCH_S = 8.0


def spent(act: Callable[[], object]) -> Spent:
    """Of an act and of the events that follow from it."""
    cpu, wall = time.process_time(), time.perf_counter()
    act()
    QApplication.processEvents()
    return 1e3 * (time.process_time() - cpu), 1e3 * (time.perf_counter() - wall)


def tell(name: str, found: Sequence[Spent], target_ms: float | None = None) -> bool:
    """Print both times of the acts; whether the median of CPU time is below the target."""
    for title, times in zip(("CPU time", "by the clock"), zip(*found, strict=True), strict=True):
        late = sorted(times)[int(0.99 * len(times))]
        print(f"{name}, {title}: median {statistics.median(times):.1f} ms, 99th percentile {late:.1f}, "
              f"most {max(times):.1f}", flush=True)  # fmt: skip
    return target_ms is None or statistics.median(cpu for cpu, _ in found) < target_ms


def turn(until: Callable[[], object], least_s: float = 0.0) -> None:
    """Process events until the condition holds, and at least so long."""
    begin = time.monotonic()
    while time.monotonic() - begin < least_s or not until():
        if time.monotonic() - begin > LONGEST_S:
            raise SystemExit(f"nothing came within {LONGEST_S:.0f} s")
        QApplication.processEvents(QEventLoop.ProcessEventsFlag.AllEvents, 5)
        time.sleep(0.002)


def bits(asked: argparse.Namespace) -> bool:
    themes().set_mode("light")
    tab = BitsTab(SimpleNamespace(runs={}))
    tab.menu.choose(list(formats()))
    tab.resize(1280, 2400)  # high enough for all rows to be painted
    tab.show()
    places = [(name, bit) for name in formats() for bit in range(get(name).bits)]

    def click(number: int) -> None:
        place = tab.grid.cell_rect(*places[number * 97 % len(places)]).center()
        QTest.mouseClick(tab.grid, Qt.MouseButton.LeftButton, pos=place)

    found = [spent(lambda number=number: click(number)) for number in range(20 + (asked.count or 200))]
    return tell(f"a bit toggled with {len(formats())} formats shown", found[20:], 16.0)


def slider(asked: argparse.Namespace) -> bool:
    from open_large import write_tensors

    path = asked.folder / "run.h5"
    write_tensors(path, 60, 200)
    session = Session()
    panel = TensorsPanel(session)
    session.runs.added.connect(panel.show_run)
    panel.resize(1280, 760)
    panel.show()
    session.runs.open_file(path)
    found = []
    for move in range(10 + (asked.count or 120)):
        turn(lambda: not panel.bar._pace.isActive())
        found.append(spent(lambda move=move: panel.bar.slider.setValue(move % 48 - 12)))
    panel.close()
    return tell("a move of the loss scale over 200 tensors", found[10:], 1e3 / 60)


def typing(asked: argparse.Namespace) -> bool:
    QLocale.setDefault(QLocale.c())
    window = Window(Settings(fresh=True), Notices())
    start = StartupStages(window, asked.file)
    window.resize(1280, 800)
    window.show()
    turn(lambda: window.session is not None and not window.host.waiting(), 0.5)
    window.show_panel("setup")
    turn(lambda: True, 0.5)
    line = window.host.panels["setup"].findChild(QLineEdit, "optimizer.lr")
    assert isinstance(line, QLineEdit)
    line.clear()
    tell("a key typed in Run", [spent(lambda key=str(n % 10): QTest.keyClicks(line, key)) for n in range(50)])
    line.setText("0.05")
    for mode in ("dark", "light", "dark", "light"):
        turns = [spent(lambda mode=mode: themes().set_mode(mode))]
        turns += [spent(lambda: None) for _ in range(DRESSING_TURNS)]
        print(f"theme {mode}: {sum(cpu for cpu, _ in turns):.0f} ms CPU, the longest turn {max(turns)[0]:.0f}")
    window.show_panel("formats")
    turn(lambda: True, 0.5)
    panel = window.host.panels["formats"]
    assert isinstance(panel, FormatsPanel)
    for index in range(1, panel.tabs.count()):
        cpu, _ = spent(lambda index=index: panel.tabs.setCurrentIndex(index))
        print(f"first opening of {panel.tabs.tabText(index)}: {cpu:.0f} ms CPU")
    ended: list[bool] = []
    assert window.session is not None
    window.session.shutdown(lambda: ended.append(True))
    turn(lambda: ended)
    start.deleteLater()
    window.deleteLater()
    return True


def library(asked: argparse.Namespace) -> bool:
    runs, folder = asked.count or 5000, asked.folder / "runs"
    folder.mkdir()
    _write_short_runs(folder, runs)
    first_s = [_look(name, folder, runs) for name in ("first session", "next session, with the index")]
    return max(first_s) < 1.0


def _write_short_runs(folder: Path, runs: int) -> None:
    first = folder / "run00000.h5"
    config = build({"title": "one of many"})
    with RunWriter(first, config, run_id="7f", created="2026-01-01T00:00:00+00:00", machine={}, environment={}) as emit:
        emit(RunStarted(0.0, 20, 20, "cpu"))
        for step in range(1, 21):
            emit(StepDone(step, 0.1 * step, 1 / step, 1.0, False, 0.05, 1.0, 0.09, 0.01, 64, float("nan")))
        emit(Evaluated(20, 1, 2.0, 0.3, 0.75))
        emit(RunEnded(2.1, "completed"))
    for number in range(1, runs):
        (folder / f"run{number:05d}.h5").hardlink_to(first)


def _look(name: str, folder: Path, runs: int) -> float:
    """Print how a folder fills the table of Runs. Returns seconds by the clock to its first row."""
    begin, cpu, meter = time.perf_counter(), time.process_time(), Lateness()
    session = Session()
    session.set_folder(folder)
    panel = LibraryPanel(session)
    panel.resize(1280, 800)
    panel.show()
    meter.start()
    turn(lambda: panel.table.rowCount())
    first_s = time.perf_counter() - begin
    turn(lambda: panel.table.rowCount() >= runs and not panel._folder.is_reading)
    print(f"{name}: first row {first_s:.2f} s, last {time.perf_counter() - begin:.2f} s, "
          f"{time.process_time() - cpu:.1f} CPU s, gap {max(meter.late_ms) / 1e3:.2f} s", flush=True)  # fmt: skip
    panel.close()
    panel.deleteLater()
    session.deleteLater()
    return first_s


def curves(asked: argparse.Namespace) -> bool:
    opened = [_long_curve(number) for number in range(asked.count or 100)]
    plots = LinkedPlots(["loss"])
    plots.resize(1200, 700)
    plots.show()
    QApplication.processEvents()

    def first_picture() -> None:
        plots.set_runs(opened)
        QTest.qWait(500)  # lines follow at the next ticks
        plots.grab()

    met = tell(f"first picture of {len(opened)} runs", [spent(first_picture)], 2000.0)

    def pan(place: int) -> None:
        left = CURVE_STEPS / 4 + place * CURVE_STEPS / 200
        plots.show_range(left, left + CURVE_STEPS / 4)
        plots.draw_pending()

    return tell("a frame of a pan", [spent(lambda place=place: pan(place)) for place in range(60)], 16.7) and met


def _long_curve(number: int) -> OpenRun:
    draw = np.random.default_rng(number)
    loss = np.exp(-np.arange(CURVE_STEPS) / CURVE_STEPS * 4) * draw.lognormal(sigma=0.2, size=CURVE_STEPS)
    run = LiveRun(build({"title": f"run {number}"}), run_id=str(number), created="", machine={}, environment={})
    run.extend([RunStarted(0.0, CURVE_STEPS, CURVE_STEPS, "cpu", {})])
    run.extend(
        [StepDone(n, n * 0.01, float(v), 1.0, False, 0.1, 1.0, 0.01, 0.0, 64, 1.0) for n, v in enumerate(loss, 1)]
    )
    run.extend([RunEnded(CURVE_STEPS * 0.01, "completed")])
    return OpenRun(f"{number}", run, f"run {number}", number % 7, number % 4)


def verdict(asked: argparse.Namespace) -> bool:
    from diagnosis import write_long_run

    path = asked.file[0] if asked.file else asked.folder / "long.h5"
    if not path.exists():
        write_long_run(path)
    found, meter = [], Lateness()
    for _ in range(asked.count or 5):
        session = Session()
        panel = DiagnosePanel(session)
        panel.resize(1000, 700)
        panel.show()
        QApplication.processEvents()
        meter.start()

        def told(session: Session = session, panel: DiagnosePanel = panel) -> None:
            session.runs.open_file(path)
            turn(lambda: panel.diagnoses)
            panel.grab()

        found.append(spent(told))
        panel.close()
    print(f"the event loop was late by {max(meter.late_ms):.0f} ms at most")
    return tell("first verdict on a long run", found, 500.0)


def bench(asked: argparse.Namespace) -> bool:
    panel = HardwarePanel(None)
    panel.resize(1140, 760)
    panel.show()
    index = [name for name, _, _ in TABS].index("Measured")
    panel.tabs.setCurrentIndex(index)
    tab = panel.tab(index)
    assert isinstance(tab, MeasuredTab)
    turn(lambda: panel.model.machine is not None, 4.0)  # torch is asked meanwhile
    for _ in range(asked.count or 3):
        _tell_lateness("no bench")
        tab.start()
        turn(lambda: tab.view.rows.rowCount())
        _tell_lateness("bench")
        tab.stop.click()
        turn(lambda: tab.measure.isEnabled())
    panel.close()
    return True


def _tell_lateness(name: str) -> None:
    meter = Lateness()
    meter.start()
    wait(BENCH_S)
    print(f"{name:9} {meter.percentiles()}, load {os.getloadavg()[0]:.1f}", flush=True)


SCENARIOS: dict[str, Callable[[argparse.Namespace], bool]] = {
    each.__name__: each for each in (bits, slider, typing, library, curves, verdict, bench)
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", nargs="?", choices=SCENARIOS)
    parser.add_argument("--count", type=int, help="clicks, moves, runs, openings or pairs")
    parser.add_argument("--file", type=Path, nargs="*", default=[], help="runs for `typing` and `verdict`")
    asked = parser.parse_args()
    if asked.scenario is None:
        return max(subprocess.run([sys.executable, __file__, name]).returncode for name in SCENARIOS)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(HOME=folder, PRECGUI_STATE=f"{folder}/state")
        asked.folder = Path(folder)
        application = QApplication(sys.argv[:1])
        application.setStyle("Fusion")
        application.setQuitOnLastWindowClosed(False)
        return int(not SCENARIOS[asked.scenario](asked))


if __name__ == "__main__":
    sys.exit(main())
