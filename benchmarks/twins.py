"""False alarms of `precgui twin` on arms without bias, and how many planted biases it finds.

Nulls are FP32 arms whose weights begin with unbiased noise at each branch point: one ulp, or of the size of BF16's
rounding. Plants are arms with a bias. Prints for each how many were called biased, and by both tests without the bound
on the effect.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable

import torch
from torch import nn

from precgui import config
from precgui.engine.twins.arms import BranchPlan, BranchRecord, Disturb, TwinArm, rounding_twin
from precgui.engine.twins.branches import run_branches
from precgui.runs.verdict.branches import ALPHA, judge_drift

NETS = {
    "mlp": ["model.name=mlp", "train.epochs=8", "optimizer.schedule=constant", "optimizer.lr=0.02"],
    "gpt": ["task=text", "model.size=small", "data.sequence_length=32", "data.batch_size=8", "data.epoch_steps=200",
            "train.epochs=1", "optimizer.name=adamw", "optimizer.lr=0.001", "optimizer.schedule=constant"],
}  # fmt: skip
PLANTS = ("bf16-pure", "weights x 1.01", "weights cut to bf16", "emulated:e2m1")


@torch.no_grad()
def noise(size: float, seed: int) -> Disturb:
    """Moves each weight by a normal deviate of `size` times the weight."""

    def disturb(model: nn.Module, branch: int) -> None:
        generator = torch.Generator().manual_seed(seed * 1009 + branch)
        for parameter in model.parameters():
            parameter.data *= 1 + size * torch.randn(parameter.shape, generator=generator)

    return disturb


def scaled(model: nn.Module, branch: int) -> None:
    """Every weight 1 % too large."""
    for parameter in model.parameters():
        parameter.data *= 1.01


def cut(model: nn.Module, branch: int) -> None:
    """Every weight rounded towards zero to BF16."""
    for parameter in model.parameters():
        parameter.data = (parameter.data.view(torch.int32) & -65536).view(torch.float32)


def arms(per_kind: int, seed: int) -> list[TwinArm]:
    nulls = [rounding_twin(f"one ulp {n}", seed * 100 + n) for n in range(per_kind)]
    nulls += [TwinArm(f"noise of bf16 {n}", "fp32", noise(2.0**-9 / 3**0.5, seed * 100 + n)) for n in range(per_kind)]
    plants = [TwinArm(PLANTS[0], "bf16-pure"), TwinArm(PLANTS[1], "fp32", scaled), TwinArm(PLANTS[2], "fp32", cut)]
    return [*nulls, *plants, TwinArm(PLANTS[3], "emulated:e2m1")]


def kind(name: str) -> str:
    return name if name in PLANTS else name.rpartition(" ")[0]


def judge(record: BranchRecord, report: Callable[[str, str, bool], None]) -> None:
    progress = statistics.fmean(abs(a - b) for a, b in zip(record.after, record.before, strict=True))
    for name, arm in record.arms.items():
        drift = judge_drift([a - b for a, b in zip(arm.held_out, record.after, strict=True)], progress)
        both = max(drift.p_t or 0.0, drift.p_sign_flip or 0.0) < ALPHA if drift.p_t is not None else True
        report(kind(name), drift.verdict, both)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10, help="FP32 runs of each network")
    parser.add_argument("--nulls", type=int, default=10, help="arms of each kind of null in a run")
    parser.add_argument("--nets", default="mlp,gpt")
    arguments = parser.parse_args()
    for net in arguments.nets.split(","):
        verdicts: Counter[tuple[str, str]] = Counter()
        significant: Counter[str] = Counter()
        begin = time.process_time()

        def report(name: str, verdict: str, both: bool) -> None:
            verdicts[name, verdict] += 1  # noqa: B023 - called inside the round
            significant[name] += both  # noqa: B023

        for seed in range(arguments.runs):
            settings = ["device=cpu", "threads=1", f"seed={seed}", *NETS[net]]
            record = run_branches(config.load("digits-quick", settings), arms(arguments.nulls, seed), BranchPlan(16, 8))
            judge(record, report)
        print(f"{net}: {arguments.runs} runs, 16 branches of 8 steps, {time.process_time() - begin:.0f} s of CPU")
        for name in dict.fromkeys(name for name, _ in verdicts):
            counts = {verdict: count for (other, verdict), count in verdicts.items() if other == name}
            print(
                f"  {name}: biased {counts.get('bias', 0)} of {sum(counts.values())}; both tests without the bound "
                f"{significant[name]}; {counts}",
                flush=True,
            )


if __name__ == "__main__":
    main()
