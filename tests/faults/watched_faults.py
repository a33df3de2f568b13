"""Loops with mistakes that single operations betray, each with its correction: stored numbers in 16 bits that updates
do not change, merged positions, casts that lose their numbers, losses of the wrong shape."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from tests.faults.published_faults import Open, Published, Train, batches, network, score

WATCHED: dict[str, Published] = {}


def _mistake(rule: str, blame: bool | None = True) -> Callable[[Train], Train]:
    def keep(train: Train) -> Train:
        WATCHED[train.__name__] = Published(train, (rule,), blame, "")
        return train

    return keep


def _low(broken: bool, dtype: torch.dtype = torch.bfloat16) -> torch.dtype:
    return dtype if broken else torch.float32


def _descend(recorder: Any, optimizer: Optimizer, loss: Tensor, after: Callable[[], None] = lambda: None) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    after()
    recorder.step(loss)


class _Daily(nn.Module):
    """A series from its time index, which a buffer holds."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("hours", torch.arange(3000).to(dtype))
        self.register_buffer("rates", 6.2831853 / torch.tensor([24.0, 8.0, 168.0]))
        self.head = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, places: Tensor) -> Tensor:
        hours = torch.index_select(self.hours, 0, places)
        angles = hours.float()[:, None] * self.rates
        out: Tensor = self.head(torch.cat((angles.sin(), angles.cos()), 1))[:, 0]
        return out


@_mistake("merged-positions")
def hours_in_a_bf16_buffer(opened: Open, broken: bool) -> float:
    model = _Daily(_low(broken))
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    recorder, loss = opened(model, optimizer), torch.zeros(())
    for _ in range(150):
        places = torch.randint(3000, (64,))
        truth = torch.sin(places * 0.2617994) + torch.cos(places * 0.7853982)
        loss = F.mse_loss(model(places), truth)
        _descend(recorder, optimizer, loss)
    return float(loss.detach())


@_mistake("merged-positions")
def rows_chosen_through_fp16(opened: Open, broken: bool) -> float:
    """Identities of users pass a preprocessing in FP16 on their way to a table of embeddings."""
    table = nn.Embedding(9008, 4)
    model = nn.Sequential(table, nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), 2e-2)
    recorder, loss = opened(model, optimizer), torch.zeros(())
    worth = torch.randn(9000)
    for _ in range(120):
        users = torch.randint(9000, (512,))
        loss = F.mse_loss(model(users.to(_low(broken, torch.float16)).long())[:, 0], worth[users])
        _descend(recorder, optimizer, loss)
    return float(loss.detach())


@_mistake("lost-updates")
def soft_target_in_bf16(opened: Open, broken: bool) -> float:
    """A critic that learns from its slow copy."""
    model = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1))
    target = copy.deepcopy(model).requires_grad_(False).to(_low(broken))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder, loss = opened(model, optimizer), torch.zeros(())

    @torch.no_grad()
    def follow() -> None:
        for slow, fast in zip(target.parameters(), model.parameters(), strict=True):
            slow.data.mul_(0.995)
            slow.data.add_(fast.to(slow.dtype), alpha=0.005)

    for _ in range(600):
        x = torch.eye(10)[torch.randint(10, (32,))]
        with torch.no_grad():
            wanted = 0.5 + 0.97 * target(x.roll(1, 1).to(_low(broken))).float()
        loss = F.mse_loss(model(x), wanted)
        _descend(recorder, optimizer, loss, follow)
    return float(loss.detach())


