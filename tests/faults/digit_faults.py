"""Loops whose operations lose digits in 16 bits, each with its correction, and odd ones that lose none that matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from tests.faults.published_faults import Open, Published, Train, batches, network, score

DIGITS: dict[str, Published] = {}
ENOUGH: dict[str, Callable[[Open], None]] = {}


def _mistake(rule: str) -> Callable[[Train], Train]:
    def keep(train: Train) -> Train:
        DIGITS[train.__name__] = Published(train, (rule,), True, "")
        return train

    return keep


def _enough(loop: Callable[[Open], None]) -> Callable[[Open], None]:
    ENOUGH[loop.__name__] = loop
    return loop


class _Flow(nn.Module):
    """A differential equation in Euler steps of length `dt`; its state is in FP32 or in the format of the field."""

    def __init__(self, steps: int, dt: float, exact: bool) -> None:
        super().__init__()
        self.into, self.field = nn.Linear(24, 32), nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32))
        self.out, self.dt, self.steps, self.exact = nn.Linear(32, 6), dt, steps, exact

    def forward(self, x: Tensor) -> Tensor:
        state = self.into(x)
        state = state.float() if self.exact else state
        for _ in range(self.steps):
            state = state + self.dt * self.field(state)
        out: Tensor = self.out(state)
        return out


def _train(opened: Open, model: nn.Module, optimizer: Optimizer, low: torch.dtype | None, steps: int = 100) -> float:
    recorder = opened(model, optimizer)
    for x, y in batches(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", low or torch.bfloat16, enabled=low is not None):
            outputs = model(x)
        loss = F.cross_entropy(outputs.float(), y)
        loss.backward()
        optimizer.step()
        recorder.step(loss)
    return score(model)


@_mistake("swallowed-additions")
def state_of_an_equation_in_bf16(opened: Open, broken: bool) -> float:
    model = _Flow(16, 1 / 512, not broken)
    return _train(opened, model, torch.optim.Adam(model.parameters(), 2e-3), torch.bfloat16, 30)


class _Counter(nn.Module):
    """A state to which each of many equal terms is added in FP32; between them it is kept in a format of its own."""

    def __init__(self, kept: torch.dtype, terms: int, *, widened: bool) -> None:
        super().__init__()
        self.into, self.out, self.terms = nn.Linear(24, 32), nn.Linear(32, 6), terms
        self.kept, self.widened = kept, widened

    def forward(self, x: Tensor) -> Tensor:
        step = F.softplus(self.into(x))
        state = torch.zeros_like(step, dtype=self.kept)
        for _ in range(self.terms):
            state = ((state.float() if self.widened else state) + step).to(self.kept)
        out: Tensor = self.out(state.float() * (4 / self.terms))
        return out


def _count(opened: Open, model: nn.Module, steps: int = 20) -> float:
    return _train(opened, model, torch.optim.Adam(model.parameters(), 3e-3), None, steps)


@_mistake("swallowed-additions")
def state_rounded_behind_each_sum(opened: Open, broken: bool) -> float:
    return _count(opened, _Counter(torch.bfloat16 if broken else torch.float32, 700, widened=False))


@_mistake("swallowed-additions")
def state_widened_for_each_sum(opened: Open, broken: bool) -> float:
    return _count(opened, _Counter(torch.bfloat16 if broken else torch.float32, 700, widened=True))


@_enough
def few_terms_of_a_rounded_state(opened: Open) -> None:
    _count(opened, _Counter(torch.bfloat16, 32, widened=True), 60)


class _Residuals(nn.Module):
    """A stream in BF16 to which the blocks add in FP32."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(24, 32), nn.Linear(32, 6)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)) for _ in range(12))

    def forward(self, x: Tensor) -> Tensor:
        stream = self.into(x).bfloat16()
        for block in self.blocks:
            stream = (stream.float() + block(stream.float()) / 8).bfloat16()
        out: Tensor = self.out(stream.float())
        return out


