"""How well the shadow of a step finds planted faults, and how quiet it is on healthy steps. Prints Markdown.

    python benchmarks/shadow.py [--only TEXT] [--quick] [--held-out] [--cost medium|large]

Five small networks (GPT, CNN, LSTM, ViT, U-Net) with one piece replaced by a faulty one. The truth is measured: a plant
is active when running its lines in FP64 changes the error of the gradient by more than 30 %, or when the step is not
finite. Beside it the lines that three usual rules name: the largest local error, the largest amplification of an error
from inputs to outputs, the first operation that is off by more than ten roundings.
"""

from __future__ import annotations

import argparse
import inspect
import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import shadow_plants as plants
import torch
import torch.nn.functional as F
from shadow_nets import NETS, SMOOTH, Pieces, batch
from torch import Tensor, nn

import precgui
from precgui.engine.models.transformer import Gpt
from precgui.engine.shadow import blockwise
from precgui.engine.shadow.blockwise import WideReplay
from precgui.engine.shadow.record import record_step
from precgui.engine.shadow.replay import F64, replay_exact
from precgui.engine.shadow.step import Shadow
from precgui.engine.shadow.tape import TapeOp

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
ROUNDOFF = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": 2.0**-24}
BASELINES = ("local error", "amplification", "first beyond 10 u")


@dataclass(frozen=True)
class Case:
    """A step to look at. `plant` is the faulty function, None for a healthy step; `factor` multiplies the loss."""

    net: str
    precision: str
    slot: str = ""
    plant: Callable[..., Tensor] | None = None
    name: str = "healthy"
    trained: int = 0
    factor: float = 1.0
    to_blame: bool | None = None

    @property
    def title(self) -> str:
        return f"{self.net} {self.precision} {self.name}{' trained' if self.trained else ''}"


@dataclass
class Outcome:
    """What was found, and what is true."""

    case: Case
    shadow: Shadow
    cost_s: float
    active: bool
    right: bool
    pairs: list[tuple[float, float]] = field(default_factory=list)
    baselines: list[bool] = field(default_factory=list)


def step_of(case: Case) -> tuple[nn.Module, Callable[[], Tensor]]:
    """A model and its step; trained in FP32 first where the case asks for it."""
    torch.manual_seed(len(case.title))
    pieces = Pieces(**({case.slot: case.plant} if case.slot and case.plant else {}))
    model = NETS[case.net](pieces)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for number in range(case.trained):
        inputs, targets = batch(case.net, number)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    form, _, way = case.precision.partition("-")
    dtype, pure = DTYPES[form], way == "pure"
    if pure:
        model.to(dtype)
    inputs, targets = batch(case.net, 10_000)
    inputs = inputs.to(dtype) if pure and inputs.is_floating_point() else inputs

    def step() -> Tensor:
        with torch.autocast("cpu", dtype if way == "amp" else torch.bfloat16, enabled=way == "amp"):
            outputs = model(inputs)
            loss = pieces.loss(outputs, targets)
        (loss * case.factor).backward()
        return loss

    return model, step


def of(name: str, slot: str, plant: Callable[..., Tensor], nets: str, precisions: str, **rest: Any) -> Iterator[Case]:
    for net in nets.split():
        for precision in precisions.split():
            yield Case(net, precision, slot, plant, name, **rest)