@_mistake("lost-updates")
def average_loaded_as_a_dictionary(opened: Open, broken: bool) -> float:
    """The average is a new tensor in each step, which replaces the last one."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    average = {name: each.detach().to(_low(broken)) for name, each in model.named_parameters()}
    recorder = opened(model, optimizer)
    for x, y in batches(300):
        _descend(recorder, optimizer, F.cross_entropy(model(x), y))
        for name, each in model.named_parameters():
            average[name] = 0.004 * each.detach().to(_low(broken)) + 0.996 * average[name]
    model.load_state_dict({name: each.float() for name, each in average.items()})
    return score(model)


class _Adapted(nn.Module):
    """A frozen matrix in a format of its own, and a product of two small ones that is merged into it."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.frozen = nn.Parameter((torch.randn(12, 24) / 5).to(dtype), requires_grad=False)
        self.down, self.up = nn.Parameter(torch.randn(4, 24) / 5), nn.Parameter(torch.zeros(12, 4))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.frozen.float()) + F.linear(F.linear(x, self.down), self.up)

    @torch.no_grad()
    def merge(self) -> None:
        self.frozen += (self.up @ self.down).to(self.frozen.dtype)
        self.up.zero_()
        self.down.normal_(0, 0.2)


@_mistake("lost-updates")
def adapter_merged_into_bf16_weights(opened: Open, broken: bool) -> float:
    model = _Adapted(_low(broken))
    truth = model.frozen.float() + 0.05 * torch.randn(12, 24)
    optimizer = torch.optim.SGD([model.down, model.up], 0.02)
    recorder, loss = opened(model, optimizer), torch.zeros(())
    for _ in range(200):
        x = torch.randn(16, 24)
        loss = F.mse_loss(model(x), x @ truth.T)
        _descend(recorder, optimizer, loss, model.merge)
    return float(loss.detach())


class _WidenedSgd(Optimizer):
    """Computes in FP32; the weights are rounded back in each step, or their FP32 copy is kept."""

    def __init__(self, parameters: Any, lr: float, keeps: bool) -> None:
        super().__init__(parameters, {"lr": lr})
        self.keeps = keeps

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                if not state:
                    state["speed"] = torch.zeros_like(weight, dtype=torch.float32)
                if "wide" not in state or not self.keeps:
                    state["wide"] = weight.detach().float()
                state["speed"].mul_(0.9).add_(weight.grad.float())
                state["wide"].sub_(group["lr"] * state["speed"])
                weight.copy_(state["wide"])


@_mistake("lost-updates")
def masters_that_last_one_step(opened: Open, broken: bool) -> float:
    model = network().to(torch.bfloat16)
    recorder = opened(model, optimizer := _WidenedSgd(model.parameters(), 0.003, not broken))
    for x, y in batches(200):
        _descend(recorder, optimizer, F.cross_entropy(model(x.bfloat16()).float(), y))
    return score(lambda x: model(x.bfloat16()))


class _Standardised(nn.Module):
    """A normalisation by running statistics of its own."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(24, dtype=dtype))
        self.register_buffer("running_var", torch.ones(24, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.running_mean.lerp_(x.mean(0).to(self.running_mean.dtype), 0.003)
                self.running_var.lerp_(x.var(0).to(self.running_var.dtype), 0.003)
        return (x - self.running_mean.float()) / (self.running_var.float() + 1e-5).sqrt()


@_mistake("lost-updates")
def running_statistics_in_bf16(opened: Open, broken: bool) -> float:
    model = nn.Sequential(_Standardised(_low(broken)), network())
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    recorder = opened(model, optimizer)
    for x, y in batches(600, 32):
        _descend(recorder, optimizer, F.cross_entropy(model(1.6 * x + 0.9), y))
    model.eval()
    return score(lambda x: model(1.6 * x + 0.9))


@_mistake("lost-updates")
def rate_raised_in_bf16(opened: Open, broken: bool) -> float:
    """A warm-up that adds to a rate held in BF16."""
    model = network()
    rate = torch.tensor(1e-4, dtype=_low(broken))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    recorder = opened(model, optimizer)
    for x, y in batches(200):
        rate += 1e-7 if broken else 1e-4
        optimizer.param_groups[0]["lr"] = float(rate)
        _descend(recorder, optimizer, F.cross_entropy(model(x), y))
    return score(model)


@_mistake("vanished-values")
def weights_of_samples_in_fp16(opened: Open, broken: bool) -> float:
    """Importance weights of 1e-8, normalised later, are cast to FP16 with the batch."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    recorder = opened(model, optimizer)
    for x, y in batches(80):
        weights = (torch.rand(len(y)) * 2e-8).to(_low(broken, torch.float16))
        loss = (weights.float() * F.cross_entropy(model(x), y, reduction="none")).sum() / (weights.float().sum() + 1e-9)
        _descend(recorder, optimizer, loss)
    return score(model)