@_enough
def residual_stream_rounded_behind_each_block(opened: Open) -> None:
    _count(opened, _Residuals(), 60)


class _HalfAdam(Optimizer):
    """Adam with its moments in a format of its own."""

    def __init__(self, parameters: Any, lr: float, dtype: torch.dtype, decay: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr})
        self.dtype, self.decay = dtype, decay

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                state, gradient = self.state[weight], weight.grad.to(self.dtype)
                if not state:
                    state["mean"], state["square"] = torch.zeros_like(gradient), torch.zeros_like(gradient)
                state["mean"].mul_(0.9).add_(gradient, alpha=0.1)
                state["square"].mul_(1 - self.decay).addcmul_(gradient, gradient, value=self.decay)
                weight.sub_(group["lr"] * state["mean"].float() / (state["square"].float().sqrt() + 1e-8))


@_mistake("moments-underflow")
def moments_in_fp16(opened: Open, broken: bool) -> float:
    model = network()
    return _train(opened, model, _HalfAdam(model.parameters(), 1e-3, torch.float16 if broken else torch.float32), None)


def _after_a_loud_start(opened: Open, dtype: torch.dtype, decay: float) -> float:
    """An optimizer of one's own; the gradients of the first steps are large."""
    model = nn.Sequential(nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, 1))
    optimizer = _HalfAdam(model.parameters(), 3e-3, dtype, decay)
    recorder = opened(model, optimizer)
    loss = torch.zeros(())
    for x, _ in batches(900, 32):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x)[:, 0], 20 + x[:, 0] - x[:, 1])
        loss.backward()
        optimizer.step()
        recorder.step(loss)
    return float(loss.detach())


@_mistake("frozen-moments")
def second_moment_of_an_own_optimizer_in_bf16(opened: Open, broken: bool) -> float:
    return _after_a_loud_start(opened, torch.bfloat16 if broken else torch.float32, 0.003)


@_enough
def second_moment_in_bf16_that_forgets(opened: Open) -> None:
    """A beta2 of 0.98: its decay is more than half an ulp of BF16."""
    _after_a_loud_start(opened, torch.bfloat16, 0.02)


class _Orthogonal(Optimizer):
    """Muon: the momentum of matrices, made orthogonal by the iteration of Newton and Schulz in a format of its own."""

    def __init__(self, parameters: Any, lr: float, dtype: torch.dtype) -> None:
        super().__init__(parameters, {"lr": lr})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for weight in self.param_groups[0]["params"]:
            momentum = self.state[weight].setdefault("momentum", torch.zeros_like(weight))
            momentum.mul_(0.9).add_(weight.grad)
            if weight.ndim < 2:
                weight.sub_(self.param_groups[0]["lr"] * momentum)
                continue
            x = momentum.to(self.dtype)
            x = x / (x.norm() + 1e-7)
            for _ in range(5):
                a = x @ x.mT
                x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
            weight.sub_(self.param_groups[0]["lr"] * x.float())


def _muon(opened: Open, dtype: torch.dtype) -> float:
    """A mean over many outputs: its gradients are small."""
    model = network(hidden=64)
    optimizer = _Orthogonal(model.parameters(), 0.02, dtype)
    recorder = opened(model, optimizer)
    for x, y in batches(60):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(x)
        loss = F.cross_entropy(outputs.float(), y) * 1e-5
        loss.backward()
        optimizer.step()
        recorder.step(loss)
    return score(model)


@_mistake("optimizer-in-fp16")
def iteration_of_newton_and_schulz_in_fp16(opened: Open, broken: bool) -> float:
    return _muon(opened, torch.float16 if broken else torch.bfloat16)


