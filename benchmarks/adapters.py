"""LoRA on a frozen base: CPU time of a step beside an FP32 base in randomised pairs, and the loss after adaptation.

    python benchmarks/adapters.py [--pairs 12] [--steps 4] [--size medium] [--formats fp32,nf4,int8] [--skip-loss]

Each pair runs some steps of both arms in random order; the ratio is the exponential of the mean of the pairs' log
ratios, with its 95 % t interval. Losses are those of the recipe `gpt-qlora` after one epoch, beside an FP32 base.
"""

from __future__ import annotations

import argparse
import math
import random
import time

import torch

from precgui import config
from precgui.config import RunConfig
from precgui.engine.adapters.adapt import bits_per_weight
from precgui.engine.backend_flags import restored
from precgui.engine.profile.one_step import StepParts, build_step, step
from precgui.engine.train import train
from precgui.events import Evaluated, Event
from precgui.runs.verdict.quantiles import student_quantile

COMMON = ("device=cpu", "threads=1", "record.tensors=false")
ARMS = {
    "nf4, kept unpacked": ("base.format=nf4", "base.keep_unpacked=always"),
    "nf4, unpacked again": ("base.format=nf4", "base.keep_unpacked=never"),
    "nf4, double quantisation, kept": ("base.format=nf4", "base.double_quant=true", "base.keep_unpacked=always"),
    "e3m2, kept unpacked": ("base.format=e3m2", "base.keep_unpacked=always"),
}


def qlora(*settings: str) -> RunConfig:
    return config.load("gpt-qlora", [*COMMON, *settings])


def steps_cpu_s(parts: StepParts, steps: int) -> float:
    """CPU seconds of this thread for some steps."""
    begin = time.thread_time()
    for _ in range(steps):
        step(parts)
    return time.thread_time() - begin


def ratio(fp32: StepParts, other: StepParts, pairs: int, steps: int) -> tuple[float, float, float]:
    """CPU time of a step of `other` over that of `fp32`, with the ends of its 95 % interval."""
    logs = []
    for _ in range(pairs):
        sides = [fp32, other]
        random.shuffle(sides)
        taken = {id(side): steps_cpu_s(side, steps) for side in sides}
        logs.append(math.log(taken[id(other)] / taken[id(fp32)]))
    mean = sum(logs) / pairs
    deviation = math.sqrt(sum((each - mean) ** 2 for each in logs) / (pairs - 1) / pairs)
    half = student_quantile(0.975, pairs - 1) * deviation
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def compare_times(size: str, pairs: int, steps: int) -> None:
    shape = (f"model.size={size}", "data.batch_size=4", "data.sequence_length=64", "base.double_quant=false")
    with restored():
        torch.set_num_threads(1)
        fp32 = build_step(qlora(*shape, "base.format=fp32"))
        steps_cpu_s(fp32, 2)
        for name, settings in ARMS.items():
            other = build_step(qlora(*shape, *settings))
            steps_cpu_s(other, 2)
            middle, low, high = ratio(fp32, other, pairs, steps)
            bits = bits_per_weight(other.model)
            print(f"{name}: {bits:.3f} bits a weight, {middle:.3f} times the CPU time of FP32 [{low:.3f}, {high:.3f}]")


def last_loss(settings: RunConfig) -> float:
    """The last validation loss of a run."""
    events: list[Event] = []
    train(settings, events.append, lambda: False)
    return [event.loss for event in events if isinstance(event, Evaluated)][-1]


def compare_losses(formats: list[str]) -> None:
    reference = last_loss(qlora("train.epochs=1", "base.format=fp32", "adapter.merge_at_end=false"))
    print(f"fp32: validation loss {reference:.4f}")
    for name in formats:
        loss = last_loss(qlora("train.epochs=1", f"base.format={name}", "adapter.merge_at_end=false"))
        print(f"{name}: validation loss {loss:.4f}, {loss - reference:+.4f} beside an FP32 base")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--size", default="medium")
    parser.add_argument("--formats", default="nf4,int4,int8,e4m3fn,mxfp4")
    parser.add_argument("--skip-loss", action="store_true")
    args = parser.parse_args()
    compare_times(args.size, args.pairs, args.steps)
    if not args.skip_loss:
        compare_losses(args.formats.split(","))


if __name__ == "__main__":
    main()
