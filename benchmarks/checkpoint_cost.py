"""The time of a checkpoint beside the interval of the default: `python benchmarks/checkpoint_cost.py [RECIPE]`.

Trains some steps with a checkpoint after every second one, and times each write. Prints the share of the interval that
a write takes, largest and median; the exit code is 1 where the median is 1 % or more. With `--pairs N` it also trains
so many pairs of whole runs in turns, with these checkpoints and without any: the difference holds what a checkpoint
costs beside its write, too. CPU time is not lengthened by other processes of a busy machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from precgui.checkpoint_files import checkpoint_files
from precgui.config import TrainConfig, load
from precgui.config.intervals import interval
from precgui.engine.checkpoint.hook import Checkpoints
from precgui.engine.train import train
from precgui.events import Event

STEPS = 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", nargs="?", default="gpt-quick")
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--pairs", type=int, default=0, help="whole runs with and without checkpoints, in turns")
    args = parser.parse_args()
    every = interval(TrainConfig().checkpoint_every)
    assert every is not None
    assert every.seconds
    settings = ["device=cpu", f"train.max_steps={STEPS}", "train.checkpoint_every=2 steps", "record.tensors=false"]
    taken: list[float] = []
    write = Checkpoints._write

    def timed(hook: Checkpoints, *arguments: object) -> None:
        begin = time.perf_counter()
        write(hook, *arguments)  # type: ignore[arg-type]
        taken.append(time.perf_counter() - begin)

    Checkpoints._write = timed  # type: ignore[method-assign, assignment]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run.h5"

        def ignore(event: Event) -> None:
            pass

        train(load(args.recipe, [*settings, *args.settings]), ignore, lambda: False, "cost", run)
        size = max(path.stat().st_size for path in checkpoint_files(run).values())
    median, most = statistics.median(taken), max(taken)
    print(f"{args.recipe}: {len(taken)} checkpoints of {size / 1e6:.1f} MB, median {median:.4f} s, most {most:.4f} s")
    print(f"share of {every.seconds:g} s: median {median / every.seconds:.4%}, most {most / every.seconds:.4%}")
    if args.pairs:
        tell_pairs(args.recipe, [*settings, *args.settings], args.pairs, every.seconds)
    return int(median / every.seconds >= 0.01)


def tell_pairs(recipe: str, settings: Sequence[str], pairs: int, every_s: float) -> None:
    """Print the cost of a checkpoint, median over pairs of runs: one with a checkpoint after every second step."""
    costs = []
    for pair in range(pairs):
        both = {}
        for added in ((), ("train.checkpoint_every=",))[:: 1 if pair % 2 else -1]:
            both[bool(added)] = trained_s(recipe, [*settings, *added])
        costs.append([(one - other) / (STEPS // 2) for one, other in zip(both[False], both[True], strict=True)])
    for name, values in zip(("time", "CPU time"), zip(*costs, strict=True), strict=True):
        told = ", ".join(f"{value:.4f}" for value in sorted(values))
        print(f"{name} of a checkpoint in {pairs} pairs: {told} s; median {statistics.median(values) / every_s:.4%}")


def trained_s(recipe: str, settings: Sequence[str]) -> tuple[float, float]:
    """The seconds and CPU seconds of a run."""
    with tempfile.TemporaryDirectory() as folder:
        begin, begin_cpu = time.perf_counter(), time.process_time()
        train(load(recipe, settings), lambda event: None, lambda: False, "cost", Path(folder) / "run.h5")
        return time.perf_counter() - begin, time.process_time() - begin_cpu


if __name__ == "__main__":
    sys.exit(main())