@_mistake("coarse-outputs")
def values_of_thousands_in_bf16(opened: Open, broken: bool) -> float:
    """Values near 4000 that differ by a few: the last layer in BF16 tells 4000 from 4016."""
    head = nn.Linear(48, 1)
    nn.init.constant_(head.bias, 4000.0)
    model = nn.Sequential(nn.Linear(24, 48), nn.Tanh(), head)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    recorder = opened(model, optimizer)
    truth = torch.randn(24, generator=torch.Generator().manual_seed(3))
    loss = torch.zeros(())
    for x, _ in batches(200):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=broken):
            values = model(x)
        loss = F.smooth_l1_loss(values.float()[:, 0], 4000 + x @ truth / 2)
        loss.backward()
        optimizer.step()
        recorder.step(loss)
    return float(loss.detach())


class _OwnNorm(nn.Module):
    """Layer norm with the variance as a difference of two means, or as the mean of squared differences."""

    def __init__(self, as_difference: bool) -> None:
        super().__init__()
        self.as_difference = as_difference

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        variance = (x * x).mean(-1, keepdim=True) - mean * mean if self.as_difference else x.var(-1, keepdim=True)
        return (x - mean) * torch.rsqrt(variance.clamp(min=0) + 1e-3)


def _with_an_own_norm(opened: Open, as_difference: bool, offset: float) -> float:
    first = nn.Linear(24, 48)
    with torch.no_grad():
        first.bias.add_(offset)
    model = nn.Sequential(first, _OwnNorm(as_difference), nn.ReLU(), nn.Linear(48, 6))
    return _train(opened, model, torch.optim.Adam(model.parameters(), 2e-3), torch.bfloat16)


@_mistake("cancelled-digits")
def variance_as_a_difference_in_bf16(opened: Open, broken: bool) -> float:
    return _with_an_own_norm(opened, broken, 30.0)


@_enough
def variance_as_a_difference_of_small_means(opened: Open) -> None:
    _with_an_own_norm(opened, True, 0.0)


def _slopes(opened: Open, distance: float) -> float:
    """A network whose slope by differences, at points of this distance, is to be that of a sine."""
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    loss = torch.zeros(())
    for _ in range(150):
        x = 3 * torch.rand(64, 1)
        optimizer.zero_grad()
        slope = (model(x + distance) - model(x)) / distance
        loss = F.mse_loss(slope, torch.cos(x))
        loss.backward()
        optimizer.step()
        recorder.step(loss)
    return float(loss.detach())


@_mistake("cancelled-digits")
def slopes_at_too_small_a_distance(opened: Open, broken: bool) -> float:
    return _slopes(opened, 1e-7 if broken else 1e-2)


@_mistake("coarse-data")
def days_cast_before_their_offset_is_subtracted(opened: Open, broken: bool) -> float:
    model = nn.Sequential(nn.Linear(1, 48), nn.Tanh(), nn.Linear(48, 1))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    loss = torch.zeros(())
    for _ in range(150):
        day = 20000 + 60 * torch.rand(64, 1)
        inputs = (day.bfloat16() - 20030) / 20 if broken else ((day - 20030) / 20).bfloat16()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(inputs)
        loss = F.mse_loss(outputs.float(), torch.sin((day - 20030) / 20))
        loss.backward()
        optimizer.step()
        recorder.step(loss)
    return float(loss.detach())


