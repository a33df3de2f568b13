"""Numbers of which 16 bits leave 0, 1 or all the same: decays, sums of exponentials and scores; and sound loops."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.faults.class_faults import _fault, _healthy
from tests.faults.published_faults import Open, batches

BF, HALF = torch.bfloat16, torch.float16


class _Leaky(nn.Module):
    """Leaky integrators of fixed time constants, whose state lives in the model, and what is read from them."""

    def __init__(self, times: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, len(times)), nn.Linear(len(times), 1)
        self.register_buffer("times", times.to(dtype))
        self.register_buffer("state", torch.zeros(8, len(times)))

    def forward(self, x: Tensor) -> Tensor:
        decays = 1 - 1 / self.get_buffer("times")
        states = []
        with torch.no_grad():
            inner = self.inner(x)
            for step in range(x.shape[1]):
                self.get_buffer("state").mul_(decays).add_(inner[:, step])
                states.append(self.get_buffer("state") / 50)
        out: Tensor = self.outer(torch.stack(states, 1))[..., 0]
        return out


class _Gated(nn.Module):
    """A diagonal recurrence, whose state is handed from chunk to chunk; `gates` are functions of the input."""

    def __init__(self, begin: float, dtype: torch.dtype, *, gates: bool = False) -> None:
        super().__init__()
        self.inner, self.outer, self.dtype = nn.Linear(4, 16), nn.Linear(16, 1), dtype
        self.begin = nn.Parameter(torch.full((16,), begin) + 0.1 * torch.randn(16))
        self.gate = nn.Linear(4, 16) if gates else None
        self.state = torch.zeros(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        state, inner, states = self.state, self.inner(x), []
        for step in range(x.shape[1]):
            rate = self.begin if self.gate is None else self.begin + self.gate(x[:, step])
            state = torch.addcmul(inner[:, step], torch.sigmoid(rate).to(self.dtype), state)
            states.append(state)
        self.state = state.detach()
        out: Tensor = self.outer(torch.stack(states, 1) / 50)[..., 0]
        return out


def _follow(opened: Open, model: nn.Module, steps: int = 130, chunk: int = 16) -> None:
    """Learn to follow a slow average of the inputs."""
    optimizer = torch.optim.Adam([each for each in model.parameters() if each.requires_grad], lr=2e-3)
    recorder, slow = opened(model, optimizer), torch.zeros(8)
    for _ in range(steps):
        x, followed = torch.randn(8, chunk, 4) + 0.2, []
        for step in range(chunk):
            slow = slow * (1 - 1 / 600) + x[:, step, 0]
            followed.append(slow / 50)
        loss = F.mse_loss(model(x), torch.stack(followed, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


def _leaky(opened: Open, times: Tensor, dtype: torch.dtype) -> None:
    model = _Leaky(times, dtype)
    for each in model.inner.parameters():
        each.requires_grad_(False)
    _follow(opened, model)


_NEVER = ("never forgets", "Keep decays in FP32")


@_fault("lost-updates", *_NEVER, blame=True)
def leaks_of_long_times_in_bf16(opened: Open) -> None:
    _leaky(opened, torch.linspace(500, 1200, 16), BF)


@_fault("lost-updates", *_NEVER, blame=True)
def learned_decays_cast_to_bf16(opened: Open) -> None:
    _follow(opened, _Gated(6.8, BF))


@_healthy
def leaks_of_long_times_in_fp32(opened: Open) -> None:
    _leaky(opened, torch.linspace(500, 1200, 16), torch.float32)


@_healthy
def leaks_of_short_times_in_bf16(opened: Open) -> None:
    _leaky(opened, torch.linspace(5, 60, 16), BF)


@_healthy
def leaks_of_times_far_beyond_the_run_in_bf16(opened: Open) -> None:
    """Integrators that are to keep all of a run."""
    _leaky(opened, torch.linspace(1e6, 2e6, 16), BF)


@_healthy
def learned_decays_in_fp32(opened: Open) -> None:
    _follow(opened, _Gated(6.8, torch.float32))


@_healthy
def gates_of_the_input_in_bf16(opened: Open) -> None:
    """As many as the numbers that they multiply, and they learn to be open."""
    _follow(opened, _Gated(6.8, BF, gates=True))


class _Means(nn.Module):
    """Centres of clusters, drawn to the samples that belong to them more than to others: one step of EM by gradient."""

    def __init__(self, width: float, dtype: torch.dtype, *, shifted: bool = False) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.randn(12, 24))
        self.width, self.dtype, self.shifted = width, dtype, shifted

    def forward(self, x: Tensor) -> Tensor:
        squares = ((x[:, None] - self.centres) ** 2).sum(2)
        with torch.no_grad():
            scores = -squares / self.width
            if self.shifted:
                scores = scores - scores.amax(1, keepdim=True)
            belongs = torch.exp(scores.to(self.dtype)).float()
            belongs = belongs / (belongs.sum(1, keepdim=True) + 1e-12)
        return (belongs * squares).sum(1).mean()


class _Tilted(nn.Module):
    """A regression on samples that count by exp(-energy), of a batch together."""

    def __init__(self, energy: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.layers, self.energy, self.dtype = (
            nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 1)),
            energy,
            dtype,
        )

    def forward(self, x: Tensor) -> Tensor:
        groups = x.view(8, 8, 24)
        with torch.no_grad():
            energies = self.energy + groups.square().mean(2)
            weights = torch.exp(-energies.to(self.dtype))
            weights = weights.float() / weights.sum(1, dtype=torch.float32).clamp_min(1e-20)[:, None]
        errors = (self.layers(groups)[..., 0] - groups[..., :2].prod(2)).square()
        return (weights * errors).sum(1).mean()


def _fit(opened: Open, model: nn.Module) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    recorder = opened(model, optimizer)
    for x, _ in batches(60):
        loss = model(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


_BOUNDED = ("a lower bound is taken for them", "Subtract the largest argument of each row")


@_fault("vanished-values", *_BOUNDED, blame=True)
def memberships_in_fp16(opened: Open) -> None:
    _fit(opened, _Means(3.0, HALF))


@_fault("vanished-values", *_BOUNDED, blame=True)
def weights_of_large_energies_in_fp16(opened: Open) -> None:
    _fit(opened, _Tilted(20.0, HALF))


@_healthy
def memberships_in_fp32(opened: Open) -> None:
    _fit(opened, _Means(3.0, torch.float32))


@_healthy
def memberships_in_fp16_below_their_largest(opened: Open) -> None:
    _fit(opened, _Means(3.0, HALF, shifted=True))


@_healthy
def wide_memberships_in_fp16(opened: Open) -> None:
    _fit(opened, _Means(60.0, HALF))


@_healthy
def weights_of_small_energies_in_fp16(opened: Open) -> None:
    _fit(opened, _Tilted(2.0, HALF))


Store = Callable[[Tensor], Tensor]


def _copied(dtype: torch.dtype) -> Store:
    def store(scores: Tensor) -> Tensor:
        kept = torch.empty(len(scores), dtype=dtype)
        kept.copy_(scores)
        return kept

    return store


def _evolve(opened: Open, store: Store, offset: float, *, ranks: bool) -> None:
    """An evolution strategy on weights: returns around an offset, by their ranks or standardised."""
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    sizes = [each.numel() for each in model.parameters()]
    recorder = opened(model, optimizer)
    x = torch.randn(128, 3)
    y = torch.tanh(x[:, :1] * x[:, 1:2])

    def rated(flat: Tensor) -> Tensor:
        first, bias, last, end = (
            part.view_as(p) for part, p in zip(flat.split(sizes), model.parameters(), strict=True)
        )
        return offset - 3 * (torch.tanh(x @ first.T + bias) @ last.T + end - y).square().mean()

    for _ in range(60):
        centre = torch.cat([each.detach().flatten() for each in model.parameters()])
        noise = torch.randn(20, len(centre))
        with torch.no_grad():
            exact = torch.stack([rated(centre + 0.05 * each) for each in noise])
        scores = store(exact)
        worth = scores.float()
        if ranks:
            worth = scores.argsort().argsort().float() / 19
        worth = (worth - worth.mean()) / (worth.std() + 1e-8)
        gradient = -(worth[:, None] * noise).mean(0) / 0.05
        optimizer.zero_grad()
        for each, part in zip(model.parameters(), gradient.split(sizes), strict=True):
            each.grad = part.view_as(each).clone()
        optimizer.step()
        recorder.step(offset - exact.mean())


_SCORES = ("what scores differ by", "until they are compared")


@_fault("coarse-data", *_SCORES, blame=True)
def ranks_of_returns_in_fp16(opened: Open) -> None:
    _evolve(opened, lambda scores: scores.half(), 4000.0, ranks=True)


@_fault("coarse-data", *_SCORES, blame=True)
def standardised_returns_copied_into_bf16(opened: Open) -> None:
    _evolve(opened, _copied(BF), 20.0, ranks=False)


@_healthy
def ranks_of_returns_in_fp32(opened: Open) -> None:
    _evolve(opened, _copied(torch.float32), 4000.0, ranks=True)


@_healthy
def ranks_of_returns_around_zero_in_fp16(opened: Open) -> None:
    _evolve(opened, lambda scores: scores.half(), 0.0, ranks=True)


@_healthy
def returns_less_a_baseline_copied_into_fp16(opened: Open) -> None:
    _evolve(opened, lambda scores: _copied(HALF)(scores - scores.mean()), 4000.0, ranks=False)


@_healthy
def losses_kept_in_bf16_for_a_report(opened: Open) -> None:
    """Their mean is printed, and nothing compares them; an average of weights in BF16 beside them."""
    model = nn.Sequential(nn.Linear(24, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 6))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    recorder, kept = opened(model, optimizer), torch.zeros(64, dtype=BF)
    scales = torch.ones(32, dtype=BF)
    for x, y in batches(60):
        losses = F.cross_entropy(model(x), y, reduction="none")
        kept[:] = losses.detach() + 100
        scales.copy_(0.5 * (model[1].weight.detach() + 1))
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
        recorder.step(losses.mean() + 0 * kept.float().mean())


def _advantages(opened: Open, dtype: torch.dtype) -> None:
    """A policy that learns from rewards of groups, less their mean, over their spread, which is 0 in some."""
    model = nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 6))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    recorder = opened(model, optimizer)
    for x, y in batches(24):
        tried = torch.randint(6, (64, 4))
        rewards = (tried == y[:, None]).to(dtype)
        worth = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-8)
        loss = -(model(x).log_softmax(1).gather(1, tried) * worth.float()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@_fault("data-not-finite", "hold NaN or Inf", "Divide in FP32, where the epsilon", blame=True)
def advantages_over_an_epsilon_of_fp16(opened: Open) -> None:
    _advantages(opened, HALF)


@_healthy
def advantages_over_an_epsilon_of_bf16(opened: Open) -> None:
    """Whose range the epsilon is in."""
    _advantages(opened, BF)


def _standardised(opened: Open, dtype: torch.dtype) -> None:
    """Targets less a running mean, over the root of a running mean of squares."""
    model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    recorder = opened(model, optimizer)
    mean, square = torch.zeros((), dtype=dtype), torch.ones((), dtype=dtype)
    for step in range(40):
        x = torch.randn(32, 4)
        rewards = 300 + 20 * x[:, 0] + 5 * torch.randn(32)
        mean += ((rewards.mean() - mean) / (step + 1)).to(dtype)
        square += ((rewards.square().mean() - square) / (step + 1)).to(dtype)
        targets = (rewards - mean) / (square - mean.square()).clamp(min=1e-4).sqrt()
        loss = F.mse_loss(model(x)[:, 0], targets.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@_fault("data-not-finite", "hold NaN or Inf", "Look at how these numbers are made", blame=None)
def squares_of_rewards_beyond_fp16(opened: Open) -> None:
    _standardised(opened, HALF)


@_healthy
def squares_of_rewards_in_fp32(opened: Open) -> None:
    _standardised(opened, torch.float32)


def _static_scale(opened: Open, widened: Callable[[Tensor, float], Tensor]) -> None:
    """Weights in FP16 with masters in FP32, and a loss scale by hand; a reconstruction has a small weight."""
    trunk, classes, picture = nn.Linear(24, 32), nn.Linear(32, 6), nn.Linear(24, 96)
    model = nn.ModuleDict({"trunk": trunk, "classes": classes, "picture": picture}).half()
    masters = [nn.Parameter(each.detach().float()) for each in model.parameters()]
    optimizer = torch.optim.Adam(masters, 2e-3, eps=1e-12)
    recorder, scale = opened(model, optimizer), 2.0**14
    for x, y in batches(60):
        found = F.mse_loss(picture(x.half()).float(), x.repeat(1, 4))
        loss = F.cross_entropy(classes(F.relu(trunk(x.half()))).float(), y) + 2e-6 * found
        model.zero_grad()
        (loss * scale).backward()
        for master, own in zip(masters, model.parameters(), strict=True):
            assert own.grad is not None
            master.grad = widened(own.grad, scale)
        optimizer.step()
        with torch.no_grad():
            for master, own in zip(masters, model.parameters(), strict=True):
                own.copy_(master)
        recorder.step(loss)


def _in_place(gradient: Tensor, scale: float) -> Tensor:
    gradient.mul_(1 / scale)
    return torch.empty_like(gradient, dtype=torch.float32).copy_(gradient)


@_fault("gradient-underflow", "before it is widened", "p.grad.float()", True)
def gradients_divided_by_their_scale_in_fp16(opened: Open) -> None:
    _static_scale(opened, lambda gradient, scale: gradient.div(scale).float())


@_fault("gradient-underflow", "before it is widened", "p.grad.float()", True)
def gradients_times_one_over_their_scale_in_fp16(opened: Open) -> None:
    _static_scale(opened, _in_place)


@_healthy
def gradients_divided_by_their_scale_in_fp32(opened: Open) -> None:
    _static_scale(opened, lambda gradient, scale: gradient.float() / scale)
