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


@fault("loss-arguments", "binary_cross_entropy_with_logits gets outputs and targets in the other order", "first")
def outputs_where_targets_belong(opened: Open) -> None:
    _classify(opened, lambda out, y: F.binary_cross_entropy_with_logits(F.one_hot(y, 6).float(), out))


@fault("loss-arguments", "binary_cross_entropy gets outputs and targets in the other order", "first")
def probabilities_where_targets_belong(opened: Open) -> None:
    _classify(opened, lambda out, y: F.binary_cross_entropy(_smoothed(y), out.sigmoid()))


@fault("loss-arguments", "cross_entropy gets outputs and targets in the other order", "first")
def scores_where_classes_belong(opened: Open) -> None:
    _classify(opened, lambda out, y: F.cross_entropy(_smoothed(y), out))


@healthy
def targets_with_gradients_of_a_teacher_that_learns(opened: Open) -> None:
    """Both of two parts teach each other, with gradients on both sides."""
    _classify(
        opened,
        lambda out, y: F.cross_entropy(out, y) + 0.1 * F.binary_cross_entropy(out.sigmoid(), out.flip(1).sigmoid()),
    )


@healthy
def the_cross_entropy_of_a_student_under_its_teacher(opened: Open) -> None:
    """Probabilities that learn times logarithms that do not: the student says what the teacher finds likely."""

    def loss_of(out: Tensor, y: Tensor) -> Tensor:
        teacher = F.log_softmax(4 * F.one_hot(y, 6).float(), 1)
        likely = -(out.softmax(1) * teacher).sum(1).mean()
        return likely + 0.1 * (out.log_softmax(1).exp() * (out.log_softmax(1) - teacher)).sum(1).mean()

    _classify(opened, loss_of)


@healthy
def the_gradient_of_a_policy(opened: Open) -> None:
    """Advantages that are computed of logarithms without gradients weigh those that learn."""

    def loss_of(out: Tensor, y: Tensor) -> Tensor:
        policy = out.log_softmax(1)
        gained = F.one_hot(y, 6) - 0.1 * policy.detach()
        return -(policy.exp() * gained).sum(1).mean()

    _classify(opened, loss_of)


