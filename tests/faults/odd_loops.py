"""Healthy loops that look odd, written as people write them, and the same loops with a mistake."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

import precgui
from precgui.config import RecordConfig
from precgui.runs.diagnosis import Diagnosis, examine

Open = Callable[..., precgui.Recorder]  # (model, optimizer, scaler=None, ema=None)
Loop = Callable[[Open], None]
HEALTHY: dict[str, Loop] = {}
FAULTY: dict[str, tuple[str, Loop]] = {}  # the rule that names it
ALL = RecordConfig(budget=100, weights_every=2, optimizer_every=4, activations_every=3, activation_gradients_every=4)


def judged(loop: Loop, path: Path, record: RecordConfig = ALL, seed: int = 0) -> Diagnosis:
    """Train and diagnose."""
    recorders: list[precgui.Recorder] = []

    def opened(model: nn.Module, optimizer: Optimizer | Sequence[Optimizer], scaler: Any = None,
               ema: Any = None) -> precgui.Recorder:  # fmt: skip
        recorders.append(precgui.Recorder(path, model, optimizer, scaler, ema=ema, record=record))
        return recorders[0]

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        loop(opened)
    recorders[0].close()
    with precgui.open_run(path) as run:
        return examine(run)


def _healthy(loop: Loop) -> Loop:
    HEALTHY[loop.__name__] = loop
    return loop


def _classes(count: int = 600, spread: float = 1.0) -> tuple[Tensor, Tensor]:
    centres, labels = 2 * torch.randn(5, 20), torch.randint(5, (count,))
    return centres[labels] + spread * torch.randn(count, 20), labels


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 5))


@_healthy
def gradients_of_two_losses_made_orthogonal(opened: Open) -> None:
    """Made by `autograd.grad`, projected, and given to the parameters anew in each step: nothing is to be cleared."""
    x, y = _classes()
    model = _net()
    parameters = list(model.parameters())
    optimizer = torch.optim.Adam(parameters, lr=2e-3)
    recorder = opened(model, optimizer)
    for start in range(60):
        part = torch.arange(start * 10, start * 10 + 50) % len(x)
        outputs = model(x[part])
        losses = F.cross_entropy(outputs, y[part]), 1e-3 * outputs.square().mean()
        one, two = (torch.autograd.grad(each, parameters, retain_graph=True) for each in losses)
        product = sum((a * b).sum() for a, b in zip(one, two, strict=True))
        share = min(float(product), 0.0) / float(sum(b.square().sum() for b in two))
        for parameter, a, b in zip(parameters, one, two, strict=True):
            parameter.grad = a - share * b + b
        optimizer.step()
        recorder.step(losses[0].detach())


def _descend(model: nn.Module, optimizer: Optimizer, loss: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


@_healthy
def values_of_a_sparse_reward(opened: Open) -> None:
    """Q-learning: the loss begins at zero and rises with what is known of the reward."""
    values = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
    nn.init.zeros_(values[2].weight)
    nn.init.zeros_(values[2].bias)
    target, optimizer = copy.deepcopy(values), torch.optim.Adam(values.parameters(), 1e-3)
    recorder = opened(values, optimizer)
    for step in range(300):
        state, action = torch.randn(64, 4), torch.randint(2, (64, 1))
        reward = 5.0 * (state[:, 0] > 1.5) if step > 60 else torch.zeros(64)
        with torch.no_grad():
            aim = reward + 0.95 * target(0.9 * state + 0.1 * torch.randn(64, 4)).max(1)[0]
        recorder.step(_descend(values, optimizer, F.smooth_l1_loss(values(state).gather(1, action)[:, 0], aim)))
        if step % 20 == 19:
            target.load_state_dict(values.state_dict())


@_healthy
def margin_that_is_reached(opened: Open) -> None:
    """A hinge loss: exactly zero, and without any gradient, once all margins are kept."""
    model = nn.Linear(20, 1)
    x, labels = _classes(100, 0.1)
    sign, optimizer = 2.0 * (labels > 1) - 1, torch.optim.SGD(model.parameters(), 0.5)
    recorder = opened(model, optimizer)
    for _ in range(150):
        recorder.step(_descend(model, optimizer, F.relu(1 - sign * model(x)[:, 0]).mean()))


@_healthy
def zero_weights_and_nothing_to_learn(opened: Open) -> None:
    model = nn.Linear(20, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    recorder = opened(model, optimizer)
    for _ in range(100):
        recorder.step(_descend(model, optimizer, F.cross_entropy(model(torch.randn(32, 20)), torch.randint(2, (32,)))))


@_healthy
def mask_in_a_buffer(opened: Open) -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.qkv, self.out = nn.Embedding(12, 16), nn.Linear(16, 48), nn.Linear(16, 12)
            self.register_buffer("mask", torch.full((10, 10), -math.inf).triu(1))

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(self.embed(x)).chunk(3, -1)
            return self.out((q @ k.transpose(1, 2) / 4 + self.mask).softmax(-1) @ v)

    model = Attention()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    for _ in range(60):
        x = torch.randint(12, (16, 11)).sort(1)[0]
        recorder.step(_descend(model, optimizer, F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())))


def _scaled(opened: Open, model: nn.Module, optimizer: Optimizer, init_scale: float, steps: int,
            loss_of: Callable[[], Tensor], *, clear: bool = True, through: bool = True) -> None:  # fmt: skip
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=10)
    recorder = opened(model, optimizer, scaler)
    for _ in range(200):
        loss = loss_of()
        if clear:
            optimizer.zero_grad()
        scaler.scale(loss).backward()
        if through:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        recorder.step(loss)


def _small_loss(opened: Open, *, through: bool = True) -> None:
    """Large inputs, a loss near its end: gradients are 80 times as large as the loss."""
    x, weights = 30 * torch.randn(600, 20), torch.randn(20) / 30
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def loss() -> Tensor:
        chosen = torch.randint(600, (64,))
        with torch.autocast("cpu", torch.float16):
            outputs = model(x[chosen])
        return F.mse_loss(outputs.float()[:, 0], (x @ weights)[chosen])

    for _ in range(300):
        _descend(model, optimizer, loss())
    _scaled(opened, model, optimizer, 256.0, 60, loss, through=through)


@_healthy
def small_loss_with_large_gradients(opened: Open) -> None:
    _small_loss(opened)


FAULTY["small loss, scaler.step() left out"] = ("gradients-not-unscaled", lambda o: _small_loss(o, through=False))


def _by_hand(opened: Open, divide: Callable[[nn.Module, float], None], init_scale: float = 2.0**12) -> None:
    """The scaler only multiplies the loss; the loop divides the gradients by itself and steps past the scaler."""
    model, (x, labels) = _net(), _classes()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale)
    recorder = opened(model, optimizer, scaler)
    for _ in range(100):
        chosen = torch.randint(600, (64,)).chunk(2)
        optimizer.zero_grad()
        total = torch.zeros(())
        for part in chosen:
            with torch.autocast("cpu", torch.float16):
                outputs = model(x[part])
            loss = F.cross_entropy(outputs.float(), labels[part]) / 2
            scaler.scale(loss).backward()
            total += loss.detach()
        divide(model, scaler.get_scale())
        optimizer.step()
        recorder.step(total)


def _divide(model: nn.Module, scale: float) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.div_(scale)


def _divide_anew(model: nn.Module, scale: float) -> None:
    for parameter in model.parameters():
        parameter.grad = parameter.grad / scale if parameter.grad is not None else None


def _divide_and_clip(model: nn.Module, scale: float) -> None:
    _divide(model, scale)
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)


def _clip_only(model: nn.Module, scale: float) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 20.0)


HEALTHY |= {
    "gradients_divided_by_hand": lambda o: _by_hand(o, _divide),
    "gradients_divided_into_new_tensors": lambda o: _by_hand(o, _divide_anew),
    "gradients_divided_by_hand_and_clipped": lambda o: _by_hand(o, _divide_and_clip),
    "gradients_divided_by_hand_at_a_small_scale": lambda o: _by_hand(o, _divide, 64.0),
}
FAULTY["gradients are only clipped, not divided"] = ("gradients-not-unscaled", lambda o: _by_hand(o, _clip_only))


@_healthy
def gradients_of_very_different_sizes(opened: Open) -> None:
    """Skips at scales that had worked: what overflowed is a large gradient."""
    model, (x, labels) = _net(), _classes()

    def loss() -> Tensor:
        chosen = torch.randint(600, (32,))
        with torch.autocast("cpu", torch.float16):
            outputs = model(x[chosen])
        return F.cross_entropy(outputs.float(), labels[chosen]) * math.exp(2.5 * torch.randn(1).item())

    _scaled(opened, model, torch.optim.AdamW(model.parameters(), 1e-3), 2.0**20, 250, loss)


@_healthy
def start_of_a_long_warm_up(opened: Open) -> None:
    model, (x, labels) = _net(), _classes()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    recorder = opened(model, optimizer)
    for step in range(80):
        optimizer.param_groups[0]["lr"] = 1e-8 * (step + 1)
        recorder.step(_descend(model, optimizer, F.cross_entropy(model(x[:32]), labels[:32])))


def _with_copy(opened: Open, dtype: torch.dtype, decay: float, every: int) -> None:
    model, (x, labels) = _net(), _classes()
    average = copy.deepcopy(model).to(dtype).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    recorder = opened(model, optimizer, None, average)
    for step in range(120):
        chosen = torch.randint(600, (32,))
        loss = _descend(model, optimizer, F.cross_entropy(model(x[chosen]), labels[chosen]))
        if every and step % every == every - 1:
            with torch.no_grad():
                for copied, own in zip(average.parameters(), model.parameters(), strict=True):
                    copied.mul_(decay).add_(own.to(dtype), alpha=1 - decay)
        recorder.step(loss)


HEALTHY |= {
    "target_network_in_bf16": lambda o: _with_copy(o, torch.bfloat16, 0.0, 30),
    "reference_model_in_bf16": lambda o: _with_copy(o, torch.bfloat16, 0.0, 0),
    "average_in_fp32": lambda o: _with_copy(o, torch.float32, 0.9999, 1),
    "average_in_bf16_that_moves": lambda o: _with_copy(o, torch.bfloat16, 0.9, 1),
}
FAULTY["average in BF16 that hardly moves"] = ("frozen-average", lambda o: _with_copy(o, torch.bfloat16, 0.9999, 1))


class LowAdam(Optimizer):
    """AdamW without decay for 16-bit weights: rounded to nearest, with a remainder kept, or stochastically."""

    def __init__(self, parameters: Any, lr: float, way: str) -> None:
        super().__init__(parameters, {"lr": lr, "eps": 1e-8})
        self.way = way

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for weight in self.param_groups[0]["params"]:
            state, gradient = self.state[weight], weight.grad.float()
            if not state:
                state["step"] = 0
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(gradient), torch.zeros_like(gradient)
            state["step"] += 1
            state["exp_avg"].lerp_(gradient, 0.1)
            state["exp_avg_sq"].lerp_(gradient**2, 0.001)
            mean, square = (
                state["exp_avg"] / (1 - 0.9 ** state["step"]),
                state["exp_avg_sq"] / (1 - 0.999 ** state["step"]),
            )
            self._add(weight, state, -self.param_groups[0]["lr"] * mean / (square.sqrt() + 1e-8))

    def _add(self, weight: Tensor, state: dict[str, Any], update: Tensor) -> None:
        if self.way == "remainder":
            kept = state.setdefault("kahan_comp", torch.zeros_like(weight))
            kept.add_(update.to(weight.dtype))
            before = weight.clone()
            weight.add_(kept)
            kept.add_(before - weight)
        elif self.way == "widened remainder":
            kept, before = state.setdefault("lost", torch.zeros_like(weight)), weight.clone()
            wanted = kept.float() + update
            weight.copy_((before.float() + wanted).to(weight.dtype))
            kept.copy_((wanted - (weight.float() - before.float())).to(weight.dtype))
        elif self.way == "stochastic":
            bits = (weight.float() + update).view(torch.int32) + torch.randint(65536, weight.shape, dtype=torch.int32)
            weight.copy_((bits & -65536).view(torch.float32).to(weight.dtype))
        else:
            weight.add_(update.to(weight.dtype))


def _low_weights(opened: Open, way: str, lr: float) -> None:
    model, (x, labels) = _net().bfloat16(), _classes()
    optimizer = LowAdam(model.parameters(), lr, way)
    recorder = opened(model, optimizer)
    for _ in range(150):
        chosen = torch.randint(600, (32,))
        recorder.step(_descend(model, optimizer, F.cross_entropy(model(x[chosen].bfloat16()).float(), labels[chosen])))


HEALTHY |= {
    "bf16_weights_with_a_remainder": lambda o: _low_weights(o, "remainder", 1e-4),
    "bf16_weights_with_a_widened_remainder": lambda o: _low_weights(o, "widened remainder", 2e-5),
    "bf16_weights_rounded_stochastically": lambda o: _low_weights(o, "stochastic", 2e-5),
}
FAULTY["BF16 weights rounded to nearest"] = ("stagnation", lambda o: _low_weights(o, "nearest", 2e-5))


@_healthy
def rise_from_a_saddle(opened: Open) -> None:
    """The whole data in each step and small weights: the norm of the gradient rises smoothly for a long time."""
    model = nn.Sequential(*[nn.Linear(10, 10, bias=False) for _ in range(3)])
    for layer in model:
        nn.init.normal_(layer.weight, std=0.12)
    x = torch.randn(200, 10)
    y, optimizer = x @ torch.randn(10, 10), torch.optim.SGD(model.parameters(), 0.05)
    recorder = opened(model, optimizer)
    for _ in range(100):
        recorder.step(_descend(model, optimizer, F.mse_loss(model(x), y)))


def _adversaries(opened: Open, *, clear: bool = True) -> None:
    """The gradients of the judge that the generator's pass leaves behind are cleared before its own step."""
    maker, judge = nn.Linear(8, 2), nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    ours, theirs = (torch.optim.Adam(part.parameters(), 1e-3, betas=(0.5, 0.9)) for part in (maker, judge))
    recorder = opened(nn.ModuleDict({"maker": maker, "judge": judge}), [ours, theirs])
    for _ in range(120):
        loss = F.softplus(-judge(maker(torch.randn(64, 8)))).mean()
        if clear:
            ours.zero_grad()
        loss.backward()
        ours.step()
        real = 0.3 * torch.randn(64, 2) + torch.tensor([2.0, -1.0])
        judged = F.softplus(-judge(real)).mean() + F.softplus(judge(maker(torch.randn(64, 8)).detach())).mean()
        _descend(judge, theirs, judged)
        recorder.step(loss)


