"""Mutate a real run file many times and read all of each: never a crash, only what is left or one sentence.

`python benchmarks/fuzz_reader.py --mutations 2000` prints how many files were read whole, read with notes, and refused.
"""

from __future__ import annotations

import argparse
import collections
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from precgui import config
from precgui.engine.train import train
from precgui.runs.file.writer import RunWriter

AT_ONCE = 100
READ_ALL = """
import sys, numpy, precgui
from precgui.runs.errors import RunFileError
from precgui.runs.tensors.overview import Overview
from precgui.runs.signals import SIGNALS
from precgui.runs.summary import summarise
from precgui.runs.tensors.what_if import WhatIf
numpy.seterr(all="ignore")
for path in sys.argv[1:]:
    print("begin", flush=True)
    try:
        with precgui.open_run(path) as run:
            for name in SIGNALS:
                run.series(name), run.series(name, "time_s")
            run.events(), run.machine, run.environment, run.config, summarise(run)
            for record in run.tensors().values():
                overview = Overview(24)
                record.add_to(overview, list(range(len(record))))
                overview.columns()
                record.steps(), record.strides(), record.stat("amax")
                exponents, stats = record.exponents(), record.stats()
                rows = min(len(exponents), len(stats))
                if rows and exponents.shape[1] == stats.shape[1]:
                    WhatIf(exponents[0], stats[0]).predict("fp16", 8)
            print("noted" if run.notes else "whole", flush=True)
    except RunFileError as error:
        assert str(error).startswith(path) and chr(10) not in str(error), error
        print("refused", flush=True)
"""


def record(path: Path) -> None:
    """A short real run with everything in it."""
    settings = ["device=cpu", "threads=1", "train.max_steps=60", "record.budget=100", "precision=fp16-amp"]
    asked = config.load("digits-quick", settings)
    with RunWriter(path, asked, run_id="fuzz", created="", machine={}, environment={}) as writer:
        train(asked, writer, lambda: False)


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Bits flipped, bytes overwritten, pieces moved, cut out or put in twice, the end cut off."""
    data = bytearray(content)
    reach = rng.choice([2_000, 30_000, 200_000, len(data)])
    at, size = rng.randrange(min(reach, len(data))), rng.choice([1, 1, 8, 64, 4096])
    match rng.choice(["flip", "flip", "flips", "fill", "move", "delete", "double", "cut"]):
        case "flip":
            data[at] ^= 1 << rng.randrange(8)
        case "flips":
            for _ in range(64):
                data[rng.randrange(min(reach, len(data)))] ^= 1 << rng.randrange(8)
        case "fill":
            data[at : at + size] = bytes([rng.choice([0, 255, rng.randrange(256)])]) * len(data[at : at + size])
        case "move":
            other = rng.randrange(len(data))
            data[at : at + size] = data[other : other + size]
        case "delete":
            del data[at : at + size]
        case "double":
            data[at:at] = data[at : at + size]
        case "cut":
            del data[at:]
    return bytes(data)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutations", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    outcomes: collections.Counter[str] = collections.Counter()
    crashes = 0
    with tempfile.TemporaryDirectory() as folder:
        record(Path(folder) / "run.h5")
        content = (Path(folder) / "run.h5").read_bytes()
        for start in range(0, options.mutations, AT_ONCE):
            paths = [Path(folder) / f"{number}.h5" for number in range(start, min(start + AT_ONCE, options.mutations))]
            for path in paths:
                path.write_bytes(mutated(content, rng))
            done = subprocess.run([sys.executable, "-c", READ_ALL, *map(str, paths)], capture_output=True, text=True)
            outcomes.update(done.stdout.replace("begin", "").split())
            if done.returncode:
                crashes += 1
                print(f"{paths[done.stdout.count('begin') - 1].name}: {done.returncode}\n{done.stderr[-1500:]}")
            for path in paths:
                path.unlink()
    told = ", ".join(f"{count} {word}" for word, count in outcomes.items())
    print(f"{options.mutations} mutations of {len(content)} bytes: {told}; {crashes} crashes")
    return 1 if crashes else 0


if __name__ == "__main__":
    sys.exit(main())
