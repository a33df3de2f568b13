"""What the engine costs over a hand-written loop, and what each precision costs over FP32.

    python benchmarks/engine_overhead.py [--pairs 60] [--models cnn,resnet,gpt] [--size medium] [--precisions fp8,...]
    python benchmarks/engine_overhead.py --seconds 20 --precisions fp8,tf32    about five minutes

Prints a JSON line for each measurement, as soon as it is made: `part` is overhead, gain or precision.

(a) Overhead: a hand-written step follows each step of the engine, in the same process on the same kind of data; the
ratio of the two medians with its 95 % bootstrap interval, by the clock and in CPU time, which other work on the machine
lengthens less. Both read loss and gradient norm once a step. Telemetry is off. Target: 1.01 or less.
(b) Gain: FP32 over BF16 autocast, of the engine and by hand. Target: within 3 % of each other.
(c) Precisions: one step of each over one of FP32, round-robin, best of all rounds. Target for emulated ones: 2 or less.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from precgui import config
from precgui.config import PRECISIONS, RunConfig
from precgui.engine import backend_flags, precisions, tasks
from precgui.engine.train import train
from precgui.events import Evaluated, Event, StepDone

Times = NDArray[np.float64]
WARM_PAIRS, FEWEST_PAIRS = 4, 6
RESAMPLES = 2000
RECIPES = {"cnn": ("digits-quick", "cnn"), "resnet": ("digits-quick", "resnet"), "gpt": ("gpt-quick", "gpt")}
EMULATED = ("emulated:e4m3fn", "emulated:fp16", "emulated:int8")


def wanted(model: str, size: str, threads: int, device: str, *settings: str) -> RunConfig:
    recipe, name = RECIPES[model]
    fixed = [
        f"device={device}",
        f"threads={threads}",
        f"model.name={name}",
        f"model.size={size}",
        "record.tensors=false",
    ]
    return config.load(recipe, [*fixed, "train.clip_norm=", "optimizer.schedule=constant", *settings])


class ByHand:
    """The loop that a person writes: one step at a call, seconds returned."""

    def __init__(self, run: RunConfig, dtype: torch.dtype | None) -> None:
        self._task = tasks.make(run)
        torch.manual_seed(run.seed)
        self._device = torch.device(run.device)
        self._model = self._task.model().to(self._device).train()
        kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
        more = {"momentum": run.optimizer.momentum} if run.optimizer.name == "sgd" else {}
        self._optimizer = kinds[run.optimizer.name](self._model.parameters(), lr=run.optimizer.lr, **more)
        self._dtype = dtype
        self._batches = iter(self._task.train_batches())

    def step(self) -> Times:
        begin = now()
        try:
            inputs, targets = next(self._batches)
        except StopIteration:
            self._batches = iter(self._task.train_batches())
            inputs, targets = next(self._batches)
            begin = now()
        inputs, targets = inputs.to(self._device), targets.to(self._device)
        self._optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self._device.type, dtype=self._dtype) if self._dtype else contextlib.nullcontext():
            outputs = self._model(inputs)
        loss = self._task.loss(outputs.float(), targets)
        loss.backward()
        norm = nn.utils.get_total_norm([p.grad for p in self._model.parameters() if p.grad is not None])
        self._optimizer.step()
        loss.item(), norm.item()
        return now() - begin


def now() -> Times:
    """Seconds by the clock and of CPU time."""
    return np.array((time.perf_counter(), time.process_time()))


def overhead(run: RunConfig, dtype: torch.dtype | None, pairs: int, seconds: float) -> dict[str, Any]:
    """Median times of a step of the engine and by hand, and their ratios; ends after `pairs` or `seconds`."""
    hand = ByHand(run, dtype)
    ours: list[Times] = []
    theirs: list[Times] = []
    last = np.full(2, np.nan)  # when the hand-written step ended, NaN where something else lies in between
    deadline = time.perf_counter() + seconds

    def emit(event: Event) -> None:
        nonlocal last
        if isinstance(event, Evaluated):
            last = np.full(2, np.nan)
        if isinstance(event, StepDone):
            ours.append(now() - last)
            theirs.append(hand.step())
            last = now()

    def stopped() -> bool:
        enough = len(theirs) >= pairs + 2 * WARM_PAIRS
        return enough or (len(theirs) >= WARM_PAIRS + FEWEST_PAIRS and time.perf_counter() > deadline)

    train(run, emit, stopped)
    kept = np.array([(a, b) for a, b in zip(ours, theirs, strict=True) if a[0] == a[0]][WARM_PAIRS:])
    engine_s, hand_s = np.median(kept[:, 0], 0), np.median(kept[:, 1], 0)
    return {
        "engine_ms": engine_s[0] * 1e3, "hand_ms": hand_s[0] * 1e3, "pairs": len(kept),
        "wall": ratio(kept[:, 0, 0], kept[:, 1, 0]), "cpu": ratio(kept[:, 0, 1], kept[:, 1, 1]),
    }  # fmt: skip


def ratio(ours: Times, theirs: Times) -> dict[str, float]:
    """Of the medians, with the interval that holds it in 95 % of resampled pairs; and the median of the pairs."""
    drawn = np.random.default_rng(0).integers(0, len(ours), (RESAMPLES, len(ours)))
    low, high = np.quantile(np.median(ours[drawn], 1) / np.median(theirs[drawn], 1), (0.025, 0.975))
    of_medians = np.median(ours) / np.median(theirs)
    return {"ratio": of_medians, "low": low, "high": high, "ratio_of_pairs": float(np.median(ours / theirs))}


def costs(
    model: str, size: str, threads: int, device: str, rounds: int, seconds: float, wish: list[str]
) -> dict[str, dict[str, float]]:
    """Best times of a step in each precision, and their ratio to FP32's; ends after `rounds` or `seconds`."""
    names = list(dict.fromkeys(["fp32", *wish]))
    steps = {name: stepper(wanted(model, size, threads, device, f"precision={name}"))[0] for name in names}
    best = dict.fromkeys(names, np.full(2, np.inf))
    deadline = time.perf_counter() + seconds
    for turn in range(rounds + 2):
        for name, step in steps.items():
            begin = now()
            step()
            if turn >= 2:
                best[name] = np.minimum(best[name], now() - begin)
        if turn >= 3 and time.perf_counter() > deadline:
            break
    return {
        name: {
            "step_ms": best[name][0] * 1e3,
            "over_fp32": best[name][0] / best["fp32"][0],
            "cpu_over_fp32": best[name][1] / best["fp32"][1],
        }
        for name in names
    }


