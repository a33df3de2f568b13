"""Kill a process that writes a run, many times at random moments, and look at what its files still hold.

`python benchmarks/kill_test.py --kills 200` prints how many files open and how many lost a flushed step. With
`--engine` the process that is killed trains a network and records its tensors, too. `--aim start` kills while the file
is made, `--aim end` while it is ended and closed.
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
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

import precgui
from precgui.config import RunConfig, load
from precgui.events import Evaluated, Event, Incident, PowerRead, RunEnded, RunStarted, StepDone
from precgui.runs.errors import RunFileError
from precgui.runs.file.reader import BROKEN_OFF
from precgui.runs.file.writer import RunWriter
from precgui.runs.tensors.record import TensorHistory

_PAUSE_S = 0.0002
_STEPS = 300  # of a run that is killed at its end
# What the process says of itself last before the kill may come, and how many seconds later it comes at most.
_AIMS = {"anywhere": ("flushed", 1.2), "start": ("begins", 0.25), "end": ("ends", 0.06)}
Tell = Callable[[str], None]


class Watched:
    """A writer that tells how it gets on: begins, flushed STEPS, ends, ended."""

    def __init__(self, path: Path, config: RunConfig, tell: Tell) -> None:
        self._tell = tell
        tell("begins")
        self._writer = RunWriter(path, config, run_id="kill", created="", machine={}, environment={})
        self._flushed = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, RunEnded):
            self._tell("ends")
        self._writer(event)
        if isinstance(event, RunEnded):
            self._tell("ended")
        if self._writer.flushed_steps != self._flushed:
            self._flushed = self._writer.flushed_steps
            self._tell(f"flushed {self._flushed}")

    def close(self) -> None:
        self._writer.close()


def write(path: Path, steps: int | None, tell: Tell) -> None:
    """Emit steps, for ever without a number of them, and all other events."""
    emit = Watched(path, RunConfig(), tell)
    emit(RunStarted(0.0, 10**9, 100, "cpu", tensors=10))
    for step in range(1, steps + 1) if steps else itertools.count(1):
        now = time.monotonic()  # the same clock in all processes, so that the killer can tell what was lost
        emit(StepDone(step, now, 1 / step, 1.0, False, 0.1, 1.0, 0.001, 0.0, 8, math.nan))
        if step % 7 == 0:
            emit(Incident(now, step, "note", "info", f"{step} " * 60))
        if step % 11 == 0:
            emit(PowerRead(f"sensor {step % 3}", now, 10.0, math.nan))
        if step % 100 == 0:
            emit(Evaluated(step, step // 100, now, 0.5, 0.5))
        time.sleep(_PAUSE_S)
    emit(RunEnded(now, "completed"))
    emit.close()


def write_and_print(path: Path, steps: int | None) -> None:
    write(path, steps, lambda text: print(text, flush=True))


def train_and_send(path: Path, steps: int | None, told: Connection) -> None:
    """Train the small CNN, for ever without a number of steps."""
    from precgui.engine.train import train

    settings = ["device=cpu", "threads=1", "train.epochs=1000000", "record.budget=0.2", "data.batch_size=8"]
    config = load("digits-quick", [*settings, *([f"train.max_steps={steps // 10}"] if steps else [])])
    emit = Watched(path, config, told.send)
    train(config, emit, lambda: False)
    emit.close()


@dataclass
class Outcome:
    opened: bool
    intact: bool  # every step that was flushed is there and right
    steps: int
    lost_s: float  # between the last step kept and the kill


def kill_engine_once(path: Path, aim: str) -> Outcome:
    """Fork a process that trains, so that torch is imported only once."""
    context = multiprocessing.get_context("fork")
    heard, told = context.Pipe(duplex=False)
    process = context.Process(target=train_and_send, args=(path, _STEPS if aim == "end" else None, told))
    process.start()
    told.close()
    said = [heard.recv()]
    word, at_most_s = _AIMS[aim]
    while not said[-1].startswith(word):
        said.append(heard.recv())
    time.sleep(random.uniform(0.0, at_most_s))
    process.kill()
    process.join()
    with contextlib.suppress(EOFError):
        while True:
            said.append(heard.recv())
    return seen(path, said, time.monotonic(), engine=True)


def kill_writer_once(path: Path, aim: str) -> Outcome:
    command = [sys.executable, __file__, "--write", str(path), *(["--steps", str(_STEPS)] if aim == "end" else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        word, at_most_s = _AIMS[aim]
        said = [process.stdout.readline()]
        while not said[-1].startswith(word):
            said.append(process.stdout.readline())
        time.sleep(random.uniform(0.0, at_most_s))
        killed_s = time.monotonic()
        process.kill()
        said += process.stdout.read().splitlines()
    return seen(path, said, killed_s, engine=False)


def seen(path: Path, said: list[str], killed_s: float, *, engine: bool) -> Outcome:
    """What the file of a killed process holds, beside what the process had said."""
    flushed = max((int(line.split()[1]) for line in said if line.startswith("flushed")), default=0)
    ended = any(line.startswith("ended") for line in said)
    ends = ended or any(line.startswith("ends") for line in said)
    if not path.exists() and not flushed:
        return Outcome(True, True, 0, 0.0)  # killed before the file had its name
    try:
        with precgui.open_run(path) as run:
            (step, loss), kinds = run.series("loss"), run.tensors()
            right = np.isfinite(loss).all() if engine else np.array_equal(loss, 1 / step)
            checks = {
                "steps that were flushed": len(step) >= flushed,
                "steps and losses that are right": right and np.array_equal(step, np.arange(1, len(step) + 1)),
                "whole events": engine or all(event.message == f"{event.step} " * 60 for event in run.events()),
                "whole histograms": all(is_whole(record) for record in kinds.values()),
                "gradients": not (engine and flushed) or "gradient" in kinds,
                "its status": run.status == "completed" if ended else run.status == "failed" or ends,
                "silence": not [note for note in run.notes if note != BROKEN_OFF],
            }
            lacking = [what for what, there in checks.items() if not there]
            if lacking:
                print(f"{path.name} lacks {lacking}; {len(step)} steps, {said[-1]}, {run.status}, {run.notes}")
            times = run.series("loss", "time_s")[0]
            lost_s = killed_s - float(times[-1]) if len(times) and not engine and not ends else 0.0
            return Outcome(True, not lacking, len(step), lost_s)
    except RunFileError as error:
        print(error)
        return Outcome(False, False, 0, math.inf)


def is_whole(record: TensorHistory) -> bool:
    """Whether each histogram of each row holds as many elements as were counted."""
    counts = record.stat("count")
    return len(counts) == len(record) and np.array_equal(record.exponents().sum(2), np.nan_to_num(counts))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", action="store_true", help="kill a process that trains")
    parser.add_argument("--aim", choices=_AIMS, default="anywhere", help="when to kill; default anywhere")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        write_and_print(options.write, options.steps)
        return 0
    if options.engine:
        import precgui.engine.train  # noqa: F401  once, before the forks
    random.seed(options.seed)
    kill = kill_engine_once if options.engine else kill_writer_once
    with tempfile.TemporaryDirectory() as folder:
        outcomes = [kill(Path(folder) / f"{number}.h5", options.aim) for number in range(options.kills)]
        named = len(list(Path(folder).glob("*.h5")))
    opened, intact = sum(o.opened for o in outcomes), sum(o.intact for o in outcomes)
    lost = options.kills - intact
    print(
        f"{options.kills} kills: {opened} files open, {lost} lost flushed steps, {options.kills - named} not yet named"
    )
    print(f"steps kept: {sum(o.steps for o in outcomes)}")
    if not options.engine and options.aim == "anywhere":
        print(f"lost at most {max(o.lost_s for o in outcomes):.2f} s")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
