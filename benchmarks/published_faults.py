"""The diagnosis tried on mistakes that people have published and on unusual but healthy loops.

`python benchmarks/published_faults.py [--only TEXT] [--part mistakes|unusual]` trains each mistake beside its
correction, measures the harm (the share of the progress of the corrected loop that is missing, above 10 %), and prints
what the diagnosis says. The loops of `tests/faults/published_*.py` and `unusual_loops.py` were written before any
threshold was changed for them.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from functools import partial
from pathlib import Path

import torch

import precgui
from precgui.config import RecordConfig
from precgui.runs.diagnosis import Diagnosis

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.faults.odd_loops import ALL, judged
from tests.faults.published_faults import Open, Train
from tests.faults.published_mistakes import FAULTS
from tests.faults.unusual_loops import UNUSUAL

RECORDS = {"every step": ALL, "default": RecordConfig()}


def trained(train: Train, broken: bool, path: Path, record: RecordConfig) -> tuple[float, Diagnosis]:
    """The loss afterwards and the diagnosis."""
    results: list[float] = []

    def loop(opened: Open) -> None:
        results.append(train(opened, broken))

    return_value = judged(loop, path, record)
    return results[0], return_value


def first_loss(path: Path) -> float:
    with precgui.open_run(path) as run:
        losses = run.series("loss")[1]
        return float(next((value for value in losses if math.isfinite(value)), math.nan))


def told(diagnosis: Diagnosis) -> str:
    return ", ".join(f"{f.rule} ({f.severity}, {f.precision_is_to_blame})" for f in diagnosis.problems) or "nothing"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="loops whose name contains this")
    parser.add_argument("--part", choices=("mistakes", "unusual"), help="only these loops")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.part != "unusual":
            _mistakes(folder, args.only)
        if args.part != "mistakes":
            _unusual(folder, args.only)


def _mistakes(folder: Path, only: str) -> None:
    right = harmful = blame_right = twins_accused = 0
    for name, fault in FAULTS.items():
        if only not in name:
            continue
        bad, diagnosis = trained(fault.train, True, folder / f"{name}.h5", ALL)
        good, of_twin = trained(fault.train, False, folder / f"{name}.twin.h5", ALL)
        start = first_loss(folder / f"{name}.twin.h5")
        harm = 1.0 if not math.isfinite(bad) else (bad - good) / max(start - good, 1e-9)
        hits = [f for f in diagnosis.problems if f.rule in fault.rules]
        blames = [f.precision_is_to_blame for f in hits if f.precision_is_to_blame is not None]
        fair = fault.blame is None or all(blame == fault.blame for blame in blames)
        harmful += harm > 0.1
        right += harm > 0.1 and bool(hits)
        blame_right += harm > 0.1 and bool(hits) and fair
        twins_accused += bool(of_twin.problems)
        word = ("found" if hits else "MISSED") if harm > 0.1 else ("silent" if not diagnosis.problems else "told")
        print(f"{word:7} {name} (harm {harm:.2f}, blame {'right' if fair else 'WRONG'}): {told(diagnosis)}; "
              f"corrected: {told(of_twin)}", flush=True)  # fmt: skip
    print(f"harmful mistakes found {right} of {harmful}, blame right in {blame_right}; corrected loops accused "
          f"{twins_accused} of {sum(only in name for name in FAULTS)}")  # fmt: skip


def _unusual(folder: Path, only: str) -> None:
    for title, record in RECORDS.items():
        accused = 0
        for name, loop in UNUSUAL.items():
            if only in name:
                result = judged(partial(loop), folder / f"{name}.{title}.h5", record)
                accused += bool(result.problems)
                if result.problems:
                    print(f"ACCUSED {name}: {told(result)}", flush=True)
        print(f"unusual healthy loops, record {title}: accused {accused} of {sum(only in name for name in UNUSUAL)}")


if __name__ == "__main__":
    main()
