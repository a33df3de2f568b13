"""How soon a large run file is seen: seconds from opening it in the window to the first plot that is painted.

    python benchmarks/open_large.py [--steps 1000000] [--tensor-steps 10000] [--tensors 200] [--opens 5] [--keep FOLDER]

Two files come from the run writer: `--steps` steps with 20 series, and `--tensor-steps` steps with gradients of
`--tensors` tensors. Each is opened in the window, offscreen: Live until its first plot, then Tensors until its picture.
Every open happens in a new process that has the window ready. Target: below 1 s; beside it stands
the CPU time, since a busy machine lets wall time grow.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

import numpy as np

from precgui.config import RunConfig
from precgui.events import (
    EXPONENT_BINS,
    TENSOR_STATS,
    DeviceRead,
    Evaluated,
    PowerRead,
    RunEnded,
    RunStarted,
    StepDone,
    TensorStats,
)
from precgui.runs.file.writer import RunWriter

VARIANTS = 16  # different histograms, so that the file does not compress better than a real one


def writer_of(path: Path) -> RunWriter:
    return RunWriter(path, RunConfig(), run_id=path.stem, created="", machine={}, environment={})


def write_steps(path: Path, steps: int) -> None:
    """As many rows in each table: 9 signals of steps, 2 of evaluations, 2 of power, 7 of devices."""
    rng = np.random.default_rng(0)
    with writer_of(path) as emit:
        emit(RunStarted(0.0, steps, 1000, "cpu"))
        for step, noise in enumerate(rng.random(steps).tolist(), 1):
            at = step / 100
            loss = 2.3 * math.exp(-step / steps) + noise
            emit(StepDone(step, at, loss, 65536.0, noise < 1e-4, 0.1, noise, 0.01 + 1e-4 * noise, 1e-4, 64, 1e9 + step))
            emit(Evaluated(step, step // 1000, at, loss, noise))
            emit(PowerRead("GPU 0", at, 300 + 100 * noise, 3.0 * step))
            emit(DeviceRead("GPU 0", at, noise, noise, noise, noise, 1500.0 + 100 * noise, 60 + 10 * noise, 4.0))
            if step % 20_000 == 0:
                emit.flush()
        emit(RunEnded(steps / 100, "completed"))


def tensor_event(step: int, tensors: int, rng: np.random.Generator) -> TensorStats:
    """Histograms as those of gradients: some thirty octaves around a centre of their own."""
    centre = rng.integers(80, 120, tensors)
    exponents = np.zeros((tensors, EXPONENT_BINS), "<u4")
    shape = 0.5 ** (np.abs(np.arange(-15, 15)) / 3)
    for row, place in zip(exponents, centre, strict=True):
        row[place - 15 : place + 15] = rng.multinomial(4096, shape / shape.sum())
    stats = rng.lognormal(size=(tensors, len(TENSOR_STATS)))
    stats[:, TENSOR_STATS.index("amax")] = 2.0 ** (centre - 112)
    stats[:, TENSOR_STATS.index("count")] = 4096
    names = tuple(f"layers.{index // 4}.part{index % 4}.weight" for index in range(tensors))
    return TensorStats(step, step / 10, "gradient", names, (1,) * tensors, stats.tobytes(), exponents.tobytes())


def write_tensors(path: Path, steps: int, tensors: int) -> None:
    rng = np.random.default_rng(1)
    kinds = [tensor_event(0, tensors, rng) for _ in range(VARIANTS)]
    with writer_of(path) as emit:
        emit(RunStarted(0.0, steps, 100, "cpu", tensors=2 * tensors))
        for step in range(1, steps + 1):
            each = kinds[step % VARIANTS]
            emit(StepDone(step, step / 10, 1 / step, 1.0, False, 0.1, 1.0, 0.1, 0.0, 64, math.nan))
            emit(TensorStats(step, step / 10, "gradient", each.names, each.strides, each.stats, each.exponents))
            if step % 20 == 0:
                emit.flush()
        emit(RunEnded(steps / 10, "completed"))


def open_once(path: Path) -> dict[str, float]:
    """Seconds until the first plot of Live and until the picture of Tensors, in a window that is ready."""
    from PySide6.QtWidgets import QApplication

    from precgui.gui.notices import Notices
    from precgui.gui.session import Session
    from precgui.gui.settings import Settings
    from precgui.gui.shell.window import Window

    app = QApplication([])
    window = Window(Settings(fresh=True), Notices())
    window.resize(1280, 800)
    session = Session(window)
    window.attach(session)
    window.show()
    while window.load_next_panel():
        app.processEvents()
    app.processEvents()
    told: dict[str, float] = {}
    begin, cpu = time.perf_counter(), time.process_time()
    window.files.open([path])
    plots = window.host.panels["live"].plots  # type: ignore[attr-defined]
    while plots.frames[0] in plots._stale or plots.frames[0].chart.is_empty():
        app.processEvents()
    app.processEvents()
    window.grab()
    told |= {"live_s": time.perf_counter() - begin, "live_cpu_s": time.process_time() - cpu}
    if any(opened.run.tensors() for opened in session.runs.values()):
        begin, cpu = time.perf_counter(), time.process_time()
        window.show_panel("tensors")
        tensors = window.host.panels["tensors"]
        while tensors.view is None:  # type: ignore[attr-defined]
            app.processEvents()
        app.processEvents()
        window.grab()
        told |= {"tensors_s": time.perf_counter() - begin, "tensors_cpu_s": time.process_time() - cpu}
    return told


def report(name: str, path: Path, opens: int) -> bool:
    """Open the file in new processes and print how long it took; whether all medians are below a second."""
    seen = []
    for _ in range(opens + 1):  # the first fills the disk cache
        done = subprocess.run([sys.executable, __file__, "--open", str(path)], capture_output=True, text=True)
        if done.returncode:
            print(done.stderr)
            return False
        seen.append(json.loads(done.stdout.splitlines()[-1]))
    print(f"{name}: {path.stat().st_size / 2**20:.0f} MiB")
    medians = {key: statistics.median(each[key] for each in seen[1:]) for key in seen[0]}
    for key, median in medians.items():
        most = max(each[key] for each in seen[1:])
        print(f"  {key} median {median:.3f}, most {most:.3f}, first {seen[0][key]:.3f}")
    return all(median < 1 for median in medians.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--tensor-steps", type=int, default=10_000)
    parser.add_argument("--tensors", type=int, default=200)
    parser.add_argument("--opens", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="folder for the two files, used again when they are there")
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.open:
        with tempfile.TemporaryDirectory() as folder:
            os.environ.update(PRECGUI_STATE=folder, PRECGUI_RUNS=folder)
            print(json.dumps(open_once(asked.open)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        kept = asked.keep or Path(folder)
        kept.mkdir(parents=True, exist_ok=True)
        series, tensors = kept / f"series-{asked.steps}.h5", kept / f"tensors-{asked.tensor_steps}-{asked.tensors}.h5"
        if not series.exists():
            write_steps(series, asked.steps)
        if not tensors.exists():
            write_tensors(tensors, asked.tensor_steps, asked.tensors)
        met = [report("series", series, asked.opens), report("tensors", tensors, asked.opens)]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
