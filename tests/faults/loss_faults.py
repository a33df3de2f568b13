"""Losses that are given other numbers than they take, learned scales without a bound; and sound loops beside them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.faults.class_faults import _fault as fault
from tests.faults.class_faults import _healthy as healthy
from tests.faults.published_faults import Open, batches, network

Loss = Callable[[Tensor, Tensor], Tensor]


def _classify(opened: Open, loss_of: Loss, model: nn.Module | None = None, steps: int = 40) -> None:
    model = model or network()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    for x, y in batches(steps):
        loss = loss_of(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@fault("loss-arguments", "nll_loss gets probabilities", "log_softmax")
def nll_of_probabilities(opened: Open) -> None:
    _classify(opened, lambda out, y: F.nll_loss(out.softmax(1), y))


@fault("loss-arguments", "nll_loss gets scores", "cross_entropy")
def nll_of_scores(opened: Open) -> None:
    _classify(opened, lambda out, y: F.nll_loss(out, y))


@healthy
def nll_of_log_probabilities(opened: Open) -> None:
    _classify(opened, lambda out, y: F.nll_loss(F.log_softmax(out, 1), y))


@healthy
def nll_of_the_logarithm_of_a_softmax(opened: Open) -> None:
    _classify(opened, lambda out, y: F.nll_loss((out.softmax(1) + 1e-9).log(), y))


@healthy
def nll_of_scores_less_their_logsumexp(opened: Open) -> None:
    _classify(opened, lambda out, y: F.nll_loss(out - out.logsumexp(1, keepdim=True), y))


def _smoothed(y: Tensor) -> Tensor:
    """What a teacher says: mostly the class."""
    return 0.9 * F.one_hot(y, 6).float() + 0.1 / 6


@fault("loss-arguments", "kl_div gets probabilities", "log_softmax")
def divergence_of_probabilities(opened: Open) -> None:
    _classify(opened, lambda out, y: F.kl_div(out.softmax(1), _smoothed(y), reduction="batchmean"))


@fault("loss-arguments", "kl_div gets scores", "log_softmax")
def divergence_of_scores(opened: Open) -> None:
    _classify(opened, lambda out, y: F.kl_div(out, _smoothed(y), reduction="batchmean"))


@fault("loss-arguments", "targets of kl_div are below zero", "log_target=True")
def divergence_from_logarithms(opened: Open) -> None:
    _classify(opened, lambda out, y: F.kl_div(F.log_softmax(out, 1), _smoothed(y).log(), reduction="batchmean"))


@healthy
def divergence_of_log_probabilities(opened: Open) -> None:
    _classify(opened, lambda out, y: F.kl_div(F.log_softmax(out, 1), _smoothed(y), reduction="batchmean"))


@healthy
def divergence_from_logarithms_that_are_told(opened: Open) -> None:
    target = _smoothed(torch.arange(6)).log()
    _classify(opened, lambda out, y: F.kl_div(F.log_softmax(out, 1), target[y], reduction="batchmean", log_target=True))


@healthy
def divergence_summed_over_classes(opened: Open) -> None:
    """The mean over samples and classes is a sixth of it, and the rate suits."""
    _classify(opened, lambda out, y: F.kl_div(F.log_softmax(out, 1), _smoothed(y), reduction="sum") / 64)


@fault("loss-arguments", "a clamp cuts off", "binary_cross_entropy_with_logits")
def cross_entropy_of_clamped_scores(opened: Open) -> None:
    _classify(opened, lambda out, y: F.binary_cross_entropy(out.clamp(1e-6, 1 - 1e-6), F.one_hot(y, 6).float()))


@healthy
def cross_entropy_of_clamped_probabilities(opened: Open) -> None:
    _classify(
        opened, lambda out, y: F.binary_cross_entropy(out.sigmoid().clamp(1e-6, 1 - 1e-6), F.one_hot(y, 6).float())
    )


def _pairs(opened: Open, low: float, loss_of: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    """Embeddings of pairs of samples, alike or not; `low` is the target of those that are not."""
    model = network(classes=8)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    for x, y in batches(40):
        other = torch.randperm(len(x))
        target = torch.where(y == y[other], 1.0, low)
        loss = loss_of(model(x), model(x[other]), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@fault("loss-arguments", "targets of 0 in place of -1", "2 * target - 1")
def cosines_of_pairs_with_targets_of_zero(opened: Open) -> None:
    _pairs(opened, 0.0, F.cosine_embedding_loss)


@healthy
def cosines_of_pairs(opened: Open) -> None:
    _pairs(opened, -1.0, F.cosine_embedding_loss)


@fault("loss-arguments", "soft_margin_loss gets targets of 0", "2 * target - 1")
def soft_margins_with_targets_of_zero(opened: Open) -> None:
    _pairs(opened, 0.0, lambda a, b, target: F.soft_margin_loss((a * b).sum(1), target))


@healthy
def soft_margins(opened: Open) -> None:
    _pairs(opened, -1.0, lambda a, b, target: F.soft_margin_loss((a * b).sum(1), target))


def _spell(opened: Open, scores: Callable[[Tensor], Tensor]) -> None:
    """Tell sequences by CTC."""
    model = nn.Linear(16, 5)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    lengths, short = torch.full((8,), 12), torch.full((8,), 3)
    for _ in range(40):
        out = scores(model(torch.randn(12, 8, 16)))
        loss = F.ctc_loss(out, torch.randint(1, 5, (8, 3)), lengths, short)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@fault("loss-arguments", "ctc_loss gets scores", "log_softmax")
def ctc_of_scores(opened: Open) -> None:
    _spell(opened, lambda out: out + 1)


@healthy
def ctc_of_log_probabilities(opened: Open) -> None:
    _spell(opened, lambda out: out.log_softmax(-1))


def _regress(opened: Open, loss_of: Loss, targets: Callable[[Tensor], Tensor], *last: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1), *last)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    for _ in range(64):
        x = torch.randn(32, 16)
        loss = loss_of(model(x), targets(x[:, :4].sum(1, keepdim=True) / 2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@fault("targets-out-of-scale", "around 300", "Take the mean off")
def absolute_errors_of_targets_far_away(opened: Open) -> None:
    _regress(opened, F.l1_loss, lambda y: 300 + 40 * y)


@fault("targets-out-of-scale", "around 300", "Take the mean off")
def huber_losses_of_targets_far_away(opened: Open) -> None:
    _regress(opened, F.huber_loss, lambda y: 300 + 40 * y)


@fault("targets-out-of-range", "sigmoid", "Leave the last function out")
def smooth_errors_of_numbers_of_any_size_from_a_sigmoid(opened: Open) -> None:
    _regress(opened, F.smooth_l1_loss, lambda y: 3 * y, nn.Sigmoid())


@healthy
def absolute_errors_of_targets_near_one(opened: Open) -> None:
    _regress(opened, F.l1_loss, lambda y: 1 + y)


@healthy
def narrow_smooth_errors_of_shares_from_a_sigmoid(opened: Open) -> None:
    _regress(opened, lambda out, y: F.smooth_l1_loss(out, y, beta=0.1), torch.sigmoid, nn.Sigmoid())


class _Coder(nn.Module):
    """A variational autoencoder of numbers of any size."""

    def __init__(self, bound: float) -> None:
        super().__init__()
        self.encoder, self.heads, self.decoder = nn.Linear(24, 32), nn.Linear(32, 8), nn.Linear(4, 24)
        self.bound = bound

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.heads(F.relu(self.encoder(x))).chunk(2, -1)
        log_variance = log_variance.clamp(-self.bound, self.bound) if self.bound else log_variance
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        return self.decoder(z), mean, log_variance


def _encode(opened: Open, bound: float, jump: float = 500.0) -> None:
    """One batch has another unit."""
    model = _Coder(bound)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    recorder = opened(model, optimizer)
    for step, (x, _) in enumerate(batches(40)):
        x = x * jump if step == 30 else x
        out, mean, log_variance = model(x)
        penalty = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(-1).mean()
        loss = (out - x).square().mean() + 1e-3 * penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@fault("exponential-overflow", "Exp of heads overflows FP32", "clamp it")
def a_log_variance_without_a_bound(opened: Open) -> None:
    _encode(opened, 0.0)


@healthy
def a_log_variance_between_bounds(opened: Open) -> None:
    _encode(opened, 8.0, 1.0)


@healthy
def a_log_variance_without_a_bound_of_sound_data(opened: Open) -> None:
    _encode(opened, 0.0, 1.0)


class _Spread(nn.Module):
    """Mean and logarithm of the variance, or of its inverse."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.mean, self.scale = nn.Linear(8, 32), nn.Linear(32, 1), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = F.relu(self.body(x))
        return self.mean(h), self.scale(h)


