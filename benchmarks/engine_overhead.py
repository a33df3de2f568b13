"""What the engine costs over a hand-written loop, and what each precision costs over FP32. Prints one JSON document.

    python benchmarks/engine_overhead.py [--pairs 60] [--models cnn,resnet,gpt] [--size medium] [--precisions fp8,...]

(a) Overhead: a hand-written step follows each step of the engine, in the same process on the same kind of data; the
ratio of the two medians. Both read loss and gradient norm once a step. Telemetry is off. Target: 1.01 or less.
(b) Gain: FP32 over BF16 autocast, of the engine and by hand. Target: within 3 % of each other.
(c) Precisions: one step of each over one of FP32, round-robin, best of all rounds. Target for emulated ones: 2 or less.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from precgui import config
from precgui.config import PRECISIONS, RunConfig
from precgui.engine import precisions, switches, tasks
from precgui.engine.train import train
from precgui.events import Evaluated, Event, StepDone

WARM_PAIRS = 8
CPU = torch.device("cpu")
RECIPES = {"cnn": ("digits-quick", "cnn"), "resnet": ("digits-quick", "resnet"), "gpt": ("gpt-quick", "gpt")}
EMULATED = ("emulated:e4m3fn", "emulated:fp16", "emulated:int8")


def wanted(model: str, size: str, threads: int, *settings: str) -> RunConfig:
    recipe, name = RECIPES[model]
    fixed = ["device=cpu", f"threads={threads}", f"model.name={name}", f"model.size={size}", "record.tensors=false"]
    return config.load(recipe, [*fixed, "train.clip_norm=", "optimizer.schedule=constant", *settings])


class ByHand:
    """The loop that a person writes: one step at a call, seconds returned."""

    def __init__(self, run: RunConfig, dtype: torch.dtype | None) -> None:
        self._task = tasks.make(run)
        torch.manual_seed(run.seed)
        self._model = self._task.model().train()
        kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
        more = {"momentum": run.optimizer.momentum} if run.optimizer.name == "sgd" else {}
        self._optimizer = kinds[run.optimizer.name](self._model.parameters(), lr=run.optimizer.lr, **more)
        self._dtype = dtype
        self._batches = iter(self._task.train_batches())

    def step(self) -> float:
        begin = time.perf_counter()
        try:
            inputs, targets = next(self._batches)
        except StopIteration:
            self._batches = iter(self._task.train_batches())
            inputs, targets = next(self._batches)
            begin = time.perf_counter()
        self._optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=self._dtype) if self._dtype else contextlib.nullcontext():
            outputs = self._model(inputs)
        loss = self._task.loss(outputs.float(), targets)
        loss.backward()
        norm = nn.utils.get_total_norm([p.grad for p in self._model.parameters() if p.grad is not None])
        self._optimizer.step()
        loss.item(), norm.item()
        return time.perf_counter() - begin


def overhead(run: RunConfig, dtype: torch.dtype | None, pairs: int) -> dict[str, float]:
    """Median seconds of a step of the engine and by hand, and their ratio."""
    hand = ByHand(run, dtype)
    engine_s: list[float] = []
    hand_s: list[float] = []
    last = float("nan")  # when the hand-written step ended, NaN where something else lies in between

    def emit(event: Event) -> None:
        nonlocal last
        if isinstance(event, Evaluated):
            last = float("nan")
        if isinstance(event, StepDone):
            engine_s.append(time.perf_counter() - last)
            hand_s.append(hand.step())
            last = time.perf_counter()

    train(run, emit, lambda: len(hand_s) >= pairs + 2 * WARM_PAIRS)
    kept = [(a, b) for a, b in zip(engine_s, hand_s, strict=True) if a == a][WARM_PAIRS:]
    ours, theirs = (statistics.median(times) for times in zip(*kept, strict=True))
    ratios = [a / b for a, b in kept]
    spread = statistics.median(abs(r - statistics.median(ratios)) for r in ratios)
    return {
        "engine_ms": ours * 1e3, "hand_ms": theirs * 1e3, "ratio": ours / theirs,
        "ratio_of_pairs": statistics.median(ratios), "spread_of_pairs": spread, "pairs": len(kept),
    }  # fmt: skip


def costs(model: str, size: str, threads: int, rounds: int, wish: list[str]) -> dict[str, dict[str, float]]:
    """Best seconds of a step in each precision, and their ratio to FP32's."""
    names = list(dict.fromkeys(["fp32", *wish]))
    steps = {name: _stepper(wanted(model, size, threads, f"precision={name}")) for name in names}
    best = dict.fromkeys(names, float("inf"))
    for turn in range(rounds + 2):
        for name, step in steps.items():
            begin = time.perf_counter()
            step()
            if turn >= 2:
                best[name] = min(best[name], time.perf_counter() - begin)
    return {name: {"step_ms": best[name] * 1e3, "over_fp32": best[name] / best["fp32"]} for name in names}


def _stepper(run: RunConfig) -> Callable[[], None]:
    """One training step of a precision on one batch that stays."""
    precision = precisions.make(run, CPU)
    task = tasks.make(run)
    torch.manual_seed(run.seed)
    model = precision.convert(task.model()).train()
    optimizer = torch.optim.SGD(precision.weights(model), lr=run.optimizer.lr, momentum=0.9)
    batch = next(iter(task.train_batches()))

    def step() -> None:
        precision.prepare()
        optimizer.zero_grad(set_to_none=True)
        inputs, targets = precision.batch(*batch)
        with precision.cast():
            outputs = model(inputs)
        precision.backward(task.loss(precision.results(outputs), targets))
        precision.unscale(optimizer)
        precision.step(optimizer)

    return step


def measure(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    for model in options.models.split(","):
        found: dict[str, Any] = {}
        for name, dtype in [] if options.pairs == 0 else (("fp32", None), ("bf16-amp", torch.bfloat16)):
            run = wanted(model, options.size, options.threads, f"precision={name}", "train.epochs=100000")
            found[name] = overhead(run, dtype, options.pairs)
        if options.pairs:
            found["gain_engine"] = found["fp32"]["engine_ms"] / found["bf16-amp"]["engine_ms"]
            found["gain_hand"] = found["fp32"]["hand_ms"] / found["bf16-amp"]["hand_ms"]
        wish = options.precisions.split(",")
        found["precisions"] = costs(model, options.size, options.threads, options.rounds, wish)
        yield model, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=60, help="steps of each kind that count; 0 leaves (a) and (b) out")
    parser.add_argument("--rounds", type=int, default=8, help="steps of each precision that count")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--models", default="cnn,resnet,gpt", help="any of cnn, resnet, gpt")
    every = [name for name in (*PRECISIONS, *EMULATED) if not name.endswith("-qat")]
    parser.add_argument("--precisions", default=",".join(every), help="of (c)")
    parser.add_argument("--size", default="medium", choices=["small", "medium", "large"])
    options = parser.parse_args()
    with switches.restored():
        torch.set_num_threads(options.threads)
        print(json.dumps(dict(measure(options)), indent=1))


if __name__ == "__main__":
    main()
