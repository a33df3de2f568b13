"""Latency of saved integer models beside FP32 and BF16 autocast of the same architecture, in CPU time.

    integer_latency.py MODEL.pt ... [--rounds 60]

One thread, whose CPU time other work on the machine lengthens little; each contender runs once a round, the least
counts. Batch norms are folded on both sides. Prints milliseconds, and how many times the integers' they are.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from precgui.engine import tasks
from precgui.engine.casting import cast_floats
from precgui.engine.qat import saved_model
from precgui.engine.qat.conversion import fold, norms_behind
from precgui.engine.qat.measure import sizes, some_batches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--rounds", type=int, default=60)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for path in asked.models:
        compare(path, asked.rounds)


def compare(path: Path, rounds: int) -> None:
    content = saved_model.load(path)
    config = content["config"].model_copy(update={"device": "cpu"})
    task = tasks.make(config)
    batches = some_batches(task)
    inputs = cast_floats(batches[0][0], torch.float32)
    with torch.inference_mode():
        plain = task.model().eval()
        fold(plain, norms_behind(plain, inputs))
    measured = sizes(config.data.batch_size, batches)
    integers = saved_model.rebuilt(path, content, task)
    for size in measured:
        piece = inputs[:size].clone()
        with torch.inference_mode():
            times = least_ms({"integers": integers, "FP32": plain, "BF16": autocast(plain)}, piece, rounds)
        least = times["integers"]
        told = ", ".join(f"{name} {ms:.2f} ms ({ms / least:.2f}x)" for name, ms in times.items())
        print(f"{path.name}, batch {size}: {told}", flush=True)


def autocast(model: nn.Module) -> Callable[[Any], Any]:
    def run(inputs: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return model(inputs)

    return run


def least_ms(contenders: dict[str, Callable[[Any], Any]], inputs: Any, rounds: int) -> dict[str, float]:
    least = dict.fromkeys(contenders, float("inf"))
    for _ in range(rounds):
        for name, run in contenders.items():
            begin = time.thread_time()
            run(inputs)
            least[name] = min(least[name], 1e3 * (time.thread_time() - begin))
    return least


if __name__ == "__main__":
    main()