def planted() -> list[Case]:
    every = "gpt cnn lstm vit unet"
    cases: list[Case] = []
    for name, plant in (
        ("x + c - c", plants.shift(64)), ("(1 + c) x - c x", plants.mixed(30)), ("1 - cos", plants.one_minus_cos),
        ("log(1 - p)", plants.log_one_minus), ("difference of cumsum", plants.difference_of_cumsum),
        ("cast to e5m2", plants.coarse_cast), ("sum one by one", plants.sum_one_by_one),
    ):  # fmt: skip
        for place, net in enumerate(every.split()):
            cases += of(name, "act", plant, net, "bf16-amp", trained=40 * (place % 2), to_blame=True)
            cases += of(name, "act", plant, net, "bf16-pure", trained=40 * ((place + 1) % 2), to_blame=True)
    for name, plant in (("cubic gelu", plants.cubic_gelu), ("softplus by hand", plants.softplus_by_hand(2)),
                        ("tanh by exp", plants.tanh_by_exp)):  # fmt: skip
        cases += of(name, "act", plant, every, "bf16-amp", to_blame=True)
    cases += of("x + c - c", "act", plants.shift(512), every, "fp16-amp", to_blame=True)
    cases += of("softplus by hand", "act", plants.softplus_by_hand(60), "gpt vit lstm", "fp16-amp", to_blame=True)
    cases += of("tanh by exp", "act", plants.tanh_by_exp_far, "gpt vit cnn", "fp16-amp", to_blame=True)
    cases += of("x * x overflows", "act", plants.square_overflow, "gpt vit lstm cnn unet", "fp16-amp", to_blame=True)
    cases += of("moments", "norm", plants.moments, every, "bf16-pure", to_blame=True)
    cases += of("a2 + b2 - 2ab", "norm", plants.distances, every, "bf16-pure", to_blame=True)
    cases += of("norm by hand", "norm", plants.norm_by_hand, "gpt vit lstm unet", "fp16-pure", to_blame=True)
    cases += of("eps 1e-8", "norm", plants.norm_small_eps, "gpt vit lstm", "fp16-pure", to_blame=True)
    cases += of("positions", "rotate", plants.rotate(torch.bfloat16, 1000), "gpt vit", "bf16-amp", to_blame=True)
    cases += of("positions", "rotate", plants.rotate(torch.float16, 30000), "gpt vit", "fp16-amp", to_blame=True)
    cases += of("softmax without max", "softmax", plants.softmax_no_max(400), "gpt vit", "fp16-amp", to_blame=True)
    cases += of("scores shifted", "scores", plants.scores_shifted, "gpt vit", "bf16-amp fp16-amp", to_blame=True)
    cases += of("mask of FP32", "scores", plants.mask_largest, "gpt vit", "fp16-amp bf16-amp", to_blame=True)
    cases += of("x^8 in the head", "head", plants.head_normalised, "lstm unet", "fp16-pure", to_blame=True)
    cases += of("offset in the head", "head", plants.head_offset, every, "bf16-amp", to_blame=True)
    cases += of("log(1 - p) in the loss", "loss", plants.bce_by_hand, every, "bf16-amp fp16-amp", to_blame=True)
    cases += of("loss summed", "loss", plants.loss_summed, "gpt lstm unet", "fp16-amp", to_blame=True)
    cases += of("softmax summed in BF16", "softmax", plants.softmax_bf16_sum, "gpt vit", "bf16-amp", to_blame=True)
    cases += of("root of 0", "act", plants.root_of_zero, every, "bf16-amp fp16-amp", to_blame=False)
    cases += of("0 log 0", "act", plants.zero_log_zero, every, "bf16-amp", to_blame=False)
    return cases


def held_out() -> list[Case]:
    """Plants that were written after every threshold was set."""
    return [
        case
        for name, plant in plants.HELD_OUT.items()
        for place, net in enumerate(NETS)
        for case in of(name, "act", plant, net, "bf16-amp", trained=40 * (place % 2), to_blame=True)
    ]


def scaled() -> list[Case]:
    """Faults of the loss scale: no line is wrong."""
    small = [Case(n, "fp16-amp", name="no loss scale", factor=2.0**-18, to_blame=True) for n in NETS]
    return small + [Case(n, "fp16-amp", name="loss scale 2^30", factor=2.0**30, to_blame=True) for n in NETS]


def healthy() -> list[Case]:
    forms = ("bf16-amp", "fp16-amp", "bf16-pure", "fp32")
    return [
        Case(net, form, trained=trained, factor=2.0**10 if form == "fp16-amp" else 1.0)  # FP16 wants a loss scale
        for net in NETS for form in forms for trained in (0, 60)
    ]  # fmt: skip


def lines_of(shadow: Shadow, plant: Callable[..., Tensor]) -> set[str]:
    """The lines of a plant that ran in the step."""
    source, first = inspect.getsourcelines(plant)
    inside = range(first, first + len(source))
    ran = {operation.origin.line for operation in shadow.step.tape.operations}
    return {line.label for line in ran if line.file == plants.__file__ and line.number in inside}


def look_at(case: Case) -> Outcome:
    model, step = step_of(case)
    begin = time.process_time()
    shadow = precgui.shadow(step, model.parameters())
    cost = time.process_time() - begin
    if case.plant is None:
        planned = case.name != "healthy"
        return Outcome(case, shadow, cost, planned, (shadow.verdict == "problems") == planned)
    true = lines_of(shadow, case.plant)
    left = shadow.with_fp64(sorted(true)) if shadow.is_finite else 0.0
    active = left < 0.7 or left > 1.3
    found = bool(shadow.blamed) and shadow.blamed[0] in true
    outcome = Outcome(case, shadow, cost, active, found if active else shadow.verdict != "problems")
    if active:
        outcome.baselines = [name in true for name in usual_rules(shadow, ROUNDOFF[case.precision[:4]])]
    return outcome


