"""What places cost, over a pipe to an agent in a process of its own.

    python benchmarks/places.py attach [--steps 100000] [--megabits 10]
    python benchmarks/places.py start [--pairs 12] [--way]
    python benchmarks/places.py rates
    python benchmarks/places.py window [--seconds 20]

`attach`: from the first byte of an agent that has said hello, and from the start of its command, to all steps of a run
in a LiveRun, over a pipe of so many megabits a second. `start`: the first step of a run here and at a place whose agent
is warm, in pairs in random order; what a place costs is the way of the order and of the step, without the time that the
run itself tells, which is that of the machine. The quietest quarter of each side is compared: a machine that is shared
only adds to it. With `--way` the run trains nothing and makes its step at once, in a process without torch: that is
what a place adds to any run, in wall time and in CPU time of all processes, without the noise of an engine. `rates`:
bytes of steps and of rows of tensors. `window`: CPU time of the window's thread in each tick
while it follows a run whose agent is stopped by SIGSTOP. Exit code 1 where a figure is not held.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from precgui.config import RunConfig, build
from precgui.events import (
    EXPONENT_BINS,
    TENSOR_STATS,
    Evaluated,
    HostRead,
    PowerRead,
    RunStarted,
    StepDone,
    TensorStats,
)
from precgui.places.channel import PlaceChannel
from precgui.places.jobs import JobFolder
from precgui.places.messages import REPLIES, JobEvents, JobRow, StartRun
from precgui.places.placed_job import PlacedRun
from precgui.places.runner import JobConnection
from precgui.places.settings import NamedPlace
from precgui.process.channel import Channel, SpawnedChannel
from precgui.process.child import main as serve_task
from precgui.process.supervised import DeathWords, Supervised
from precgui.runs.live import LiveRun
from precgui.runs.training_process import TrainingProcess

JOB = "0123456789abcdef" * 2
MOST_ATTACH_S = 2.0
MOST_LATER_S = 0.1
MOST_EVENT_BYTES, MOST_ROW_BITS = 20e3, 1e6  # a second
MOST_TICK_MS = 16.0
ROWS_EVERY = 500  # steps
_NO_ENGINE = """
import sys, time, types

def serve(emit, control, **arguments):
    from precgui.events import RunEnded, RunStarted, StepDone
    emit(RunStarted(0.0, 2, 2, "cpu", {}))
    emit(StepDone(1, 0.0, 1.0, 1.0, False, 0.1, 1.0, 0.01, 0.0, 64, 0.0))
    while not control.stopped():
        time.sleep(0.005)
    emit(RunEnded(0.0, "stopped"))

sys.modules["torch"], sys.modules["precgui.job"] = types.ModuleType("torch"), types.ModuleType("precgui.job")
sys.modules["precgui.job"].serve = serve
"""  # a sitecustomize.py for the processes of both sides
_PART_S = 0.01  # in which a throttled pipe sends one part


def throttled(bits_per_s: float, command: list[str]) -> int:
    """Run a command with this input; its output comes at so many bits a second."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    part, due_s = int(bits_per_s / 8 * _PART_S), time.monotonic()
    while data := os.read(process.stdout.fileno(), part):
        due_s = max(due_s, time.monotonic() - _PART_S) + len(data) * 8 / bits_per_s
        time.sleep(max(0.0, due_s - time.monotonic()))
        os.write(1, data)
    return process.wait()


def agent(state: Path, bits_per_s: float = 0.0) -> NamedPlace:
    """A place on this machine with a folder of its own, behind a pipe of so many bits a second (0: as it is)."""
    serve = ["env", f"PRECGUI_STATE={state}", sys.executable, "-m", "precgui", "serve", "--stdio"]
    slow = [sys.executable, __file__, "throttle", str(bits_per_s)] if bits_per_s else []
    return NamedPlace("box", (*slow, *serve))


