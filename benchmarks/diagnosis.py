"""The confusion matrix of the diagnosis: planted faults, each beside a twin without it, and healthy trainings.

    python benchmarks/diagnosis.py [--only TEXT] [--keep DIR] [--processes 2]

Trainings go on in two processes of one thread each, which does not change what is recorded. With `--keep` a benchmark
that was cut off goes on where it was: complete files are judged, not made again. Whether a fault does harm is measured:
it is the share of the twin's progress that is missing on data that neither training has seen, above 10 %. A third of
all trainings, by a hash of their names, was not looked at while the thresholds were chosen; it is reported apart. Last,
how long it takes to judge a run of 10 000 steps with 200 tensors.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import multiprocessing
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

import numpy as np
import torch

import precgui
from precgui.config import RunConfig
from precgui.events import EXPONENT_BINS, TENSOR_STATS, RunEnded, RunStarted, StepDone, TensorStats
from precgui.runs.diagnosis import Diagnosis, examine
from precgui.runs.file.writer import RunWriter

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.faults.catalogue import plants
from tests.faults.healthy import healthy
from tests.faults.matrix import Case, judge_healthy, judge_plant, table
from tests.faults.plants import Plant, held_back
from tests.faults.training import Setting

TENSORS, STEPS, EVERY = 200, 10_000, 20


def main() -> None:
    """Train, judge, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="trainings whose name contains this")
    parser.add_argument("--keep", type=Path, help="a folder for the run files; those in it are judged, not made again")
    parser.add_argument("--processes", type=int, default=2, help="that train side by side")
    args = parser.parse_args()
    begin = time.perf_counter()
    torch.set_num_threads(1)
    with contextlib.ExitStack() as stack:
        folder = args.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(exist_ok=True)
        cases = _cases(folder, args.only, max(args.processes, 1))
        for title, held in (("Thresholds were chosen on these", False), ("Held back", True)):
            own = [case for case in cases if held_back(case.name) is held]
            print(f"\n{title}: {len(own)} trainings\n{table(own)}")
        if not args.only:
            print(f"{(time.perf_counter() - begin) / 60:.1f} minutes")
            print(f"\n{STEPS} steps, {TENSORS} tensors: {_long_run_s(folder):.2f} s of CPU time to open and judge")


def _cases(folder: Path, only: str, processes: int) -> list[Case]:
    """All trainings judged, in a fixed order."""
    jobs = [(folder, place) for place, (name, _) in enumerate(_trainings()) if only in name]
    cases = []
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for done, (place, effect, diagnosis) in enumerate(pool.imap_unordered(_judged, jobs), 1):
            name, training = _trainings()[place]
            plant = training if isinstance(training, Plant) else None
            cases.append((place, Case(name, plant, effect, diagnosis)))
            print(f"\r{done} of {len(jobs)}", end="", file=sys.stderr, flush=True)
    return [case for _, case in sorted(cases, key=lambda each: each[0])]


@cache
def _trainings() -> list[tuple[str, Plant | Setting]]:
    return [*((plant.name, plant) for plant in plants()), *healthy()]


def _judged(job: tuple[Path, int]) -> tuple[int, float, Diagnosis]:
    """One training in a process of the pool; trainings hold functions, so they are named by their place."""
    folder, place = job
    torch.set_num_threads(1)
    name, training = _trainings()[place]
    case = judge_plant(folder, training) if isinstance(training, Plant) else judge_healthy(folder, name, training)
    return place, case.harm, case.diagnosis


def write_long_run(path: Path) -> None:
    """A healthy run of STEPS steps with TENSORS tensors of five kinds, measured every EVERY steps."""
    rng = np.random.default_rng(0)
    names = tuple(f"layer{i}.weight" for i in range(TENSORS))
    config, created = RunConfig(precision="fp16-amp"), "2026-01-01T00:00:00+00:00"
    writer = RunWriter(path, config, run_id="1", created=created, machine={}, environment={})
    with writer:
        writer(RunStarted(0.0, STEPS, STEPS, "cpu", {}, TENSORS))
        for step in range(1, STEPS + 1):
            loss = 2 * math.exp(-step / 3000) + 0.1 * rng.random()
            writer(StepDone(step, 0.1 * step, loss, 2.0**12, False, 0.1, 1 + rng.random(), 0.1, 0.0, 8, math.nan))
            if step % EVERY == 0:
                for kind in ("gradient", "weight", "update", "activation", "activation_gradient"):
                    writer(_statistics(rng, step, kind, names))
        writer(RunEnded(0.1 * STEPS, "completed"))


def _long_run_s(folder: Path) -> float:
    path = folder / "long.h5"
    if not path.exists():
        write_long_run(path)
    begin = time.process_time()
    with precgui.open_run(path) as run:
        examine(run)
    return time.process_time() - begin


def _statistics(rng: np.random.Generator, step: int, kind: str, names: tuple[str, ...]) -> TensorStats:
    stats = np.abs(rng.normal(size=(len(names), len(TENSOR_STATS))))
    for name, value in (("count", 4096.0), ("zeros", 4.0), ("nan", 0.0), ("pos_inf", 0.0), ("neg_inf", 0.0)):
        stats[:, TENSOR_STATS.index(name)] = value
    exponents = rng.integers(0, 50, (len(names), EXPONENT_BINS)).astype("<u4")
    exponents[:, 140:] = 0
    return TensorStats(step, 0.1 * step, kind, names, (1,) * len(names), stats.tobytes(), exponents.tobytes())


if __name__ == "__main__":
    main()
