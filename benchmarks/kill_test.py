"""Kill a process that writes a run, many times at random moments, and look at what its files still hold.

`python benchmarks/kill_test.py --kills 200` prints how many files open and how many lost a flushed step. With
`--engine` the process that is killed trains a network and records its tensors, too.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import multiprocessing
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

import precgui
from precgui.config import RunConfig, load
from precgui.events import Evaluated, Event, Incident, PowerRead, RunStarted, StepDone
from precgui.runs.errors import RunFileError
from precgui.runs.tensors import TensorRecord
from precgui.runs.writer import RunWriter

_PAUSE_S = 0.0002


def write_without_end(path: Path) -> None:
    """Emit steps and all other events for ever; print the number of steps each time the writer has flushed them."""
    emit = RunWriter(path, RunConfig(), run_id="kill", created="", machine={}, environment={})
    emit(RunStarted(0.0, 10**9, 100, "cpu"))
    flushed = 0
    for step in itertools.count(1):
        now = time.monotonic()  # the same clock in all processes, so that the killer can tell what was lost
        emit(StepDone(step, now, 1 / step, 1.0, False, 0.1, 1.0, 0.001, 0.0, 8, math.nan))
        if step % 7 == 0:
            emit(Incident(now, step, "note", "info", f"{step} " * 60))
        if step % 11 == 0:
            emit(PowerRead(f"sensor {step % 3}", now, 10.0, math.nan))
        if step % 100 == 0:
            emit(Evaluated(step, step // 100, now, 0.5, 0.5))
        if emit.flushed_steps != flushed:
            flushed = emit.flushed_steps
            print(flushed, flush=True)
        time.sleep(_PAUSE_S)


def train_without_end(path: Path, told: Connection) -> None:
    """Train the small CNN for ever; send the number of steps each time the writer has flushed them."""
    from precgui.engine.train import train

    settings = ["device=cpu", "threads=1", "train.epochs=1000000", "record.budget=0.2", "data.batch_size=8"]
    config = load("digits-quick", settings)
    writer = RunWriter(path, config, run_id="kill", created="", machine={}, environment={})
    flushed = 0

    def emit(event: Event) -> None:
        nonlocal flushed
        writer(event)
        if writer.flushed_steps != flushed:
            flushed = writer.flushed_steps
            told.send(flushed)

    train(config, emit, lambda: False)


def kill_engine_once(path: Path, after_s: float) -> Outcome:
    """Fork a process that trains, so that torch is imported only once."""
    context = multiprocessing.get_context("fork")
    heard, told = context.Pipe(duplex=False)
    process = context.Process(target=train_without_end, args=(path, told))
    process.start()
    told.close()
    flushed = [heard.recv()]
    time.sleep(after_s)
    process.kill()
    process.join()
    with contextlib.suppress(EOFError):
        while True:
            flushed.append(heard.recv())
    try:
        with precgui.open_run(path) as run:
            step, loss = run.series("loss")
            right = np.array_equal(step, np.arange(1, len(step) + 1)) and bool(np.isfinite(loss).all())
            torn = [kind for kind, record in run.tensors().items() if not is_whole(record)]
            checks = {
                "steps that were flushed": len(step) >= max(flushed),
                "steps and losses that are right": right,
                f"whole histograms of {torn}": not torn,
                "gradients": "gradient" in run.tensors(),
                "the status failed": run.status == "failed",
            }
            if not all(checks.values()):
                lacking = ", ".join(what for what, there in checks.items() if not there)
                print(
                    f"{path.name} lacks {lacking}; {len(step)} steps, flushed {max(flushed)}, {run.status}, {run.notes}"
                )
            return Outcome(True, all(checks.values()), len(step), 0.0)
    except RunFileError as error:
        print(error)
        return Outcome(False, False, 0, math.inf)


def is_whole(record: TensorRecord) -> bool:
    """Whether each histogram of each row holds as many elements as were counted."""
    counts = record.stat("count")
    return len(counts) == len(record) and np.array_equal(record.exponents().sum(2), np.nan_to_num(counts))


@dataclass
class Outcome:
    opened: bool
    intact: bool  # every step that was flushed is there and right
    steps: int
    lost_s: float  # between the last step kept and the kill


def kill_once(path: Path, after_s: float) -> Outcome:
    command = [sys.executable, __file__, "--write", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(after_s)
        killed_s = time.monotonic()
        process.kill()
        flushed = [int(line) for line in process.stdout.read().split() if line]
    try:
        with precgui.open_run(path) as run:
            step, loss = run.series("loss")
            time_s = run.series("loss", "time_s")[0]
            right = np.array_equal(step, np.arange(1, len(step) + 1)) and np.array_equal(loss, 1 / step)
            whole = all(event.message == f"{event.step} " * 60 for event in run.events())
            intact = bool(right and whole and len(step) >= max(flushed, default=0) and run.status == "failed")
            return Outcome(True, intact, len(step), killed_s - float(time_s[-1]))
    except RunFileError as error:
        print(error)
        return Outcome(False, False, 0, math.inf)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", action="store_true", help="kill a process that trains")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        write_without_end(options.write)
    if options.engine:
        import precgui.engine.train  # noqa: F401  once, before the forks
    random.seed(options.seed)
    kill = kill_engine_once if options.engine else kill_once
    with tempfile.TemporaryDirectory() as folder:
        outcomes = [kill(Path(folder) / f"{number}.h5", random.uniform(0.0, 1.2)) for number in range(options.kills)]
    opened, intact = sum(o.opened for o in outcomes), sum(o.intact for o in outcomes)
    print(f"{options.kills} kills: {opened} files open, {options.kills - intact} lost flushed steps")
    print(f"steps kept: {sum(o.steps for o in outcomes)}")
    if not options.engine:
        print(f"lost at most {max(o.lost_s for o in outcomes):.2f} s")
    return 0 if intact == options.kills else 1


if __name__ == "__main__":
    sys.exit(main())