def long_job(steps: int) -> int:
    """The folder of a run with a message for each step, as a run of 30 steps a second has. Returns its bytes."""
    folder = JobFolder(JOB)
    folder.make(StartRun(JOB, {"task": "digits"}))
    folder.claim()
    connection = JobConnection(folder)
    connection.send([RunStarted(0.0, steps, 1000, "cuda:0", {})])
    for number, step in enumerate(noisy_steps(steps), 1):
        batch: list[Any] = [step]
        if number % 15 == 0:
            batch += [PowerRead("cuda:0", step.time_s, 300 * step.step_s / 0.03, 300 * step.time_s)]
            batch += [HostRead(step.time_s, 1.0, 0.1, 3.0)]
        if number % 1000 == 0:
            batch.append(Evaluated(number, number // 1000, step.time_s, step.loss, 0.9))
        if number % ROWS_EVERY == 0:
            batch.append(tensor_row(number, step.time_s))
        connection.send(batch)
    return sum(path.stat().st_size for path in (folder.frames, folder.rows))


def noisy_steps(steps: int) -> Iterator[StepDone]:
    """With noise in all that is noisy in a real run: losses and norms of 24 bits, times of a clock of nanoseconds."""
    random_of = np.random.default_rng(1)
    loss = (2 / np.log(np.arange(2, steps + 2)) + random_of.normal(0, 0.05, steps)).astype(np.float32)
    norm = np.abs(random_of.normal(1, 0.2, steps)).astype(np.float32)
    step_s = random_of.normal(0.03, 0.001, steps)
    data_s, cpu_s = np.abs(random_of.normal(1e-3, 1e-4, steps)), step_s * random_of.uniform(0.5, 0.99, steps)
    lr = 5e-4 * (1 + np.cos(np.pi * np.arange(steps) / steps))
    columns = (40 + np.cumsum(step_s), loss, lr, norm, step_s, data_s, cpu_s)
    for number, values in enumerate(zip(*(column.tolist() for column in columns), strict=True), 1):
        time_s, loss_of, lr_of, norm_of, step_of, data_of, cpu_of = values
        yield StepDone(
            number, time_s, loss_of, 65536.0, False, lr_of, norm_of, step_of, data_of, 64, 3e9, 1.0, 1.0, cpu_of
        )


def tensor_row(number: int, time_s: float) -> TensorStats:
    """Of 60 tensors whose elements are normally distributed."""
    random_of = np.random.default_rng(number)
    names = tuple(f"blocks.{place}.mlp.weight" for place in range(60))
    stats = random_of.normal(0, 1, (60, len(TENSOR_STATS))).astype(np.float32).astype(np.float64)
    exponents = np.zeros((60, EXPONENT_BINS), np.uint32)
    exponents[:, 100:125] = random_of.integers(0, 4000, (60, 25))
    return TensorStats(number, time_s, "gradient", names, (1,) * 60, stats.tobytes(), exponents.tobytes())


def attach(steps: int, megabits: float) -> int:
    """Follow the run until all its steps are in a LiveRun, and print how long that took."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PRECGUI_STATE"] = folder
        kept_bytes = long_job(steps)
        run = LiveRun(RunConfig(), run_id=JOB, created="", machine={}, environment={})
        placed = PlacedRun(agent(Path(folder), megabits * 1e6), JOB, Path(folder) / "home.h5")
        channel = PlaceChannel(placed.place, attached=placed)
        begin_s = time.monotonic()
        channel.start()
        hello_s, cpu_s = time.monotonic(), time.process_time()
        while run.steps < steps:
            if batch := channel.receive(0.1):
                run.extend(batch)
        took_s, cpu_s = time.monotonic() - hello_s, time.process_time() - cpu_s
        assert run.column("steps", "step").tolist() == list(range(1, steps + 1))
        channel.job.detach()
        channel.close()
        history = JobFolder(JOB).history.stat().st_size
    print(
        f"attach to {steps} steps at {megabits:g} Mb/s: {took_s:.2f} s after the hello, which came after "
        f"{hello_s - begin_s:.2f} s; CPU of this end {cpu_s:.2f} s; {history / 1e6:.2f} MB of history for "
        f"{kept_bytes / 1e6:.1f} MB of messages and rows; must be below {MOST_ATTACH_S} s"
    )
    return int(took_s >= MOST_ATTACH_S)


def first_step(channel: Channel, folder: Path, run_id: str) -> tuple[float, float, float]:
    """Seconds from the order to the first step of a run, by a process that has imported torch; without those that the
    run has counted until then; and CPU seconds of all processes in that time."""
    process, told_at_s, counted_s, cpu_s = Supervised(channel, 5.0), 0.0, 0.0, 0.0
    training = TrainingProcess(process, DeathWords("the run", "the run", "it was ended"))
    config = build({"task": "digits", "precision": "fp32", "device": "cpu", "model": {"name": "mlp"}})

    def take(batch: list[Any]) -> None:
        nonlocal told_at_s, counted_s, cpu_s
        training.watch(batch)
        step = next((event for event in batch if isinstance(event, StepDone)), None)
        if not told_at_s and step is not None:
            told_at_s, counted_s = time.monotonic(), step.time_s
            cpu_s = _cpu_s() - cpu_s
            process.stop()

    thread = threading.Thread(target=process.run, args=(take,))
    thread.start()
    while not process.ready:
        time.sleep(0.01)
    time.sleep(0.3)  # until all that the start has left is done
    cpu_s, ready_at_s = _cpu_s(), time.monotonic()
    training.begin(config, folder / f"{run_id}.h5", run_id)
    thread.join()
    took_s = told_at_s - ready_at_s
    return took_s, took_s - counted_s, cpu_s


def _cpu_s() -> float:
    """Of this process and all that it has started and that are there."""
    used_s = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            used_s += times.user + times.system
    return used_s


def start(pairs: int, *, way: bool) -> int:
    """The first step here and at a place, in pairs: the difference of the quietest quarters of the way to it."""
    taken: dict[str, list[tuple[float, float, float]]] = {"here": [], "there": []}
    random_of = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        if way:
            Path(folder, "sitecustomize.py").write_text(_NO_ENGINE, encoding="utf-8")
            os.environ["PYTHONPATH"] = folder
        place = agent(Path(folder) / "there")
        for number in range(pairs):
            for side in random_of.permutation(["here", "there"]):
                local = SpawnedChannel(serve_task, daemon=False, keep_output=True)
                channel = local if side == "here" else PlaceChannel(place)
                taken[side].append(first_step(channel, Path(folder), f"{2 * number + (side == 'here'):032x}"))
    ways = {side: [way_s for _, way_s, _ in each] for side, each in taken.items()}
    cpus = {side: [cpu_s for _, _, cpu_s in each] for side, each in taken.items()}
    least = {side: float(np.quantile(each, 0.25)) for side, each in ways.items()}
    difference_s = least["there"] - least["here"]
    apart_s = np.subtract(cpus["there"], cpus["here"])
    for side, each in taken.items():
        print(
            f"{side}: start to first step {_spread([took for took, _, _ in each])}; the way to it "
            f"{_spread(ways[side])}; CPU of all processes {_spread(cpus[side])}"
        )
    print(
        f"start to first step, {pairs} pairs in random order: the way of the order and of the step takes "
        f"{difference_s:+.3f} s more at a place with a warm agent (quietest quarters {least['there']:.3f} and "
        f"{least['here']:.3f} s; medians {np.median(ways['there']) - np.median(ways['here']):+.3f} s; CPU of pairs "
        f"{np.mean(apart_s):+.3f} +- {np.std(apart_s) / max(len(apart_s), 1) ** 0.5:.3f} s), must be at most "
        f"{MOST_LATER_S:+.2f} s"
    )
    return int(difference_s > MOST_LATER_S)


def _spread(values: list[float]) -> str:
    least, low, middle, most = (float(each) for each in np.quantile(values, (0, 0.25, 0.5, 1)))
    return f"{least:.3f}, {low:.3f}, {middle:.3f}, {most:.3f} s (least, quarter, half, most)"


def rates() -> int:
    """The bytes of 30 steps a second, one in each message, and of 10 rows of 60 tensors."""
    steps = [REPLIES.encode(JobEvents(JOB, step.step, (step,))) for step in noisy_steps(300)]
    rows = [REPLIES.encode(JobRow(JOB, number, tensor_row(number, 0.1 * number))) for number in range(1, 51)]
    step_bytes, row_bytes = 30 * statistics.mean(map(len, steps)), 10 * statistics.mean(map(len, rows))
    print(
        f"30 events a second: {step_bytes / 1e3:.1f} kB/s, must be at most {MOST_EVENT_BYTES / 1e3:.0f}; 10 rows of 60 "
        f"tensors a second: {row_bytes * 8 / 1e6:.2f} Mb/s, must be at most {MOST_ROW_BITS / 1e6:.0f}"
    )
    return int(step_bytes > MOST_EVENT_BYTES or row_bytes * 8 > MOST_ROW_BITS)


def window(seconds: float) -> int:
    """How long the window is kept from its timer while it follows a run, before and after SIGSTOP of its agent."""
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    from PySide6.QtWidgets import QApplication

    application = QApplication([])
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PRECGUI_STATE"] = folder
        ticks, states = _followed_ticks(Path(folder), seconds)
    application.quit()
    lost = [state for state in states if "no answer" in state]
    worst_ms = max(ticks) * 1e3
    print(
        f"window and an agent that is stopped by SIGSTOP for {seconds:.0f} s: {len(ticks)} ticks, the work of one at "
        f"most {worst_ms:.1f} ms (99th percentile {np.percentile(ticks, 99) * 1e3:.2f} ms), must be at most "
        f"{MOST_TICK_MS}; it said: {lost[-1] if lost else 'nothing of the link'}"
    )
    return int(worst_ms > MOST_TICK_MS or not lost)


def _followed_ticks(folder: Path, seconds: float) -> tuple[list[float], list[str]]:
    """The seconds that each tick of a window took in its own thread, and what it knew of the link."""
    from PySide6.QtCore import QEventLoop, QTimer

    from precgui.gui.workers.placed_run import PlacedRunThread

    job = JobFolder(JOB)
    job.make(StartRun(JOB, {"task": "digits"}))
    job.claim()
    connection, is_over = JobConnection(job), threading.Event()
    trains = threading.Thread(target=_train_slowly, args=(connection, is_over))
    trains.start()
    run = LiveRun(RunConfig(), run_id=JOB, created="", machine={}, environment={})
    place = agent(folder)
    thread = PlacedRunThread(place, PlacedRun(place, JOB, folder / "home.h5"))
    ticks, states, loop = list[float](), list[str](), QEventLoop()

    def tick() -> None:
        begin_s = time.thread_time()
        while thread.inbox:
            run.extend(thread.inbox.popleft())
        states.append(thread.link_state)
        ticks.append(time.thread_time() - begin_s)

    timer = QTimer()
    timer.timeout.connect(tick)
    timer.start(5)
    thread.launch()
    QTimer.singleShot(3000, lambda: _stop_agents(folder))
    QTimer.singleShot(int(3000 + seconds * 1000), loop.quit)
    loop.exec()
    _stop_agents(folder, signal.SIGKILL)
    timer.stop()
    thread.detach()
    thread.wait()
    is_over.set()
    trains.join()
    return ticks, states


def _train_slowly(connection: JobConnection, is_over: threading.Event) -> None:
    for step in noisy_steps(100_000):
        connection.send([step])
        if is_over.wait(1 / 30):
            return


def _stop_agents(folder: Path, number: signal.Signals = signal.SIGSTOP) -> None:
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.cmdline()[-2:] == ["serve", "--stdio"]:
                process.send_signal(number)


def main() -> int:
    """Returns 1 where a figure is not held."""
    if sys.argv[1:2] == ["throttle"]:
        return throttled(float(sys.argv[2]), sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(required=True)
    attaching = actions.add_parser("attach")
    attaching.add_argument("--steps", type=int, default=100_000)
    attaching.add_argument("--megabits", type=float, default=10.0)
    attaching.set_defaults(call=lambda args: attach(args.steps, args.megabits))
    starting = actions.add_parser("start")
    starting.add_argument("--pairs", type=int, default=12)
    starting.add_argument("--way", action="store_true", help="without an engine: the way alone")
    starting.set_defaults(call=lambda args: start(args.pairs, way=args.way))
    actions.add_parser("rates").set_defaults(call=lambda args: rates())
    looking = actions.add_parser("window")
    looking.add_argument("--seconds", type=float, default=20.0)
    looking.set_defaults(call=lambda args: window(args.seconds))
    args = parser.parse_args()
    return int(args.call(args))


if __name__ == "__main__":
    sys.exit(main())
