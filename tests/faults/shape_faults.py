"""Losses written by hand that broadcast outputs against targets, and loops that compare all with all on purpose."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.faults.class_faults import _fault as fault
from tests.faults.class_faults import _healthy as healthy
from tests.faults.published_faults import Open

SAMPLES, FEATURES = 48, 6
Loss = Callable[[Tensor, Tensor], Tensor]
_ALL_PAIRS = "compares each output with each target", "outputs.squeeze(1), or targets.unsqueeze(1)"
TEACHER = torch.randn(FEATURES, generator=torch.Generator().manual_seed(3)) / FEATURES**0.5


def _regress(opened: Open, loss_of: Loss, outputs: int = 1, steps: int = 40, *, column: bool = False) -> None:
    """Numbers from features; targets are [B], or [B, 1] as a column."""
    model = nn.Sequential(nn.Linear(FEATURES, 32), nn.Tanh(), nn.Linear(32, outputs))
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    recorder = opened(model, optimizer)
    for _ in range(steps):
        x = torch.randn(SAMPLES, FEATURES)
        y = 1 + x @ TEACHER + 0.3 * torch.randn(SAMPLES)
        loss = loss_of(model(x), y[:, None] if column else y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


def _pinball(out: Tensor, y: Tensor) -> Tensor:
    error = y - out
    return torch.maximum(0.8 * error, -0.2 * error).mean()


def _pinball_by_comparison(out: Tensor, y: Tensor) -> Tensor:
    error = y - out
    return ((0.8 - (error.detach() < 0).float()) * error).sum(1).mean()


def _huber(out: Tensor, y: Tensor) -> Tensor:
    error = (out - y).abs()
    return torch.where(error < 1, 0.5 * error**2, error - 0.5).mean()


def _likelihood(out: Tensor, y: Tensor) -> Tensor:
    mean, spread = out[:, :1], F.softplus(out[:, 1:]) + 0.1
    return ((y - mean) ** 2 / (2 * spread**2) + spread.log()).mean()


def _cross_entropy(out: Tensor, y: Tensor) -> Tensor:
    p, label = out.sigmoid(), (y > 1).float()
    return -(label * (p + 1e-6).log() + (1 - label) * (1 - p + 1e-6).log()).mean()


def _policy(out: Tensor, y: Tensor) -> Tensor:
    """Log-probabilities of actions, times advantages."""
    policy = torch.distributions.Normal(out, 0.5)
    action = policy.sample()
    with torch.no_grad():
        advantage = -((action.flatten() - y.flatten()) ** 2).reshape(y.shape)
        advantage = (advantage - advantage.mean()) / advantage.std()
    return -(policy.log_prob(action) * advantage).mean()


def _norm(out: Tensor, y: Tensor) -> Tensor:
    return (out - y).norm() / len(y)


def _weighted(out: Tensor, y: Tensor) -> Tensor:
    weight = 1 + y.abs()
    return (weight * (out - y).square()).sum() / weight.sum()


_OF_ONE: dict[str, Loss] = {
    "pinball": _pinball, "pinball_by_comparison": _pinball_by_comparison, "huber": _huber,
    "cross_entropy": _cross_entropy, "policy": _policy, "norm": _norm, "weighted": _weighted,
}  # fmt: skip


def _keep(name: str, loss_of: Loss, outputs: int) -> None:
    def of_vectors(opened: Open) -> None:
        _regress(opened, loss_of, outputs)

    def of_columns(opened: Open) -> None:
        _regress(opened, loss_of, outputs, column=True)

    of_vectors.__name__, of_columns.__name__ = f"{name}_of_a_column_and_a_vector", f"{name}_of_columns"
    fault("broadcast-loss", *_ALL_PAIRS)(of_vectors)
    healthy(of_columns)


for _name, _loss in _OF_ONE.items():
    _keep(_name, _loss, 1)
_keep("likelihood", _likelihood, 2)


def _paint(opened: Open, loss_of: Loss) -> None:
    """Masks of images [B, H, W]; the network has one channel."""
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1), nn.Sigmoid())
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    recorder = opened(model, optimizer)
    for _ in range(12):
        x = F.avg_pool2d(torch.randn(10, 1, 14, 14), 3, 1)
        loss = loss_of(model(x), (x[:, 0] > 0).float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


def _dice(out: Tensor, y: Tensor) -> Tensor:
    return 1 - 2 * (out * y).sum() / (out.sum() + y.sum())


@fault("broadcast-loss", *_ALL_PAIRS)
def dice_of_a_channel_and_masks(opened: Open) -> None:
    _paint(opened, _dice)


@fault("broadcast-loss", *_ALL_PAIRS)
def squares_of_a_channel_and_masks(opened: Open) -> None:
    _paint(opened, lambda out, y: ((out - y) ** 2).sum((2, 3)).mean())


@healthy
def dice_of_masks(opened: Open) -> None:
    _paint(opened, lambda out, y: _dice(out[:, 0], y))


@healthy
def as_many_quantiles_as_samples(opened: Open) -> None:
    levels = torch.linspace(0.02, 0.98, SAMPLES)

    def loss_of(out: Tensor, y: Tensor) -> Tensor:
        error = y - out
        return torch.maximum(levels * error, (levels - 1) * error).mean()

    _regress(opened, loss_of, SAMPLES, column=True)


@healthy
def quantiles_against_returns_of_quantiles(opened: Open) -> None:
    """As distributional reinforcement learning has it: each quantile with each sample of the target."""
    levels = torch.linspace(0.1, 0.9, 5)

    def loss_of(out: Tensor, y: Tensor) -> Tensor:
        error = (y[:, None] + 0.3 * torch.randn(5))[:, None, :] - out[:, :, None]
        weight = (levels[:, None] - (error.detach() < 0).float()).abs()
        return (weight * F.huber_loss(error, torch.zeros_like(error), reduction="none")).sum(1).mean()

    _regress(opened, loss_of, 5)


@healthy
def difference_of_means(opened: Open) -> None:
    """The mean over all pairs of a difference is that over the samples."""
    _regress(opened, lambda out, y: (out - y).mean() ** 2 + (out[:, 0] - y).square().mean())


@healthy
def all_pairs_that_are_masked(opened: Open) -> None:
    """Outputs shall not be above the targets of larger ones: a table of all pairs, of which a mask takes some."""

    def loss_of(out: Tensor, y: Tensor) -> Tensor:
        above = F.relu(out - y)
        return (out[:, 0] - y).square().mean() + 0.1 * (above * (y[:, None] < y - 0.5)).mean()

    _regress(opened, loss_of)


@healthy
def outputs_and_their_nearest_targets(opened: Open) -> None:
    """A set of numbers that shall lie near another one (Chamfer distance)."""

    def loss_of(out: Tensor, y: Tensor) -> Tensor:
        distance = (out - y).square()
        return distance.min(1).values.mean() + distance.min(0).values.mean() + 1e-3 * distance.mean()

    _regress(opened, loss_of)


@healthy
def ranks_of_scores(opened: Open) -> None:
    """RankNet: all pairs of scores, learned ones with learned ones."""

    def loss_of(out: Tensor, y: Tensor) -> Tensor:
        differs = out - out.T
        return (F.softplus(-differs) * (y[:, None] > y)).mean()

    _regress(opened, loss_of)


@healthy
def contrasts_with_all_others(opened: Open) -> None:
    def loss_of(out: Tensor, y: Tensor) -> Tensor:
        own = F.normalize(out, dim=1)
        alike = (y > 1)[:, None] == (y > 1)[None]
        chances = (own @ own.T / 0.2).log_softmax(1)
        return -(chances * alike).sum(1).div(alike.sum(1)).mean()

    _regress(opened, loss_of, 8)


@healthy
def distances_to_prototypes_of_classes(opened: Open) -> None:
    """As many prototypes as samples, by views."""
    prototypes = torch.randn(SAMPLES, 8)

    def loss_of(out: Tensor, y: Tensor) -> Tensor:
        distance = (out.reshape(SAMPLES, 1, 8) - prototypes).square().sum(2)
        return F.cross_entropy(-distance, (y * 3).long().clamp(0, SAMPLES - 1))

    _regress(opened, loss_of, 8)


class _Bumps(nn.Module):
    """Radial basis functions, as many as samples; their centres meet inputs [B, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.centres, self.weights = nn.Parameter(torch.randn(SAMPLES)), nn.Parameter(0.1 * torch.randn(SAMPLES))

    def forward(self, x: Tensor) -> Tensor:
        return (self.weights * torch.exp(-((x - self.centres) ** 2))).sum(1)


@healthy
def as_many_basis_functions_as_samples(opened: Open) -> None:
    model = _Bumps()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    recorder = opened(model, optimizer)
    for _ in range(40):
        x = torch.rand(SAMPLES, 1) * 4 - 2
        out = model(x)
        loss = (out - x[:, 0].sin()).square().mean() + 1e-3 * out.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@healthy
def curves_at_as_many_times_as_samples(opened: Open) -> None:
    """A rate for each sample, and its decay at times; a penalty of all points of the curves."""
    times = torch.linspace(0.1, 2, SAMPLES)

    def loss_of(out: Tensor, y: Tensor) -> Tensor:
        curves = torch.exp(-F.softplus(out) * times)
        wanted = torch.exp(-F.softplus(y)[:, None] * times)
        return (curves - wanted).square().mean() + 1e-3 * curves.square().mean()

    _regress(opened, loss_of)


@healthy
def samples_of_an_energy_score(opened: Open) -> None:
    def loss_of(out: Tensor, y: Tensor) -> Tensor:
        spread = (out[:, :, None] - out[:, None, :]).abs().mean()
        return (out - y[:, None]).abs().mean() - 0.5 * spread

    _regress(opened, loss_of, SAMPLES)