def predictions(outcome: Outcome) -> None:
    """Measure what the four lines with the largest share leave."""
    shadow = outcome.shadow
    if shadow.is_finite:
        outcome.pairs = [
            (line.left_predicted, shadow.with_fp64(line))
            for line in shadow.lines()[:4]
            if line.line != "(no line)" and line.left_predicted is not None
        ]


def usual_rules(shadow: Shadow, roundoff: float) -> list[str]:
    """The lines that the largest local error, the largest amplification and the first large distance point to."""
    tape = shadow.step.tape
    far: dict[int, float] = {}
    seen: list[tuple[float, float, TapeOp]] = []

    def visit(operation: TapeOp, outputs: list[Any]) -> None:
        before = max((far.get(id, 0.0) for id in operation.inputs), default=0.0)
        for id, exact in zip(operation.outputs, outputs, strict=True):
            low = tape.value(id) if id is not None else None
            if id is not None and low is not None and low.is_floating_point() and low.numel():
                gap = float(torch.linalg.vector_norm(low.to(F64) - exact) / torch.linalg.vector_norm(exact))
                far[id] = gap if math.isfinite(gap) else math.inf
                seen.append((far[id], before, operation))

    replay_exact(tape, [], visit=visit)
    operations = [o for o in tape.operations if o.origin.line.number]
    local = max(operations, key=lambda o: o.local_error)
    amplified = max((s for s in seen if s[1] > 0), key=lambda s: s[0] / s[1], default=(0, 0, local))[2]
    first = next((s[2] for s in seen if s[0] > 10 * roundoff), None)
    return [local.origin.line.label, amplified.origin.line.label, first.origin.line.label if first else "nothing"]


def share(values: list[bool]) -> str:
    return f"{sum(values)} of {len(values)}" + (f" ({sum(values) / len(values):.1%})" if values else "")


def report(outcomes: list[Outcome]) -> None:
    active = [o for o in outcomes if o.active]
    lined = [o for o in active if o.case.plant is not None]
    quiet = [o for o in outcomes if not o.active]
    well = [o for o in quiet if o.case.name == "healthy"]
    smooth = [o.shadow.explained for o in well if o.case.net in SMOOTH]
    blamed = [
        o for o in active if o.case.to_blame is not None and o.case.plant is not None and o.shadow.verdict == "problems"
    ]
    pairs = [abs(a - b) for o in outcomes for a, b in o.pairs]
    print("| figure | value |\n|---|---|")
    print(f"| active plants whose line is named | {share([o.right for o in lined])} |")
    for place, name in enumerate(BASELINES):
        print(f"| the same by the usual rule: {name} | {share([o.baselines[place] for o in lined])} |")
    print(f"| faults of the loss scale found | {share([o.right for o in active if o.case.plant is None])} |")
    judged = [o.shadow.precision_is_to_blame == o.case.to_blame for o in blamed]
    print(f"| precision to blame, yes or no, right | {share(judged)} |")
    print(f"| healthy steps without a finding | {share([o.right for o in well])} |")
    print(f"| harmless plants without a finding | {share([o.right for o in quiet if o.case.plant is not None])} |")
    print(f"| explained within 0.95 and 1.05 on healthy smooth steps | {share([0.95 <= x <= 1.05 for x in smooth])} |")
    if pairs:
        print(f"| predicted within 0.1 of measured | {share([gap <= 0.1 for gap in pairs])} |")
    costs = sorted(o.cost_s for o in outcomes)
    if costs:
        print(f"| CPU time of one shadow: median, longest | {costs[len(costs) // 2]:.2f} s, {costs[-1]:.2f} s |")


def row(outcome: Outcome) -> str:
    case, shadow = outcome.case, outcome.shadow
    error = f"{shadow.gradient_error:.1e}" if shadow.is_finite else "not finite"
    kind = "active" if outcome.active else "quiet"
    blamed = ", ".join(shadow.blamed[:2]).replace("benchmarks/", "") or "-"
    worst = max((abs(a - b) for a, b in outcome.pairs), default=0.0)
    return (
        f"| {case.title} | {kind} | {'right' if outcome.right else 'WRONG'} | {shadow.verdict} | {blamed} | {error} | "
        f"{shadow.ideal_error:.1e} | {shadow.explained:.3f} | {worst:.2f} |"
    )