def _with_errors(opened: Open, rate: float) -> None:
    """Heteroscedastic regression; targets are not scaled."""
    model = _Spread()
    optimizer = torch.optim.SGD(model.parameters(), rate)
    recorder = opened(model, optimizer)
    for _ in range(60):
        x = torch.randn(64, 8)
        y = 30 * x[:, :1] + 5 * torch.randn(64, 1)
        mean, log_variance = model(x)
        loss = (0.5 * (torch.exp(-log_variance) * (y - mean).square() + log_variance)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@healthy
def errors_that_are_learnt(opened: Open) -> None:
    _with_errors(opened, 1e-4)


class _Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Sequential(nn.Linear(4, 128), nn.Tanh(), nn.Linear(128, 2))
        self.log_std = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.mean(x)
        return out


def _act(opened: Open, bonus: float, steps: int = 100) -> None:
    """A bonus on the entropy lets the standard deviation grow without end."""
    model = _Policy()
    optimizer = torch.optim.SGD([{"params": [model.log_std], "lr": 1.0}, {"params": model.mean.parameters()}], 1e-3)
    recorder = opened(model, optimizer)
    for _ in range(steps):
        state = torch.randn(64, 4)
        mean = model(state)
        spread = torch.distributions.Normal(mean, model.log_std.exp().expand_as(mean), validate_args=False)
        action = spread.sample().clamp(-3, 3)
        gain = -(action - state[:, :2]).square().sum(1)
        loss = -(spread.log_prob(action).sum(1) * (gain - gain.mean())).mean() * 1e-3 - bonus * model.log_std.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
        if not loss.isfinite():
            break


@fault("exponential-overflow", "Exp of log_std overflows FP32", "clamp it")
def a_policy_whose_log_std_grows(opened: Open) -> None:
    _act(opened, 1.0)


@healthy
def a_policy_with_a_small_bonus(opened: Open) -> None:
    _act(opened, 1e-3)
