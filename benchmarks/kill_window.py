"""Many runs in one real window, without a screen: completed, or killed after their first step; memory of the window.

python benchmarks/kill_window.py --runs 100          memory of the window with so many runs open
python benchmarks/kill_window.py --runs 200 --kill   SIGKILL to the process of each run at a random moment within
                                                     3 s after its first step; its file against what the window saw
python benchmarks/kill_window.py --runs 100 --again  the same in less time: one run is trained, and its events
                                                     and its file come a hundred times
"""

from __future__ import annotations

import argparse
import math
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

import numpy as np
import psutil
from PySide6.QtWidgets import QApplication

from precgui import config
from precgui.events import Event
from precgui.gui.notices import Notices
from precgui.gui.session import Session
from precgui.gui.settings import Settings
from precgui.gui.shell.window import Window
from precgui.runs.file.reader import open_run
from precgui.runs.file.writer import RunWriter
from precgui.runs.live import LiveRun

PATIENCE_S = 300.0
SETTINGS = ["device=cpu", "threads=1"]


def wait(app: QApplication, until: Callable[[], bool]) -> None:
    """Let the window work until it holds. Raises TimeoutError."""
    deadline = time.monotonic() + PATIENCE_S
    while not until():
        app.processEvents()
        time.sleep(0.005)
        if time.monotonic() > deadline:
            raise TimeoutError("a run neither went on nor ended")


def one_run(app: QApplication, session: Session, settings: list[str], kill_after_s: float) -> tuple[str, float]:
    """How the run ended and whether its file holds what it should, as a phrase; and the seconds lost.

    `kill_after_s`: seconds from its first step in the window to SIGKILL; NaN for a run that may end. Lost are the
    seconds between the last step in the file (the first step, where the file holds none) and the last in the window.
    """
    before = set(session.runs)
    session.training.start(config.load("digits-quick", [*SETTINGS, *settings]))
    (key,) = set(session.runs) - before
    run = session.runs[key].run
    assert isinstance(run, LiveRun)
    seen = seen_s = np.empty(0)
    if not math.isnan(kill_after_s):
        wait(app, lambda: run.steps > 0)
        due = time.monotonic() + kill_after_s
        wait(app, lambda: time.monotonic() > due)
        thread = session.training._thread
        assert thread is not None
        assert thread.pid is not None
        psutil.Process(thread.pid).kill()
        seen, seen_s = (run.column("steps", name).copy() for name in ("loss", "time_s"))
    wait(app, lambda: not session.training.is_training)
    assert run.path is not None
    if not run.path.exists():
        return "no file", math.nan
    with open_run(run.path) as saved:
        steps, losses = saved.series("loss")
        common = min(len(losses), len(seen))
        whole = steps.tolist() == list(range(1, len(steps) + 1)) and bool(np.isfinite(losses).all())
        if not whole or not np.array_equal(losses[:common], seen[:common]):
            return f"{run.status}, BROKEN", math.nan
        last_s = [*seen_s[:1], *saved.column("steps", "time_s")][-1] if len(seen) else 0.0
        lost_s = max(0.0, float(seen_s[-1] - last_s)) if len(seen) else 0.0
        what = "every step" if len(losses) >= len(seen) else "all but the last steps" if len(losses) else "no step yet"
        return f"{run.status}, file {saved.status}, {what}", lost_s


def listen() -> list[Event]:
    """The events that live runs take in from now on."""
    events: list[Event] = []
    extend = LiveRun.extend

    def kept(run: LiveRun, batch: Sequence[Event]) -> None:
        if not run.run_id.startswith("again"):
            events.extend(batch)
        extend(run, batch)

    LiveRun.extend = kept  # type: ignore[method-assign, assignment]
    return events


def same_again(app: QApplication, session: Session, events: list[Event], number: int) -> str:
    """The events of an earlier run as those of a new one, as its process would send them, and its file."""
    first = next(iter(session.runs.values())).run
    run_id, path = f"again{number}", session.folder / f"again{number}.h5"
    with RunWriter(path, first.config, run_id=run_id, created="", machine={}, environment={}) as writer:
        for event in events:
            writer(event)
    run = LiveRun(first.config, run_id=run_id, created="", machine={}, environment={}, path=path)
    key = session.runs.add(run)
    for start in range(0, len(events), 20):
        run.extend(events[start : start + 20])
        session.runs.data_arrived.emit(key)
        app.processEvents()
    session.runs.changed.emit(key)
    session.training._hand_over(run)
    wait(app, lambda: run._saved is not None)
    return f"{run.status}, of its file"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no run after so long")
    options = parser.parse_args()
    measure(options)


def stop(folder: str, *_: object) -> None:
    """End at once with all children: a training goes on without its window, and Qt swallows what a slot raises."""
    for child in psutil.Process().children(recursive=True):
        child.kill()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def measure(options: argparse.Namespace) -> None:
    """Print the figures while they come."""
    with tempfile.TemporaryDirectory() as folder:
        for caught in (signal.SIGINT, signal.SIGTERM):
            signal.signal(caught, partial(stop, folder))
        os.environ["PRECGUI_STATE"], os.environ["PRECGUI_RUNS"] = f"{folder}/state", f"{folder}/runs"
        app = QApplication([])
        window = Window(Settings(), Notices())
        window.show()
        session = Session(window)
        session.set_folder(Path(folder, "runs"))
        window.attach(session)
        window.show_panel("live")
        me, ends, begin, worst_s = psutil.Process(), Counter[str](), time.monotonic(), 0.0
        moments = random.Random(options.seed)
        settings = ["train.epochs=100000"] if options.kill else [f"train.max_steps={options.steps}"]
        events = listen() if options.again else []  # kept events would count as memory of the window
        for number in range(1, options.runs + 1):
            if options.again and number > 1:
                ends[same_again(app, session, events, number)] += 1
            else:
                session.training.warm_up()
                end, lost_s = one_run(app, session, settings, moments.uniform(0, 3) if options.kill else math.nan)
                ends[end] += 1
                worst_s = max(worst_s, lost_s) if lost_s > 0 else worst_s
            is_over = time.monotonic() - begin > options.seconds
            if number == 1 or number % 10 == 0 or number == options.runs or is_over:
                used = me.memory_info().rss / 2**20
                print(f"{number} runs: {used:.0f} MiB, {len(me.children())} children, {me.num_fds()} handles, "
                      f"{time.monotonic() - begin:.0f} s, {dict(ends)}, at most {worst_s:.2f} s lost",
                      flush=True)  # fmt: skip
            if is_over:
                break
        ended: list[bool] = []
        session.shutdown(lambda: ended.append(True))
        wait(app, lambda: bool(ended))


if __name__ == "__main__":
    main()
