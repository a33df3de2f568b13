"""Loops that stand still at chance, each with its correction, and odd loops near that level that are healthy."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.faults.published_faults import Open, blobs

Loop = Callable[[Open], None]
NEAR_CHANCE: dict[str, Loop] = {}  # healthy
AT_CHANCE: dict[str, Planted] = {}


@dataclass(frozen=True)
class Planted:
    """A loop with or without its mistake; the rule that names it, words of its title, whether precision is to blame."""

    train: Callable[[Open, bool], None]
    rule: str
    says: str
    blame: bool | None


def _planted(
    rule: str, says: str, blame: bool | None = False
) -> Callable[[Callable[[Open, bool], None]], Callable[[Open, bool], None]]:
    def keep(train: Callable[[Open, bool], None]) -> Callable[[Open, bool], None]:
        AT_CHANCE[train.__name__] = Planted(train, rule, says, blame)
        return train

    return keep


def _healthy(loop: Loop) -> Loop:
    NEAR_CHANCE[loop.__name__] = loop
    return loop


def _descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def _classifier(normed: bool = False) -> nn.Sequential:
    return nn.Sequential(nn.Linear(24, 32), nn.LayerNorm(32) if normed else nn.Identity(), nn.ReLU(), nn.Linear(32, 6))


@_planted("chance-level", "learns nothing")
def shuffled_apart(opened: Open, broken: bool) -> None:
    """Inputs are shuffled in each epoch, their labels are not."""
    x, y = blobs(1024)
    model = _classifier(normed=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    recorder = opened(model, optimizer)
    for _ in range(10):
        order = torch.randperm(1024)
        x = x[order]
        y = y if broken else y[order]
        for at in range(0, 1024, 64):
            recorder.step(_descend(optimizer, F.cross_entropy(model(x[at : at + 64]), y[at : at + 64])))


@_planted("chance-level", "learns nothing", None)
def shuffled_apart_in_bf16(opened: Open, broken: bool) -> None:
    """The same of a regression, in BF16: whether 16 bits matter cannot be told."""
    x = torch.randn(1024, 12)
    y = torch.sin(x[:, :1]) + x[:, 1:2]
    model = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    recorder = opened(model, optimizer)
    for _ in range(160):
        chosen = torch.randint(1024, (64,))
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(x[torch.randint(1024, (64,)) if broken else chosen])
        recorder.step(_descend(optimizer, ((outputs.float() - y[chosen]) ** 2).mean()))


class _Step(nn.Module):
    """A layer with a tanh of its own."""

    def __init__(self, width: int, deviation: float) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.normal_(self.linear.weight, std=deviation)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x))


@_planted("saturated-units", "began so large")
def initialised_for_a_shallow_network(opened: Open, broken: bool) -> None:
    layers = [_Step(48, 1.5 if broken else 0.15) for _ in range(8)]
    model = nn.Sequential(nn.Linear(8, 48), *layers, nn.Linear(48, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    recorder, w = opened(model, optimizer), torch.randn(8)
    for _ in range(180):
        x = torch.randn(64, 8)
        recorder.step(_descend(optimizer, F.mse_loss(model(x)[:, 0], torch.sin(x @ w))))


class _Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(24, 32), nn.Linear(32, 32), nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(F.relu(self.second(F.relu(self.first(x)))))
        return out


@_planted("inputs-out-of-scale", "Inputs are not scaled")
def pixels_that_are_not_normalised(opened: Open, broken: bool) -> None:
    """The first updates kill all ReLUs; the loss falls from thousands to the entropy of the classes."""
    model = _Functional()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    recorder = opened(model, optimizer)
    for step in range(160):
        x, y = blobs(64, seed=step)
        x = 40 * x + 128
        recorder.step(_descend(optimizer, F.cross_entropy(model(x if broken else (x - 128) / 40), y)))


class _Grammar(nn.Module):
    """A transformer of one layer over twelve letters."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(12, 24), nn.Parameter(torch.zeros(10, 24))
        self.layer = nn.TransformerEncoderLayer(24, 2, 48, dropout=0.0, batch_first=True)
        self.head = nn.Linear(24, 12)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(10)
        out: Tensor = self.head(self.layer(self.letters(x) + self.places, src_mask=mask, is_causal=True))
        return out