@_healthy
def adversaries(opened: Open) -> None:
    _adversaries(opened)


FAULTY["one of two optimizers is never cleared"] = ("gradients-not-cleared", lambda o: _adversaries(o, clear=False))


@_healthy
def whole_numbers_as_activations(opened: Open) -> None:
    """Digits of whole numbers are few in any format: this loop runs in FP32."""

    class Levels(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (4 * x).round().clamp(0, 200)

    model, (x, labels) = nn.Sequential(Levels(), nn.Linear(20, 5)), _classes()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    recorder = opened(model, optimizer)
    for _ in range(80):
        recorder.step(_descend(model, optimizer, F.cross_entropy(model(x[:64]), labels[:64])))


@_healthy
def time_embedding_under_autocast(opened: Open) -> None:
    """Cosines of the slow frequencies hardly differ from 1: BF16 rounds away what they differ by, which is nothing."""
    embed = nn.Sequential(nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 32))
    model = nn.ModuleList([embed, nn.Sequential(nn.Linear(36, 64), nn.SiLU(), nn.Linear(64, 4))])
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    recorder, rates = opened(model, optimizer), torch.exp(-math.log(1000.0) * torch.arange(16) / 16)
    for _ in range(160):
        t, noise = torch.rand(64, 1), torch.randn(64, 4)
        clean = torch.sin(torch.tensor([0.3, 0.5, 0.7, 0.9]) + 6.28 * torch.rand(64, 1))
        angles = 100 * t * rates
        with torch.autocast("cpu", torch.bfloat16):
            known = model[0](torch.cat((angles.cos(), angles.sin()), 1))
            out = model[1](torch.cat(((1 - t) * clean + t * noise, known), 1))
        recorder.step(_descend(model, optimizer, F.mse_loss(out.float(), noise - clean)))


