"""Mistakes of loops and models that show as something else, each with the correction that its finding names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.faults.published_faults import Open, Train, batches, network, score

LOOPS: dict[str, Planted] = {}


@dataclass(frozen=True)
class Planted:
    """A loop with or without its mistake; the rule that names it, words of its title and fix, the blame."""

    train: Train
    rule: str
    says: str
    cures: str
    blame: bool | None


def _mistake(rule: str, says: str, cures: str, blame: bool | None = False) -> Callable[[Train], Train]:
    def keep(train: Train) -> Train:
        LOOPS[train.__name__] = Planted(train, rule, says, cures, blame)
        return train

    return keep


def _descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def _waves(count: int = 64, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 16, generator=generator)
    directions = torch.randn(16, generator=torch.Generator().manual_seed(3)) / 4
    return x, torch.sin(2 * x @ directions)[:, None]


@torch.no_grad()
def _error(model: Callable[[Tensor], Tensor], dtype: torch.dtype | None = None) -> float:
    x, y = _waves(512, seed=10_000)
    with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
        return float(F.mse_loss(model(x).float(), y))


@_mistake("gradients-not-cleared", "not cleared", "zero_grad()")
def a_closure_that_clears_nothing(opened: Open, broken: bool) -> float:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    recorder = opened(model, optimizer)
    for x, y in batches(60):

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            if not broken:
                optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        recorder.step(optimizer.step(closure))
    return score(model)


def _pair(width: int) -> tuple[nn.Sequential, nn.Sequential]:
    return (
        nn.Sequential(nn.Linear(4, width), nn.LeakyReLU(0.2), nn.Linear(width, 2)),
        nn.Sequential(nn.Linear(2, width), nn.LeakyReLU(0.2), nn.Linear(width, 1)),
    )


@_mistake("loss-not-scaled", "not multiplied by the loss scale", "scaler.scale(loss)")
def a_maker_whose_loss_is_not_scaled(opened: Open, broken: bool) -> float:
    """Both networks stand in a list, which is never called itself."""
    maker, judge = _pair(32)
    of_maker = torch.optim.SGD(maker.parameters(), 0.05, momentum=0.5)
    of_judge = torch.optim.Adam(judge.parameters(), 2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    recorder = opened(nn.ModuleList([maker, judge]), [of_maker, of_judge], scaler)
    centre = torch.tensor([2.0, -1.0])
    for _ in range(80):
        with torch.autocast("cpu", torch.float16):
            fake = maker(torch.randn(64, 4))
            real, made = judge(0.3 * torch.randn(64, 2) + centre), judge(fake.detach())
        first = F.softplus(-real.float()).mean() + F.softplus(made.float()).mean()
        of_judge.zero_grad()
        scaler.scale(first).backward()
        scaler.step(of_judge)
        with torch.autocast("cpu", torch.float16):
            judged = judge(fake)
        second = F.softplus(-judged.float()).mean()
        of_maker.zero_grad()
        (second if broken else scaler.scale(second)).backward()
        scaler.step(of_maker)
        scaler.update()
        recorder.step(first + second)
    with torch.no_grad():
        return float((maker(torch.randn(256, 4)).mean(0) - centre).norm())


@_mistake("scaled-penalty", "still multiplied by the scale", "1 / scaler.get_scale()")
def a_penalty_of_scaled_gradients(opened: Open, broken: bool) -> float:
    model, scaler = network(), torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1000)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    recorder = opened(model, optimizer, scaler)
    for x, y in batches(60):
        with torch.autocast("cpu", torch.float16):
            outputs = model(x)
        loss = F.cross_entropy(outputs.float(), y)
        gradients = torch.autograd.grad(scaler.scale(loss), list(model.parameters()), create_graph=True)
        factor = 1.0 if broken else 1.0 / scaler.get_scale()
        penalty = sum(((each * factor).float().square().sum() for each in gradients), torch.zeros(()))
        optimizer.zero_grad()
        scaler.scale(loss + 0.01 * penalty).backward()
        scaler.step(optimizer)
        scaler.update()
        recorder.step(loss)
    return score(model)


class _Norm(nn.Module):
    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.weight, self.wide = nn.Parameter(torch.ones(32)), wide

    def forward(self, x: Tensor) -> Tensor:
        own = x.float() if self.wide else x
        return (own * torch.rsqrt((own * own).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * self.weight


class _Normed(nn.Module):
    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.embed, self.norm, self.head = nn.Linear(16, 32), _Norm(wide), nn.Linear(32, 1)
        self.inner, self.final = nn.Linear(32, 32), _Norm(wide)

    def forward(self, x: Tensor) -> Tensor:
        h = 1200.0 * self.embed(x)
        out: Tensor = self.head(self.final(h + torch.tanh(self.inner(self.norm(h)))))
        return out


@_mistake("hidden-overflow", "overflows FP16", "in FP32", True)
def squares_of_an_own_norm(opened: Open, broken: bool) -> float:
    model, scaler = _Normed(not broken), torch.amp.GradScaler("cpu", init_scale=256.0)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    recorder = opened(model, optimizer, scaler)
    for step in range(60):
        x, y = _waves(seed=step)
        with torch.autocast("cpu", torch.float16):
            loss = F.mse_loss(model(x).float(), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        recorder.step(loss)
    return _error(model, torch.float16)


@_mistake("hidden-overflow", "overflows FP16", "clip_grad_norm_", True)
def a_norm_for_clipping_in_fp16(opened: Open, broken: bool) -> float:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    recorder = opened(model, optimizer)
    for x, y in batches(60):
        loss = 3000 * F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        own = [each.grad for each in model.parameters() if each.grad is not None]
        kind = torch.float16 if broken else torch.float32
        norm = sum((each.to(kind).square().sum() for each in own), torch.zeros((), dtype=kind)).sqrt()
        factor = (1.0 / (norm + 1e-3)).clamp(max=1.0).float()
        for each in own:
            each.mul_(factor)
        optimizer.step()
        recorder.step(loss)
    return score(model)


class _Codes(nn.Module):
    def __init__(self, estimated: bool) -> None:
        super().__init__()
        self.estimated = estimated

    def forward(self, x: Tensor) -> Tensor:
        codes = torch.round(x * 8) / 8
        return x + (codes - x).detach() if self.estimated else codes


@_mistake("no-gradients", "No gradient comes back through round()", "straight-through")
def rounded_activations(opened: Open, broken: bool) -> float:
    model = nn.Sequential(
        nn.Linear(16, 4), nn.Tanh(), _Codes(not broken), nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    recorder = opened(model, optimizer)
    for step in range(80):
        x, y = _waves(seed=step)
        recorder.step(_descend(optimizer, F.mse_loss(model(x), y)))
    return _error(model)


class _Deep(nn.Module):
    """Functions that are no modules, between layers."""

    def __init__(self, deviation: float) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 64), nn.Linear(64, 1)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))
        for each in self.layers:
            nn.init.normal_(each.weight, std=deviation)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        for each in self.layers:
            h = torch.tanh(each(h))
        out: Tensor = self.last(h)
        return out


@_mistake("saturated-units", "began so large", "Xavier")
def weights_that_begin_too_large(opened: Open, broken: bool) -> float:
    model = _Deep(1.0 if broken else 1 / 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.02)
    recorder = opened(model, optimizer)
    for step in range(150):
        x, y = _waves(seed=step)
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(x)
        recorder.step(_descend(optimizer, F.mse_loss(outputs.float(), y)))
    return _error(model, torch.bfloat16)


class _Signs(torch.optim.Optimizer):
    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for each in group["params"]:
                own = self.state[each].setdefault("m", torch.zeros_like(each, dtype=torch.float32))
                own.lerp_(each.grad.float(), 0.2)
                each.add_(own.sign().to(each.dtype), alpha=-group["lr"])


@_mistake("stagnation", "lost in the rounding of BF16", "FP32", True)
def signs_on_bf16_weights(opened: Open, broken: bool) -> float:
    dtype = torch.bfloat16 if broken else torch.float32
    model = network().to(dtype)
    optimizer = _Signs(model.parameters(), 1e-4)
    recorder = opened(model, optimizer)
    for x, y in batches(150):
        recorder.step(_descend(optimizer, F.cross_entropy(model(x.to(dtype)).float(), y)))
    return score(lambda x: model(x.to(dtype)).float())


@_mistake("clipped-after-step", "after the step", "between loss.backward() and optimizer.step()")
def clipped_too_late(opened: Open, broken: bool) -> float:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    recorder = opened(model, optimizer)
    for x, y in batches(60):
        loss = 20 * F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        if not broken:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if broken:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        recorder.step(loss)
    return score(model)


@_mistake("stepped-twice", "Two optimizers", "Give each parameter to one optimizer")
def all_parameters_in_both_optimizers(opened: Open, broken: bool) -> float:
    model = network()
    optimizers = [
        torch.optim.SGD(model.parameters() if broken else model[:4].parameters(), 0.05, momentum=0.9),
        torch.optim.Adam(model.parameters() if broken else model[4].parameters(), 3e-2),
    ]
    recorder = opened(model, optimizers)
    for x, y in batches(60):
        loss = F.cross_entropy(model(x), y)
        model.zero_grad()
        loss.backward()
        for each in optimizers:
            each.step()
        recorder.step(loss)
    return score(model)


@_mistake("left-in-evaluation", "in evaluation mode from step 11", "model.train()")
def evaluated_once(opened: Open, broken: bool) -> float:
    """Running statistics of batch norm stay those of the first steps."""
    model = nn.Sequential(nn.Linear(24, 48), nn.BatchNorm1d(48, momentum=0.01), nn.ReLU(), nn.Linear(48, 6))
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    recorder = opened(model, optimizer)
    for step, (x, y) in enumerate(batches(60)):
        if step == 10:
            model.eval()
            with torch.no_grad():
                model(x)
            model.train(not broken)
        recorder.step(_descend(optimizer, F.cross_entropy(model(8 * x), y)))
    model.eval()
    return score(lambda x: model(8 * x))


@_mistake("lbfgs-in-16-bits", "L-BFGS stands still", "Compute the closure in FP32", None)
def lbfgs_on_a_pass_in_bf16(opened: Open, broken: bool) -> float:
    model = nn.Sequential(nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1, max_iter=4, line_search_fn="strong_wolfe")
    recorder, (x, y) = opened(model, optimizer), _waves(128)
    for _ in range(28):

        def closure() -> Tensor:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=broken):
                outputs = model(x)
            loss = F.mse_loss(outputs.float(), y)
            loss.backward()
            return loss

        recorder.step(optimizer.step(closure))
    with torch.no_grad():
        return float(F.mse_loss(model(x), y))
