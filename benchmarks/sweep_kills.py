"""Kill a sweep ten times at random moments, resume it, and count runs that are lost or ran twice; and its overhead.

    python benchmarks/sweep_kills.py [--kills 10] [--seed 1]

Half of the kills hit the runner alone, whose run goes on without it, half the runner with its run (SIGKILL).
The overhead is the time of a whole sweep without kills over the lives of the processes of its runs.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from precgui import config
from precgui.runs.file.reader import open_run
from precgui.sweeps.events import MemberEnded, SweepEvent
from precgui.sweeps.folder import SweepFolder, create_sweep
from precgui.sweeps.report import sweep_document
from precgui.sweeps.runner import run_sweep
from precgui.sweeps.spec import make_spec

ROOT = Path(__file__).parent.parent


def small_sweep(path: Path, seeds: int) -> SweepFolder:
    base = config.load("regression-precise", ["train.max_steps=200", "device=cpu", "threads=1"])
    return create_sweep(path, make_spec(base, ["fp32", "bf16-amp"], seeds, order_seed=1))


def ended(folder: SweepFolder) -> dict[str, str]:
    """The runs that have ended, each with the id that was given to it when it began."""
    found = {}
    for state in folder.states():
        if state.status in ("completed", "failed"):
            with open_run(state.path) as run:
                found[state.member.name] = run.run_id
    return found


def kill_often(folder: SweepFolder, kills: int, seed: int) -> tuple[int, int]:
    """Kill the sweep so many times. Returns how many runs that had ended were lost, and how many were run again."""
    random_, known, lost, again = random.Random(seed), ended(folder), 0, 0
    for number in range(kills):
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "main.py"), "sweep", str(folder.path)],
            start_new_session=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        time.sleep(random_.uniform(0.5, 12.0))
        how = "runner and run" if number % 2 else "runner"
        (os.killpg if number % 2 else os.kill)(process.pid, signal.SIGKILL)
        process.wait()
        now = ended(folder)
        lost += len(known.keys() - now.keys())
        again += sum(now[name] != run_id for name, run_id in known.items() if name in now)
        known = now
        print(f"kill {number + 1} of the {how}: {len(now)} runs have ended", flush=True)
    return lost, again


def overhead(folder: SweepFolder) -> str:
    lives: list[float] = []

    def count(event: SweepEvent) -> None:
        if isinstance(event, MemberEnded):
            lives.append(event.wall_s)

    begin = time.monotonic()
    run_sweep(folder, count)
    total, runs = time.monotonic() - begin, sum(lives)
    return f"overhead: {total:.2f} s for {len(lives)} runs of {runs:.2f} s, {100 * (total / runs - 1):.2f} %"


def main(kills: int, seed: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = small_sweep(Path(scratch) / "killed", seeds=3)
        lost, again = kill_often(folder, kills, seed)
        before = ended(folder)
        run_sweep(folder, lambda event: None)
        after, document = ended(folder), sweep_document(folder)
        again += sum(after[name] != run_id for name, run_id in before.items())
        discarded = len(list((folder.path / "discarded").glob("*.h5")))
        print(f"{kills} kills: {lost} runs lost, {again} run twice, {discarded} cut off and begun again")
        print(f"{document.done} of {len(document.members)} runs done at the end")
        print(overhead(small_sweep(Path(scratch) / "whole", seeds=2)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    main(options.kills, options.seed)