def _count(opened: Open, loss_of: Loss, rate: float = 3e-3) -> None:
    """Counts whose rates are exponentials of their inputs."""
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), rate)
    recorder, weights = opened(model, optimizer), torch.randn(8) / 4
    for _ in range(40):
        x = torch.randn(64, 8)
        loss = loss_of(model(x).squeeze(1), torch.poisson((x @ weights).exp()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@fault("loss-arguments", "poisson_nll_loss gets rates", "log_input=False")
def rates_where_their_logarithms_belong(opened: Open) -> None:
    _count(opened, lambda out, counts: F.poisson_nll_loss(F.softplus(out), counts))


@fault("loss-arguments", "poisson_nll_loss gets rates", "log_input=False")
def exponentials_of_exponentials(opened: Open) -> None:
    _count(opened, lambda out, counts: F.poisson_nll_loss(torch.exp(out), counts))


@fault("loss-arguments", "poisson_nll_loss with log_input=False gets scores", "log_input=True")
def scores_where_rates_belong(opened: Open) -> None:
    _count(opened, lambda out, counts: F.poisson_nll_loss(out, counts, log_input=False))


@healthy
def scores_of_counts(opened: Open) -> None:
    _count(opened, lambda out, counts: F.poisson_nll_loss(out, counts))


@healthy
def rates_of_counts(opened: Open) -> None:
    _count(opened, lambda out, counts: F.poisson_nll_loss(F.softplus(out), counts, log_input=False))


@healthy
def rates_of_counts_by_hand(opened: Open) -> None:
    def loss_of(out: Tensor, counts: Tensor) -> Tensor:
        rate = out.exp()
        return (rate - counts * torch.log(rate + 1e-8)).mean()

    _count(opened, loss_of)


@healthy
def counts_weighed_by_positive_factors(opened: Open) -> None:
    """A factor that learns, of the logarithm of the rate."""
    _count(opened, lambda out, counts: (F.softplus(out).log().exp() - counts * F.softplus(out).log()).mean())


def _rank(opened: Open, low: float, loss_of: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    """Which of two samples has the larger class; `low` is the target where it is the second one."""
    model = network(classes=1)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    for x, y in batches(40):
        other = torch.randperm(len(x))
        loss = loss_of(model(x)[:, 0], model(x[other])[:, 0], torch.where(y >= y[other], 1.0, low))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@fault("loss-arguments", "margin_ranking_loss gets targets of 0", "2 * target - 1")
def ranks_with_targets_of_zero(opened: Open) -> None:
    _rank(opened, 0.0, lambda a, b, target: F.margin_ranking_loss(a, b, target, margin=0.5))


@fault("loss-arguments", "margin_ranking_loss gets targets of 0", "2 * target - 1")
def ranks_with_targets_of_zero_by_hand(opened: Open) -> None:
    _rank(opened, 0.0, lambda a, b, target: F.relu(-target * (a - b) + 0.5).mean())


@healthy
def ranks(opened: Open) -> None:
    _rank(opened, -1.0, lambda a, b, target: F.margin_ranking_loss(a, b, target, margin=0.5))


@healthy
def ranks_of_some_pairs(opened: Open) -> None:
    """A mask leaves out the pairs that are in the other order."""
    _rank(opened, 0.0, lambda a, b, target: (target * F.relu(0.5 - (a - b))).sum() / target.sum())


@healthy
def ranks_by_probabilities(opened: Open) -> None:
    _rank(opened, 0.0, lambda a, b, target: F.binary_cross_entropy_with_logits(a - b, target))


def _transcribe(opened: Open, targets_of: Callable[[], tuple[Tensor, Tensor]], *, more: bool = False) -> None:
    """Sequences of 12 places, by CTC; with `more` Inf counts as 0."""
    model = nn.Linear(16, 5)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    for _ in range(40):
        targets, lengths = targets_of()
        out = model(torch.randn(12, 8, 16)).log_softmax(2)
        loss = F.ctc_loss(out, targets, torch.full((8,), 12), lengths, zero_infinity=more)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@fault("loss-arguments", "ctc_loss gets targets that hold its blank", "count real classes from 1")
def targets_with_the_class_of_the_blank(opened: Open) -> None:
    _transcribe(opened, lambda: (torch.randint(5, (8, 4)), torch.full((8,), 4)))


@fault("loss-arguments", "ctc_loss gets targets longer than their inputs", "zero_infinity=True")
def targets_longer_than_their_inputs(opened: Open) -> None:
    _transcribe(opened, lambda: (torch.randint(1, 5, (8, 14)), torch.randint(9, 15, (8,))))


@healthy
def targets_filled_up_with_the_blank(opened: Open) -> None:
    def targets() -> tuple[Tensor, Tensor]:
        lengths = torch.randint(2, 5, (8,))
        return torch.where(torch.arange(4) < lengths[:, None], torch.randint(1, 5, (8, 4)), 0), lengths

    _transcribe(opened, targets)


@healthy
def targets_behind_one_another(opened: Open) -> None:
    _transcribe(opened, lambda: (torch.randint(1, 5, (32,)), torch.full((8,), 4)))


@healthy
def targets_that_are_left_out_where_they_are_too_long(opened: Open) -> None:
    _transcribe(opened, lambda: (torch.randint(1, 5, (8, 14)), torch.randint(3, 15, (8,))), more=True)


@fault("loss-arguments", "cross_entropy gets the results of a sigmoid", "what goes into the sigmoid")
def a_sigmoid_before_the_cross_entropy(opened: Open) -> None:
    _classify(opened, lambda out, y: F.cross_entropy(out.sigmoid(), y))


@fault("loss-arguments", "cross_entropy gets the results of a tanh", "what goes into the tanh")
def a_tanh_at_the_end_of_the_model(opened: Open) -> None:
    _classify(opened, F.cross_entropy, nn.Sequential(*network(), nn.Tanh()))


@fault("loss-arguments", "cross_entropy gets the results of a ReLU", "Leave out the ReLU")
def a_relu_at_the_end_of_the_model(opened: Open) -> None:
    model = nn.Sequential(*network(), nn.ReLU())
    with torch.no_grad():
        model[-2].bias.sub_(0.15)
    _classify(opened, F.cross_entropy, model)


@healthy
def scores_within_soft_bounds(opened: Open) -> None:
    """A tanh times a factor keeps scores from growing."""
    _classify(opened, lambda out, y: F.cross_entropy(20 * torch.tanh(out / 20), y))


@healthy
def cosines_with_a_temperature(opened: Open) -> None:
    _classify(opened, lambda out, y: F.cross_entropy(F.normalize(torch.tanh(out), dim=1) / 0.1, y))


@healthy
def a_sigmoid_for_each_class(opened: Open) -> None:
    _classify(opened, lambda out, y: F.binary_cross_entropy(out.sigmoid(), F.one_hot(y, 6).float()))


@healthy
def a_relu_before_the_last_layer(opened: Open) -> None:
    _classify(opened, F.cross_entropy, nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 6)))