@_planted("rate-too-high", "rises again")
def the_rate_of_another_optimizer(opened: Open, broken: bool) -> None:
    model = _Grammar()
    optimizer = torch.optim.AdamW(model.parameters(), 0.2 if broken else 3e-3)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=240)  # so that the loss surely falls first
    recorder, chain = opened(model, optimizer), torch.softmax(2 * torch.randn(12, 12), 1)
    for _ in range(240):
        text = [torch.randint(12, (24,))]
        for _ in range(10):
            text.append(torch.multinomial(chain[text[-1]], 1)[:, 0])
        whole = torch.stack(text, 1)
        recorder.step(_descend(optimizer, F.cross_entropy(model(whole[:, :-1]).flatten(0, 1), whole[:, 1:].flatten())))
        warm_up.step()


class _Spelling(nn.Module):
    """The next letter of a chain, by two layers that read one."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.hidden, self.head = nn.Embedding(12, 16), nn.Linear(16, 32), nn.Linear(32, 12)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.hidden(self.letters(x))))
        return out


def _spell(opened: Open, rate: float, sharpness: float, *, zeros: bool = False) -> None:
    model = _Spelling()
    if zeros:
        nn.init.zeros_(model.head.weight)
    optimizer = torch.optim.AdamW(model.parameters(), rate)
    recorder, chain = opened(model, optimizer), torch.softmax(sharpness * torch.randn(12, 12), 1)
    for _ in range(160):
        x = torch.randint(12, (512,))
        recorder.step(_descend(optimizer, F.cross_entropy(model(x), torch.multinomial(chain[x], 1)[:, 0])))


@_planted("rate-too-high", "the first step replaced the weights")
def a_third_as_the_rate_of_adam(opened: Open, broken: bool) -> None:
    """The classes are told apart in the end, at 30 times the loss of a usual rate."""
    model = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 6))
    optimizer = torch.optim.Adam(model.parameters(), 0.3 if broken else 1e-3)
    recorder = opened(model, optimizer)
    for step in range(200):
        x, y = blobs(64, seed=step)
        recorder.step(_descend(optimizer, F.cross_entropy(model(x), y)))


@_healthy
def a_third_as_the_rate_of_descent(opened: Open) -> None:
    model = _classifier(normed=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    recorder = opened(model, optimizer)
    for step in range(160):
        x, y = blobs(64, seed=step)
        recorder.step(_descend(optimizer, F.cross_entropy(model(x), y)))


@_healthy
def small_tables_at_a_high_rate(opened: Open) -> None:
    """Factors that begin at a hundredth: the first update is larger than they are, and half of the scores is noise."""
    users, items = nn.Embedding(60, 6), nn.Embedding(40, 6)
    for each in (users, items):
        nn.init.normal_(each.weight, std=0.01)
    optimizer = torch.optim.Adam([users.weight, items.weight], 0.05)
    recorder, truth = opened(nn.ModuleList([users, items]), optimizer), torch.randn(60, 3) @ torch.randn(3, 40)
    for _ in range(200):
        u, i = torch.randint(60, (256,)), torch.randint(40, (256,))
        scores = truth[u, i] + 1.5 * torch.randn(256)
        recorder.step(_descend(optimizer, F.mse_loss((users(u) * items(i)).sum(1), scores)))


@_healthy
def a_line_through_noise_at_a_high_rate(opened: Open) -> None:
    """Small first weights, sixteen inputs, and two thirds of the loss are noise."""
    model = nn.Linear(16, 1)
    nn.init.normal_(model.weight, std=0.01)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    recorder, w = opened(model, optimizer), torch.randn(16) / 6
    for _ in range(200):
        x = torch.randn(128, 16)
        recorder.step(_descend(optimizer, F.mse_loss(model(x)[:, 0], x @ w + torch.randn(128))))


@_healthy
def a_high_rate_that_is_warmed_up_and_decays(opened: Open) -> None:
    model = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 6))
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=200)
    recorder = opened(model, optimizer)
    for step in range(200):
        x, y = blobs(64, seed=step)
        recorder.step(_descend(optimizer, F.cross_entropy(model(x), y)))
        schedule.step()


@_healthy
def little_to_learn_at_a_high_rate(opened: Open) -> None:
    """A twentieth of the loss of a constant at most can be gained, at 0.02."""
    _spell(opened, 0.02, 0.3)


@_healthy
def little_to_learn_behind_a_head_of_zeros(opened: Open) -> None:
    _spell(opened, 0.02, 0.3, zeros=True)


@_healthy
def noise_and_a_line_from_zero_at_a_high_rate(opened: Open) -> None:
    """The first update is infinitely large beside weights of zero, and the loss cannot fall by more than a tenth."""
    model = nn.Linear(6, 1)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.Adam(model.parameters(), 0.03)
    recorder, w = opened(model, optimizer), torch.randn(6) / 6
    for _ in range(200):
        x = torch.randn(128, 6)
        recorder.step(_descend(optimizer, F.mse_loss(model(x)[:, 0], x @ w + torch.randn(128))))


@_healthy
def noise_of_which_a_tenth_can_be_learnt(opened: Open) -> None:
    model = nn.Linear(6, 1)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    recorder, w = opened(model, optimizer), torch.randn(6) / 6
    for _ in range(200):
        x = torch.randn(128, 6)
        recorder.step(_descend(optimizer, F.mse_loss(model(x)[:, 0], x @ w + torch.randn(128))))


@_healthy
def still_at_chance_after_few_steps(opened: Open) -> None:
    model = _classifier()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    recorder = opened(model, optimizer)
    for step in range(80):
        x, y = blobs(32, seed=step)
        recorder.step(_descend(optimizer, F.cross_entropy(model(x), y)))


@_healthy
def slow_but_falling(opened: Open) -> None:
    """The loss begins above chance and creeps below it."""
    model = _classifier()
    optimizer = torch.optim.SGD(model.parameters(), 4e-3)
    recorder = opened(model, optimizer)
    for step in range(200):
        x, y = blobs(64, seed=step)
        recorder.step(_descend(optimizer, F.cross_entropy(model(x), y)))


@_healthy
def a_judge_that_cannot_tell(opened: Open) -> None:
    """An adversary at log 2: its opponent is right."""
    maker, judge = nn.Linear(4, 2), nn.Sequential(nn.Linear(2, 24), nn.ReLU(), nn.Linear(24, 1))
    optimizers = [torch.optim.Adam(maker.parameters(), 5e-3), torch.optim.Adam(judge.parameters(), 5e-3)]
    recorder = opened(nn.ModuleList([maker, judge]), optimizers)
    labels = torch.cat((torch.ones(64, 1), torch.zeros(64, 1)))
    for _ in range(160):
        fake = maker(torch.randn(64, 4))
        both = torch.cat((torch.randn(64, 2), fake.detach()))
        loss = _descend(optimizers[1], F.binary_cross_entropy_with_logits(judge(both), labels))
        _descend(optimizers[0], F.binary_cross_entropy_with_logits(judge(fake), labels[:64]))
        recorder.step(loss)


@_healthy
def real_and_fake_one_after_another(opened: Open) -> None:
    """The same judge alone, shown noise it cannot tell apart, one kind in each call."""
    judge = nn.Sequential(nn.Linear(2, 24), nn.ReLU(), nn.Linear(24, 1))
    optimizer = torch.optim.Adam(judge.parameters(), 5e-3)
    recorder = opened(judge, optimizer)
    ones = torch.ones(64, 1)
    for _ in range(160):
        real = F.binary_cross_entropy_with_logits(judge(torch.randn(64, 2)), ones)
        fake = F.binary_cross_entropy_with_logits(judge(torch.randn(64, 2)), 0 * ones)
        recorder.step(_descend(optimizer, real + fake))


@_healthy
def values_of_a_copy(opened: Open) -> None:
    """Targets are made with a copy of the model; the values are right when the loss is the noise of the rewards."""
    model = nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 1))
    slow = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    recorder = opened(model, optimizer)
    for step in range(200):
        here, there, rewards = torch.randn(64, 4), torch.randn(64, 4), torch.randn(64, 1)
        wanted = rewards + 0.5 * slow(there).detach()
        recorder.step(_descend(optimizer, F.mse_loss(model(here), wanted)))
        if step % 10 == 0:
            slow.load_state_dict(model.state_dict())


@_healthy
def keys_in_a_queue(opened: Open) -> None:
    """Contrast with a queue: the label is 0 in each row, so that a constant would be right by definition."""
    model = nn.Linear(12, 8)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    for _ in range(160):
        x = torch.randn(64, 12)
        a, b = (F.normalize(model(x + 0.3 * torch.randn(64, 12)), dim=1) for _ in range(2))
        queue = F.normalize(torch.randn(32, 8), dim=1)
        scores = torch.cat(((a * b.detach()).sum(1, keepdim=True), a @ queue.T), 1) / 0.5
        recorder.step(_descend(optimizer, F.cross_entropy(scores, torch.zeros(64, dtype=torch.long))))


@_healthy
def two_tasks_of_which_one_is_noise(opened: Open) -> None:
    model = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 12))
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    recorder = opened(model, optimizer)
    for step in range(160):
        x, y = blobs(64, seed=step)
        outputs = model(x)
        loss = F.cross_entropy(outputs[:, :6], y) + F.cross_entropy(outputs[:, 6:], torch.randint(6, (64,)))
        recorder.step(_descend(optimizer, loss))
