"""What places cost, over a pipe to an agent in a process of its own.

    python benchmarks/places.py attach [--steps 100000] [--megabits 10]

`attach`: from the first byte of an agent that has said hello, and from the start of its command, to all steps of a run
in a LiveRun, over a pipe of so many megabits a second. Exit code 1 when the first takes 2 s or longer.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from precgui.config import RunConfig
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
from precgui.places.messages import StartRun
from precgui.places.placed_job import PlacedRun
from precgui.places.runner import JobConnection
from precgui.places.settings import NamedPlace
from precgui.runs.live import LiveRun

JOB = "0123456789abcdef" * 2
MOST_ATTACH_S = 2.0
ROWS_EVERY = 500  # steps
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
    args = parser.parse_args()
    return int(args.call(args))


if __name__ == "__main__":
    sys.exit(main())