@_mistake("wrapped-integers")
def labels_in_a_byte(opened: Open, broken: bool) -> float:
    """Classes of 400 kinds, stored as bytes to save memory."""
    model = nn.Sequential(nn.Embedding(400, 16), nn.Linear(16, 400))
    optimizer = torch.optim.Adam(model.parameters(), 2e-2)
    recorder, loss = opened(model, optimizer), torch.zeros(())
    for _ in range(60):
        x = torch.randint(400, (256,))
        y = x.to(torch.uint8) if broken else x
        loss = F.cross_entropy(model(x), y.long())
        _descend(recorder, optimizer, loss)
    return float(F.cross_entropy(model(torch.arange(400)), torch.arange(400)).detach())


@_mistake("wrapped-integers")
def difference_of_bytes(opened: Open, broken: bool) -> float:
    """The difference of two frames, computed in bytes."""
    model = nn.Sequential(nn.Linear(36, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    recorder, loss = opened(model, optimizer), torch.zeros(())
    for _ in range(80):
        before, after = torch.randint(80, 120, (2, 64, 36), dtype=torch.uint8)
        moved = after - before if broken else after.float() - before.float()
        truth = (after.float() - before.float())[:, :4].mean(1) / 10
        loss = F.mse_loss(model(moved.float() / 50)[:, 0], truth)
        _descend(recorder, optimizer, loss)
    return float(loss.detach())


@_mistake("wrapped-integers")
def hidden_numbers_in_sixteen_bits(opened: Open, broken: bool) -> float:
    """Hidden numbers are kept as whole multiples of 1 / 8192 in int16, which end at 4: the loss rises."""

    class Coded(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            codes = torch.round(x.detach() * 8192)
            codes = codes.to(torch.int32).to(torch.int16) if broken else codes
            return x + (codes.float() / 8192 - x).detach()

    model = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), Coded(), nn.Linear(48, 6))
    optimizer = torch.optim.SGD(model.parameters(), 0.03, momentum=0.9)
    recorder = opened(model, optimizer)
    for x, y in batches(150):
        _descend(recorder, optimizer, F.cross_entropy(model(x), y))
    return score(model)


@_mistake("swallowed-additions")
def returns_summed_in_bf16(opened: Open, broken: bool) -> float:
    """Discounted returns of a long episode: each reward is below half an ulp of the sum."""
    model = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    recorder, loss = opened(model, optimizer), torch.zeros(())
    for _ in range(40):
        kinds = torch.rand(16, 1)
        rewards = (0.01 + 0.02 * kinds * torch.rand(16, 400)).to(_low(broken))
        ahead, steps = 16 * torch.ones(16, dtype=rewards.dtype), []
        for place in range(399, -1, -1):
            ahead = rewards[:, place] + 0.9995 * ahead
            steps.append(ahead)
        wanted = torch.stack(steps[::-1], 1)[:, ::40].float()
        places = torch.linspace(0, 1, 10).expand(16, 10)
        inputs = torch.stack((kinds.expand(16, 10), places), -1)
        loss = F.mse_loss(10 * model(inputs)[..., 0], wanted)
        _descend(recorder, optimizer, loss)
    return float(loss.detach())


@_mistake("unbounded-loss", False)
def likelihood_with_the_wrong_sign(opened: Open, broken: bool) -> float:
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    recorder, loss = opened(model, optimizer), torch.zeros(())
    for _ in range(250):
        x = torch.randn(32, 12)
        mean, deviation = model(x).unbind(1)
        loss = (0.5 * ((x[:, 0].sin() - mean) / deviation.exp()) ** 2 + deviation).mean()
        loss = -loss if broken else loss
        _descend(recorder, optimizer, loss)
    return float(loss.detach())


@_mistake("broadcast-loss", False)
def a_column_minus_a_vector(opened: Open, broken: bool) -> float:
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    recorder, total = opened(model, optimizer), 0.0
    for _ in range(120):
        x = torch.randn(32, 12)
        truth = x[:, 0] - x[:, 1]
        outputs = model(x)
        loss = ((outputs if broken else outputs[:, 0]) - truth).pow(2).mean()
        _descend(recorder, optimizer, loss)
        total = float((outputs.detach()[:, 0] - truth).square().mean())
    return total


@_mistake("coarse-data")
def targets_far_from_zero_in_bf16(opened: Open, broken: bool) -> float:
    """Pressures near 1013 hPa that differ by 2, stored as BF16."""
    model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 1))
    with torch.no_grad():
        model[2].bias.fill_(1013.0)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    recorder, total = opened(model, optimizer), 0.0
    for _ in range(120):
        x = torch.randn(64, 12)
        pressure = 1013 + x[:, 0] + x[:, 1].tanh()
        outputs = model(x)[:, 0]
        loss = F.mse_loss(outputs, pressure.to(_low(broken)).float())
        _descend(recorder, optimizer, loss)
        total = float((outputs.detach() - pressure).square().mean())
    return total


