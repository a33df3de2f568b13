"""How much faster a training step is in each precision than in FP32, in pairs of random order.

    python benchmarks/precision_ratios.py --device cuda [--model gpt] [--size large] [--batch 64] [--seconds 60]

A pair is a step in FP32 and a step in the precision, one right after the other; which comes first is drawn anew. The
ratio is that of the medians, with its 95 % bootstrap interval. Above 1 the precision is faster. Prints a JSON line for
each precision, in which `products` tells whether products are native or emulated. A precision that torch or precgui
refuses has no pairs, and the reason as its remark. After an error that leaves the device unusable the others are not
measured, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from typing import Any

import numpy as np
import torch

from benchmarks.engine_overhead import now, ratio, stepper, wanted
from precgui.config import PRECISIONS
from precgui.engine import backend_flags

WARM_PAIRS, FEWEST_PAIRS, MOST_PAIRS = 3, 6, 300
LAST = ("mxfp6", "fp64")  # if time is short
EVERY = [name for name in PRECISIONS if name not in ("fp32", *LAST) and not name.endswith("-qat")]
EVERY += LAST


def measure(precision: str, options: argparse.Namespace, seconds: float, order: random.Random) -> dict[str, Any]:
    def made(name: str) -> Any:
        more = [f"data.batch_size={options.batch}"] if options.batch else []
        run = wanted(options.model, options.size, options.threads, options.device, f"precision={name}", *more)
        return stepper(run)

    steps, times = {}, {"fp32": list[float](), precision: list[float]()}
    steps["fp32"], _ = made("fp32")
    steps[precision], notes = made(precision)
    for _ in range(WARM_PAIRS):
        for name in steps:
            _timed(steps[name])
    deadline = time.perf_counter() + seconds
    for pair in range(MOST_PAIRS):
        if pair >= FEWEST_PAIRS and time.perf_counter() > deadline:
            break
        for name in order.sample(list(steps), 2):
            times[name].append(_timed(steps[name]))
    of_fp32, own = np.array(times["fp32"]), np.array(times[precision])
    return {
        "products": products(notes), "fp32_ms": float(np.median(of_fp32)) * 1e3, "step_ms": float(np.median(own)) * 1e3,
        "pairs": len(own), "remark": "; ".join(notes), **{key: float(x) for key, x in ratio(of_fp32, own).items()},
    }  # fmt: skip


def _timed(step: Any) -> float:
    begin = now()
    step()
    return float((now() - begin)[0])


def products(notes: list[str]) -> str:
    """How products run, by the notes of a precision, which tell of each emulation."""
    emulated = any(" is emulated in " in note for note in notes)
    native = any(" is native in " in note for note in notes)
    return "native and emulated" if emulated and native else "emulated" if emulated else "native"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--model", default="gpt", choices=["cnn", "resnet", "gpt"])
    parser.add_argument("--size", default="medium", choices=["small", "medium", "large"])
    parser.add_argument("--batch", type=int, default=0, help="samples of a batch; 0: as many as in the recipe")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--seconds", type=float, default=60.0, help="of all precisions together")
    parser.add_argument("--precisions", default=",".join(EVERY))
    parser.add_argument("--seed", type=int, default=0, help="of the order in pairs")
    options = parser.parse_args()
    names = options.precisions.split(",")
    order = random.Random(options.seed)
    model = f"{options.model} {options.size}" + (f", batch {options.batch}" if options.batch else "")
    for name in names:
        row: dict[str, Any] = {"model": model, "precision": name}
        with backend_flags.restored():
            torch.set_num_threads(options.threads)
            try:
                row |= measure(name, options, options.seconds / len(names), order)
            except (RuntimeError, ValueError, NotImplementedError) as error:
                row |= {"products": "", "pairs": 0, "remark": f"{type(error).__name__}: {error}".splitlines()[0]}
        print(json.dumps(row), flush=True)
        if not row["pairs"] and "CUDA error" in row["remark"]:
            print(f"the device is lost in {name}: the precisions after it are not measured", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
