"""The time of a checkpoint beside the interval of the default: `python benchmarks/checkpoint_cost.py [RECIPE]`.

Trains some steps with a checkpoint after every second one, and times each write. Prints the share of the interval that
a write takes, largest and median; the exit code is 1 where the median is 1 % or more.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
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
    return int(median / every.seconds >= 0.01)


if __name__ == "__main__":
    sys.exit(main())