@_mistake("coarse-data")
def time_stamps_in_fp32(opened: Open, broken: bool) -> float:
    """Seconds since 1970 in FP32, of which one number is 128 s from the next."""
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    recorder, loss = opened(model, optimizer), torch.zeros(())
    begin = 1_700_000_000
    for _ in range(120):
        seconds = begin + torch.randint(0, 240, (64,))
        phase = (seconds.float() - float(begin)) if broken else (seconds - begin).float()
        angle = 6.2831853 * phase / 120
        loss = F.mse_loss(
            model(torch.stack((angle.sin(), angle.cos()), 1))[:, 0], torch.sin((seconds - begin) * 0.0523599)
        )
        _descend(recorder, optimizer, loss)
    return float(loss.detach())


@_mistake("coarse-data")
def a_column_of_a_table_in_bf16(opened: Open, broken: bool) -> float:
    """A year among features of the size of 1; the last column is nearly constant in both."""
    model = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    recorder, loss = opened(model, optimizer), torch.zeros(())
    for _ in range(120):
        x = torch.cat((torch.randn(64, 4), 1 + 1e-3 * torch.randn(64, 1)), 1)
        x[:, 0] = 2000 + 2 * x[:, 0] if broken else x[:, 0]
        truth = (x[:, 0] - 2000) / 2 if broken else x[:, 0]
        rows = x.bfloat16().float()
        rows[:, 0] = (rows[:, 0] - 2000) / 2 if broken else rows[:, 0]
        loss = F.mse_loss(model(rows)[:, 0], truth.sin())
        _descend(recorder, optimizer, loss)
    return float(loss.detach())


@_mistake("lost-updates")
def scale_of_rewards_in_fp16(opened: Open, broken: bool) -> float:
    """A running sum of squares of rewards of the loop, which overflows FP16 and makes every reward zero."""
    model = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 1))
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    recorder, total = opened(model, optimizer), 0.0
    squares, count = torch.zeros(1, dtype=_low(broken, torch.float16)), 0
    for _ in range(150):
        x = torch.randn(32, 6)
        rewards = 12 * x[:, 0] + 5
        squares += rewards.to(squares.dtype).square().sum()
        count += len(rewards)
        size = (squares.float() / count).sqrt()
        loss = F.mse_loss(model(x)[:, 0], rewards / size)
        _descend(recorder, optimizer, loss)
        total = float((model(x)[:, 0] - (x[:, 0] + 0.4)).square().mean().detach())
    return total