def stepper(run: RunConfig) -> tuple[Callable[[], None], list[str]]:
    """One training step of a precision on one batch that stays, and the notes of the precision."""
    device = torch.device(run.device)
    precision = precisions.make(run, device)
    task = tasks.make(run)
    torch.manual_seed(run.seed)
    precision.prepare()  # which decides whether TF32 is native
    model = precision.convert(task.model()).train()
    optimizer = torch.optim.SGD(precision.weights(model), lr=run.optimizer.lr, momentum=0.9)
    batch = next(iter(task.train_batches()))

    def step() -> None:
        precision.prepare()
        optimizer.zero_grad(set_to_none=True)
        inputs, targets = precision.convert_input(*batch)
        with precision.forward_context():
            outputs = model(inputs)
        precision.backward(task.loss(precision.convert_output(outputs), targets))
        precision.unscale(optimizer)
        precision.step(optimizer)
        if device.type == "cuda":
            torch.cuda.synchronize()

    return step, precision.notes


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each measurement, as soon as it is made."""
    for model in options.models.split(","):
        found: dict[str, Any] = {}
        for name, dtype in [] if options.pairs == 0 else (("fp32", None), ("bf16-amp", torch.bfloat16)):
            run = wanted(
                model, options.size, options.threads, options.device, f"precision={name}", "train.epochs=100000"
            )
            found[name] = overhead(run, dtype, options.pairs, options.seconds)
            yield {"part": "overhead", "model": model, "precision": name, **found[name]}
        if options.pairs:
            engine, hand = (found["fp32"][key] / found["bf16-amp"][key] for key in ("engine_ms", "hand_ms"))
            yield {"part": "gain", "model": model, "gain_engine": engine, "gain_hand": hand}
        if wish := [name for name in options.precisions.split(",") if name]:
            rows = costs(model, options.size, options.threads, options.device, options.rounds, options.seconds, wish)
            for name, row in rows.items():
                yield {"part": "precision", "model": model, "precision": name, **row}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=60, help="steps of each kind that count; 0 leaves (a) and (b) out")
    parser.add_argument("--rounds", type=int, default=8, help="steps of each precision that count")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--models", default="cnn,resnet,gpt", help="any of cnn, resnet, gpt")
    every = [name for name in (*PRECISIONS, *EMULATED) if not name.endswith("-qat")]
    parser.add_argument("--precisions", default=",".join(every), help="of (c); '' leaves it out")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which each measurement ends early")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--size", default="medium", choices=["small", "medium", "large"])
    options = parser.parse_args()
    with backend_flags.restored():
        torch.set_num_threads(options.threads)
        for row in measure(options):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