@_enough
def ratios_of_nearly_equal_policies(opened: Open) -> None:
    """The ratio of a policy to itself, computed twice in batches of other sizes, and a straight-through estimator."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    recorder = opened(model, optimizer)
    for x, y in batches(40):
        with torch.no_grad():
            old = torch.cat([F.log_softmax(model(part), 1) for part in x.split(7)])
        for _ in range(2):
            optimizer.zero_grad()
            scores = model(x)
            rounded = scores + (scores.round() - scores).detach()
            ratio = (F.log_softmax(scores, 1) - old).exp()
            loss = -(ratio.gather(1, y[:, None]) * 1.0).mean() + 1e-3 * (rounded - scores).square().mean()
            loss.backward()
            optimizer.step()
            recorder.step(loss)


@_enough
def standardised_after_a_cast_that_is_exact(opened: Open) -> None:
    """Pixels of 0 to 255 are exact in BF16, and so is their difference from 128."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    recorder = opened(model, optimizer)
    for x, y in batches(40):
        pixels = (x * 2 + 128).clamp(0, 255).round()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model((pixels.bfloat16() - 128) / 2)
        loss = F.cross_entropy(outputs.float(), y)
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@_enough
def residual_stream_in_bf16(opened: Open) -> None:
    """Twelve residual blocks whose branches begin small, in one module, all in BF16."""

    class Stream(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.out = nn.Linear(24, 32), nn.Linear(32, 6)
            self.blocks = nn.ModuleList([nn.Linear(32, 32) for _ in range(12)])
            for block in self.blocks:
                nn.init.normal_(block.weight, std=0.02)

        def forward(self, x: Tensor) -> Tensor:
            x = self.into(x)
            for block in self.blocks:
                x = x + block(torch.tanh(x))
            out: Tensor = self.out(x)
            return out

    model = Stream()
    _train(opened, model, torch.optim.Adam(model.parameters(), 2e-3), torch.bfloat16)


@_enough
def equation_in_few_steps(opened: Open) -> None:
    model = _Flow(10, 0.1, False)
    _train(opened, model, torch.optim.Adam(model.parameters(), 2e-3), torch.bfloat16)


@_enough
def branches_that_begin_at_nothing(opened: Open) -> None:
    """Weights in BF16, and branches multiplied by a number that begins at 1e-6, as in CaiT."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.branch, self.size = nn.Linear(32, 32), nn.Parameter(torch.full((32,), 1e-6))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.size * self.branch(torch.tanh(x))

    model = nn.Sequential(nn.Linear(24, 32), *[Block() for _ in range(8)], nn.Linear(32, 6)).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    recorder = opened(model, optimizer)
    for x, y in batches(60):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.bfloat16()).float(), y)
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@_enough
def iteration_in_bf16_as_published(opened: Open) -> None:
    _muon(opened, torch.bfloat16)


@_enough
def weights_in_fp16_with_momentum(opened: Open) -> None:
    model = network().half()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    recorder = opened(model, optimizer)
    for x, y in batches(60):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.half()).float(), y)
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@_enough
def weights_in_fp16_with_a_large_epsilon(opened: Open) -> None:
    """AdamW on FP16 weights with the epsilon that FP16 can hold, as the documentation says."""
    model = network().half()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, eps=1e-4)
    recorder = opened(model, optimizer)
    for x, y in batches(60):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.half()).float(), y)
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@_enough
def weights_in_fp16_with_two_large_epsilons(opened: Open) -> None:
    """Two groups of parameters, each with an epsilon of its own that FP16 can hold."""
    model = network().half()
    *others, last = model.parameters()
    optimizer = torch.optim.AdamW([{"params": others, "eps": 1e-4}, {"params": [last], "eps": 1e-3}], 3e-3)
    recorder = opened(model, optimizer)
    for x, y in batches(60):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.half()).float(), y) * 1e-2
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@_enough
def classes_with_large_scores_in_bf16(opened: Open) -> None:
    """Scores of some 30 and a loss near zero: an ulp of the scores is above the loss."""
    model = network()
    with torch.no_grad():
        model[4].weight.mul_(20)
    _train(opened, model, torch.optim.Adam(model.parameters(), 3e-3), torch.bfloat16, 200)


@_enough
def mean_of_a_target_that_nothing_tells(opened: Open) -> None:
    """Targets near 100 that the inputs do not tell: the outputs are their mean, the loss their variance."""
    model = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 1))
    nn.init.constant_(model[2].bias, 100.0)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    recorder = opened(model, optimizer)
    for x, _ in batches(150):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(0.01 * x)
        loss = F.mse_loss(outputs.float()[:, 0], 100 + 3 * torch.randn(len(x)))
        loss.backward()
        optimizer.step()
        recorder.step(loss)
