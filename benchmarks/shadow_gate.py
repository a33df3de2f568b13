"""How quiet the shadow is on whole healthy steps, and whether it names the faulty piece in the same steps.

    python benchmarks/shadow_gate.py [--only TEXT]

Prints a row for each step and the counts. A faulty piece counts where running its line in FP64 changes the error of the
gradient by more than 30 %.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from shadow_steps import STEPS, Loss, Piece
from torch import Tensor, nn

import precgui

PRECISIONS = ("bf16-amp", "fp16-amp", "bf16-pure", "fp32")


def shifted(x: Tensor) -> Tensor:
    return (x + 64) - 64


def extrapolated(x: Tensor) -> Tensor:
    return 31 * x - 30 * x


def root_of_square(x: Tensor) -> Tensor:
    return x + ((x * 0.1 + 1) ** 2).sqrt() - (x * 0.1 + 1)


def by_logarithm(x: Tensor) -> Tensor:
    return x + torch.log(torch.exp(x * 0.01) + 1e-3) * 20


FAULTS: dict[str, Piece] = {
    piece.__name__: piece for piece in (shifted, extrapolated, root_of_square, by_logarithm)
}  # fmt: skip


@dataclass(frozen=True)
class Prepared:
    """A step that is ready to run."""

    model: nn.Module
    step: Loss


def prepare(name: str, precision: str, piece: Piece | None = None, seed: int = 0, trained: int = 0) -> Prepared:
    """A step in `bf16-amp`, `fp16-amp`, `bf16-pure` or `fp32`; trained in FP32 first for some steps."""
    torch.manual_seed(seed)
    dtype = torch.bfloat16 if precision == "bf16-pure" else torch.float32
    model, loss = STEPS[name](dtype, piece or (lambda x: x))
    if dtype is not torch.float32:
        model.to(dtype)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(trained):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    low = {"bf16-amp": torch.bfloat16, "fp16-amp": torch.float16}.get(precision)
    scale = 2.0**10 if precision == "fp16-amp" else 1.0

    def step() -> Tensor:
        with torch.autocast("cpu", low or torch.bfloat16, enabled=low is not None):
            value = loss()
        (value * scale).backward()
        return value

    return Prepared(model, step)


@dataclass(frozen=True)
class Case:
    """A step to judge; `fault` is the name of a faulty piece, "" for none."""

    net: str
    precision: str
    fault: str = ""
    trained: int = 0

    @property
    def title(self) -> str:
        return f"{self.net} {self.precision} {self.fault or 'healthy'}{' trained' if self.trained else ''}"


def cases() -> Iterator[Case]:
    for net in STEPS:
        for precision in PRECISIONS:
            yield Case(net, precision)
        yield Case(net, "bf16-amp", trained=40)
    for place, net in enumerate(STEPS):
        yield Case(net, "bf16-amp", tuple(FAULTS)[place % len(FAULTS)])


def verdict_on(case: Case) -> str:
    """`right` or `WRONG`, and `quiet` for a fault that does no harm here and is not named."""
    fault = FAULTS.get(case.fault)
    prepared = prepare(case.net, case.precision, fault, trained=case.trained)
    shadow = precgui.shadow(prepared.step, prepared.model.parameters())
    ratio = shadow.gradient_error / shadow.ideal_error if shadow.ideal_error else float("inf")
    print(f"| {case.title} | {shadow.verdict} | {shadow.gradient_error:.1e} | {ratio:.2f} | ", end="")
    if fault is None:
        return "right" if shadow.verdict == "healthy" else "WRONG"
    label = f"shadow_gate.py:{fault.__code__.co_firstlineno + 1}"
    active = not 0.7 <= shadow.with_fp64([label]) <= 1.3
    if active:
        return "right" if shadow.blamed and shadow.blamed[0].endswith(label) else "WRONG"
    return "quiet" if shadow.verdict == "healthy" else "WRONG"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="steps whose title has this text")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    counts: Counter[tuple[str, str]] = Counter()
    print("| step | verdict | error | times the ideal | answer |\n|---|---|---|---|---|")
    for case in cases():
        if asked.only in case.title:
            answer = verdict_on(case)
            print(f"{answer} |", flush=True)
            counts["faulty" if case.fault else "healthy", answer] += 1
    print(dict(counts))


if __name__ == "__main__":
    main()