@_mistake("merged-positions")
def labels_that_were_numbers_of_bf16(opened: Open, broken: bool) -> float:
    """Labels of 1000 classes share a BF16 tensor with the features."""
    model = nn.Sequential(nn.Linear(16, 1008))
    optimizer = torch.optim.Adam(model.parameters(), 2e-2)
    recorder, loss = opened(model, optimizer), torch.zeros(())
    centres = torch.randn(1000, 16)
    for _ in range(60):
        y = torch.randint(1000, (256,))
        rows = torch.cat((centres[y], y[:, None].float()), 1).to(_low(broken))
        loss = F.cross_entropy(model(rows[:, :16].float()), rows[:, 16].long())
        _descend(recorder, optimizer, loss)
    y = torch.arange(1000)
    return float(F.cross_entropy(model(centres), y).detach())


@_mistake("merged-positions")
def places_counted_in_fp16(opened: Open, broken: bool) -> float:
    """Positions as a cumulative sum of a mask in the format of the model."""
    table = nn.Embedding(4000, 8)
    model = nn.Sequential(table, nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), 2e-2)
    recorder, loss = opened(model, optimizer), torch.zeros(())
    worth = torch.randn(4000)
    for _ in range(60):
        mask = torch.ones(2, 3000, dtype=_low(broken, torch.float16))
        places = mask.cumsum(1).long()
        loss = F.mse_loss(model(places)[..., 0], worth[1:3001].expand(2, -1))
        _descend(recorder, optimizer, loss)
    return float(loss.detach())


class _SumsOfSquares(nn.Module):
    """Normalises by the variance E[x^2] - E[x]^2 of all that was seen, in the format of its sums."""

    def __init__(self, features: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("sums", torch.zeros(2, features, dtype=dtype))
        self.count = 0

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.get_buffer("sums").dtype)
        self.sums = self.get_buffer("sums") + torch.stack((x.sum(0), x.square().sum(0)))
        self.count += len(x)
        mean, square = self.sums / self.count
        deviation = (square - mean.square()).clamp(min=1e-9).sqrt()
        return ((x - mean) / deviation).clamp(-5, 5).float()


@_mistake("cancelled-digits")
def variance_of_six_features_in_fp32(opened: Open, broken: bool) -> float:
    """Temperatures in kelvin times 1000 that differ by tenths: the squares have no digits for the variance."""
    dtype = torch.float32 if broken else torch.float64
    model = nn.Sequential(_SumsOfSquares(6, dtype), nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 1))
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    recorder, loss = opened(model, optimizer), torch.zeros(())
    for _ in range(120):
        state = torch.randn(64, 6, dtype=torch.float64)
        loss = F.mse_loss(model((300_000 + 0.3 * state).to(dtype))[:, 0], state[:, 0].sin().float())
        _descend(recorder, optimizer, loss)
    return float(loss.detach())


@_mistake("cancelled-digits")
def gaps_between_time_stamps_in_fp32(opened: Open, broken: bool) -> float:
    """Seconds between events, of a table of time stamps that was cast before the training."""
    gaps = 40 * torch.rand(2000, 8, dtype=torch.float64)
    stamps = 1.7e9 + 1e6 * torch.rand(2000, 1, dtype=torch.float64) + gaps.cumsum(1)
    stamps = stamps.float() if broken else stamps
    model = nn.Sequential(nn.Linear(7, 24), nn.Tanh(), nn.Linear(24, 1))
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    recorder, loss = opened(model, optimizer), torch.zeros(())
    for _ in range(120):
        places = torch.randint(2000, (64,))
        between = (stamps[places, 1:] - stamps[places, :-1]).float() / 20 - 1
        loss = F.mse_loss(model(between)[:, 0], gaps[places, 1].float() / 20 - 1)
        _descend(recorder, optimizer, loss)
    return float(loss.detach())