def peak_bytes() -> int:
    """The most memory that this process has held since the last call (Linux)."""
    status = Path("/proc/self/status").read_text()
    Path("/proc/self/clear_refs").write_text("5")
    return 1024 * int(re.search(r"VmHWM:\s*(\d+)", status)[1])  # type: ignore[index]


def memory(size: str, batch: int, blocks: int) -> None:
    """The peak of memory of the parts of one shadow of a GPT, of the whole step at once or in blocks (Linux)."""
    torch.manual_seed(0)
    model, tokens = Gpt(size, 128), torch.randint(256, (batch, 128))

    def step() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(tokens)
        loss = F.cross_entropy(outputs.float().flatten(0, 1), tokens.flatten())
        loss.backward()
        return loss

    def peak_of(work: Callable[[], object]) -> int:
        peak_bytes()
        work()
        return peak_bytes()

    peaks = [peak_of(lambda: None), peak_of(step)]
    peak_bytes()
    taken = record_step(step, model.parameters())
    peaks.append(peak_bytes())
    blockwise.WideReplay.fitting = lambda tape: WideReplay(tape, blocks)  # type: ignore[method-assign]
    begin = time.process_time()
    shadow = Shadow(taken)
    seconds = time.process_time() - begin
    peaks.append(peak_bytes())
    values = taken.tape.values
    outputs = [id for each in taken.tape.operations if not each.is_view for id in each.outputs]
    made = sum(8 * values[id].numel() for id in outputs if id is not None and id in values)
    names = ("model", "low step", "recorded", "blamed")
    print(", ".join(f"{name} {peak / 2**30:.2f} GiB" for name, peak in zip(names, peaks, strict=True)))
    print(f"FP64 values {made / 2**30:.2f} GiB; {seconds:.1f} s; explained {shadow.explained:.8f}")
    print([(line.line, line.share) for line in shadow.lines()[:3]])


def cost(size: str, autocast: bool) -> None:
    """CPU time of the shadow of a GPT, beside its low step and its FP64 step, and the peak of memory (POSIX).

    The low step is BF16 autocast; without `autocast` it is FP32, for CPUs that have no BF16 products.
    """
    import resource

    torch.manual_seed(0)
    model, tokens = Gpt(size, 128), torch.randint(256, (8 if size == "medium" else 2, 128))

    def step(of: nn.Module, low: bool) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=low and autocast):
            outputs = of(tokens)
        loss = F.cross_entropy((outputs.float() if low else outputs).flatten(0, 1), tokens.flatten())
        loss.backward()
        return loss

    def seconds(work: Callable[[], Any]) -> float:
        begin = time.process_time()
        work()
        return time.process_time() - begin

    step(model, True)
    low = min(seconds(lambda: step(model, True)) for _ in range(3))
    shadow = min(seconds(lambda: precgui.shadow(lambda: step(model, True), model.parameters())) for _ in range(2))
    print(f"peak of memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.1f} GB")
    wide = model.double()
    step(wide, False)
    exact = min(seconds(lambda: step(wide, False)) for _ in range(3))
    bound = 3 * (low + exact) + 1
    print(
        f"low step {low:.2f} s, FP64 step {exact:.2f} s, shadow {shadow:.2f} s; 3 x (low + FP64) + 1 s = {bound:.2f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose title has this text")
    parser.add_argument("--quick", action="store_true", help="do not measure what each line leaves")
    parser.add_argument("--held-out", action="store_true", help="the plants that nothing was tuned on")
    parser.add_argument("--cost", choices=("medium", "large"), help="only the CPU time for a GPT of this size")
    parser.add_argument("--fp32", action="store_true", help="with --cost, the low step in FP32 instead of autocast")
    parser.add_argument("--memory", choices=("medium", "large"), help="only the memory for a GPT of this size")
    parser.add_argument("--batch", type=int, default=4, help="with --memory, sequences of 128")
    parser.add_argument("--blocks", type=int, default=0, help="with --memory, take the step apart into so many")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.memory:
        memory(asked.memory, asked.batch, asked.blocks)
        return
    if asked.cost:
        cost(asked.cost, autocast=not asked.fp32)
        return
    outcomes = []
    print("| case | plant | answer | verdict | line | error | ideal | explained | predicted |")
    print("|---|---|---|---|---|---|---|---|---|")
    for case in held_out() if asked.held_out else [*planted(), *scaled(), *healthy()]:
        if asked.only in case.title:
            outcomes.append(look_at(case))
            if not asked.quick:
                predictions(outcomes[-1])
            print(row(outcomes[-1]), flush=True)
    print()
    report(outcomes)


if __name__ == "__main__":
    main()