@_healthy
def last_polish_of_a_trained_network(opened: Open) -> None:
    """Training at a very small rate that goes on from 200 steps at a normal one."""
    model, (x, labels) = _net(), _classes(spread=0.3)
    first = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(200):
        _descend(model, first, F.cross_entropy(model(x), labels))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-6, weight_decay=0.0)
    recorder = opened(model, optimizer)
    for _ in range(150):
        chosen = torch.randint(len(x), (128,))
        recorder.step(_descend(model, optimizer, F.cross_entropy(model(x[chosen]), labels[chosen])))


@_healthy
def parity_that_is_learned_to_the_last_digit(opened: Open) -> None:
    """A loss that falls to 1e-13: its gradient is the last digit of probabilities, and nothing is left to learn."""
    bits = torch.tensor([[float(number >> place & 1) for place in range(3)] for number in range(8)])
    target = (bits.sum(1) % 2)[:, None]
    model = nn.Sequential(nn.Linear(3, 24), nn.Tanh(), nn.Linear(24, 1))
    optimizer = torch.optim.Rprop(model.parameters(), 0.01, step_sizes=(1e-7, 0.5))
    recorder = opened(model, optimizer)
    for _ in range(150):
        recorder.step(_descend(model, optimizer, F.binary_cross_entropy_with_logits(model(2 * bits - 1), target)))


@_healthy
def sums_of_binary_cross_entropies_over_pixels(opened: Open) -> None:
    """Sums of thousands, which are no larger than a constant's: both are compared as means."""
    basis = torch.randn(6, 144)
    model = nn.Sequential(nn.Linear(144, 64), nn.ReLU(), nn.Linear(64, 8), nn.Linear(8, 64), nn.ReLU(),
                          nn.Linear(64, 144))  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    for _ in range(300):
        x = torch.sigmoid(torch.randn(128, 6) @ basis)
        loss = F.binary_cross_entropy_with_logits(model(x), x, reduction="sum")
        recorder.step(_descend(model, optimizer, loss))
