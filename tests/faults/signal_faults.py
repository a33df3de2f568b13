"""Dropouts that leave nothing, scores that cannot differ, samples without a gradient, and sound loops like them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, Normal, kl_divergence
from torch.nn import functional as F

from tests.faults.class_faults import _fault as fault
from tests.faults.class_faults import _healthy as healthy
from tests.faults.published_faults import Open, batches, blobs

_FEATURES = 24


def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


# Dropout.


def _classify(opened: Open, model: nn.Module, steps: int = 150, noise: float = 0.0) -> None:
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    for x, y in batches(steps):
        labels = torch.where(torch.rand(len(y)) < noise, torch.randint(6, (len(y),)), y)
        recorder.step(_step(optimizer, F.cross_entropy(model(x), labels)))


def _dropped(p: float, width: int = 48) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(_FEATURES, width), nn.ReLU(), nn.Dropout(p), nn.Linear(width, width), nn.ReLU(), nn.Dropout(p),
        nn.Linear(width, 16), nn.ReLU(), nn.Dropout(p), nn.Linear(16, 6),
    )  # fmt: skip


@fault("heavy-dropout", "sets 95 % of the numbers to zero in 3 places", "not the share that is kept")
def the_share_to_keep_as_that_to_drop(opened: Open) -> None:
    _classify(opened, _dropped(0.95))


class _Functional(nn.Module):
    """Dropouts are calls of functions, and masks of a loop's own."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p, self.first, self.second, self.last = p, nn.Linear(_FEATURES, 48), nn.Linear(48, 24), nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(self.first(x).relu(), self.p)
        kept = torch.bernoulli(torch.empty(len(x), 24), 1 - self.p) / (1 - self.p)
        return F.dropout(self.last(self.second(x).relu() * kept), self.p)


@fault("heavy-dropout", "sets 90 % of the numbers to zero in 3 places", "not the share that is kept")
def functional_dropouts_of_nine_tenths(opened: Open) -> None:
    _classify(opened, _Functional(0.9))


@healthy
def a_tenth_is_dropped(opened: Open) -> None:
    _classify(opened, _dropped(0.1))


@healthy
def half_is_dropped_of_labels_that_are_noise(opened: Open) -> None:
    """Seven tenths of the labels are drawn by lot: little can be learnt."""
    _classify(opened, _dropped(0.5), noise=0.7)


@healthy
def wide_layers_with_heavy_dropout(opened: Open) -> None:
    _classify(opened, _dropped(0.8, width=512), steps=200)


@healthy
def much_of_the_data_is_masked(opened: Open) -> None:
    """Inputs are masked before a layer, and once more before another one of the same data."""
    model = nn.Sequential(nn.Dropout(0.9), nn.Dropout(0.8), nn.Linear(_FEATURES, 48), nn.ReLU(), nn.Linear(48, 6))
    _classify(opened, model, noise=0.7)


class _DropsWeights(nn.Module):
    """Drops weights, by views of them, as DropConnect does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(_FEATURES, 48), nn.Linear(48, 6)

    def forward(self, x: Tensor) -> Tensor:
        hidden = (x @ F.dropout(self.first.weight.T, 0.8) + self.first.bias).relu()
        out: Tensor = hidden @ F.dropout(self.last.weight.T, 0.8) + self.last.bias
        return out


@healthy
def four_of_five_weights_are_dropped(opened: Open) -> None:
    _classify(opened, _DropsWeights(), noise=0.7)


# Scores of cosines.


class _Encoder(nn.Module):
    def __init__(self, *, normed: bool = True) -> None:
        super().__init__()
        self.net, self.normed = nn.Sequential(nn.Linear(_FEATURES, 48), nn.ReLU(), nn.Linear(48, 16)), normed
        self.log_scale = nn.Parameter(torch.tensor(-3.0))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return F.normalize(out, dim=1) if self.normed else out


def _contrast(opened: Open, scores: Callable[[_Encoder, Tensor, Tensor], Tensor], *, steps: int = 40,
              normed: bool = True, zeros: bool = False) -> None:  # fmt: skip
    model = _Encoder(normed=normed)
    if zeros:
        nn.init.zeros_(model.net[2].weight)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    for step in range(steps):
        x = blobs(64, seed=step)[0]
        one, other = (model(x + 0.3 * torch.randn_like(x)) for _ in range(2))
        recorder.step(_step(optimizer, F.cross_entropy(scores(model, one, other), torch.arange(64))))


@fault("bounded-scores", "cannot fall below 4.0", "by the temperature")
def cosines_times_the_temperature(opened: Open) -> None:
    _contrast(opened, lambda model, one, other: 0.07 * (one @ other.T))


@fault("bounded-scores", "cannot fall below 4.0", "by the temperature")
def cosines_times_a_tensor_in_bf16(opened: Open) -> None:
    """The temperature is a tensor that does not learn, and the rows are of the second operand."""
    fixed = torch.tensor(0.05)

    def scores(model: _Encoder, one: Tensor, other: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return (fixed * (other @ one.T)).T

    _contrast(opened, scores)


class _Cosines(nn.Module):
    """A classifier by cosines between features and weights."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.body, self.classes, self.scale = _Encoder(), nn.Parameter(torch.randn(6, 16)), scale

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * F.linear(self.body(x), F.normalize(self.classes, dim=1))


@fault("bounded-scores", "cannot fall below 1.7", "by the temperature")
def a_classifier_by_cosines_that_are_scaled_down(opened: Open) -> None:
    _classify(opened, _Cosines(0.03), steps=40)


@healthy
def a_classifier_by_cosines_that_are_scaled_up(opened: Open) -> None:
    _classify(opened, _Cosines(16.0), steps=40)


@healthy
def cosines_over_the_temperature(opened: Open) -> None:
    _contrast(opened, lambda model, one, other: one @ other.T / 0.07)


@healthy
def cosines_without_a_temperature(opened: Open) -> None:
    _contrast(opened, lambda model, one, other: one @ other.T)


@healthy
def a_temperature_that_is_learnt_from_a_small_scale(opened: Open) -> None:
    _contrast(opened, lambda model, one, other: model.log_scale.exp() * (one @ other.T))


@healthy
def products_that_begin_next_to_zero(opened: Open) -> None:
    """Vectors that are all alike at first, and short."""
    _contrast(opened, lambda model, one, other: 0.01 * (one @ other.T), normed=False, zeros=True)


@healthy
def small_cosines_beside_a_margin_that_grows(opened: Open) -> None:
    """The scale is raised from step to step, as in curricula of temperatures."""
    scale = [0.05]

    def scores(model: _Encoder, one: Tensor, other: Tensor) -> Tensor:
        scale[0] *= 1.2
        return min(scale[0], 10.0) * (one @ other.T)

    _contrast(opened, scores)


# Samples of a posterior.


class _Coder(nn.Module):
    """A variational autoencoder; `drawn` says how a code is drawn."""

    def __init__(self, drawn: Callable[[Distribution], Tensor], *, both: bool = False) -> None:
        super().__init__()
        self.drawn, self.both = drawn, both
        self.body = nn.Sequential(nn.Linear(_FEATURES, 48), nn.ReLU())
        self.mean, self.scale = nn.Linear(48, 8), nn.Linear(48, 8)
        self.decoder = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, _FEATURES))
        self.head = nn.Linear(8, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Normal, Tensor]:
        hidden = self.body(x)
        q = Normal(self.mean(hidden), F.softplus(self.scale(hidden)) + 1e-3)
        code = self.drawn(q)
        return self.decoder(code), code, q, self.head(q.loc) if self.both else q.loc


def _divergence(q: Normal) -> Tensor:
    return kl_divergence(q, Normal(0.0, 1.0)).sum(1)


def _code(opened: Open, model: _Coder, loss_of: Callable[..., Tensor], steps: int = 40) -> None:
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    for x, y in batches(steps):
        recorder.step(_step(optimizer, loss_of(x, y, *model(x))))


def _bound(x: Tensor, y: Tensor, out: Tensor, code: Tensor, q: Normal, more: Tensor) -> Tensor:
    return ((out - x).square().sum(1) + _divergence(q)).mean()


def _sampled(q: Distribution) -> Tensor:
    return q.sample()


@fault("cut-sample", "A sample without a gradient", "rsample()")
def a_code_by_sample(opened: Open) -> None:
    _code(opened, _Coder(_sampled), _bound)


@fault("cut-sample", "A sample without a gradient", "rsample()")
def a_code_of_independent_normals_and_terms_that_are_scalars(opened: Open) -> None:
    """The loss of torch, and the divergence by hand with a weight."""

    def loss_of(x: Tensor, y: Tensor, out: Tensor, code: Tensor, q: Normal, more: Tensor) -> Tensor:
        divergence = -0.5 * (1 + 2 * q.scale.log() - q.loc.pow(2) - q.scale.pow(2)).mean()
        return 0.1 * divergence + F.mse_loss(out, x)

    _code(opened, _Coder(lambda q: Independent(q, 1).sample()), loss_of)


@fault("cut-sample", "A sample without a gradient", "rsample()")
def a_code_by_torch_normal(opened: Open) -> None:
    """torch.normal has a derivative, which is zero; the prior has a tensor of zeros."""

    def loss_of(x: Tensor, y: Tensor, out: Tensor, code: Tensor, q: Normal, more: Tensor) -> Tensor:
        prior = Normal(torch.zeros_like(q.loc), torch.ones_like(q.scale))
        return -Normal(out, 1.0).log_prob(x).sum(1).mean() + kl_divergence(q, prior).sum(1).mean()

    _code(opened, _Coder(lambda q: torch.normal(q.mean, q.stddev)), loss_of)


@healthy
def a_code_by_rsample(opened: Open) -> None:
    _code(opened, _Coder(lambda q: q.rsample()), _bound)


@healthy
def a_code_by_hand(opened: Open) -> None:
    _code(opened, _Coder(lambda q: q.mean + q.stddev * torch.randn_like(q.mean)), _bound)


@healthy
def a_code_with_a_straight_through_gradient(opened: Open) -> None:
    def drawn(q: Distribution) -> Tensor:
        return q.sample() + q.mean - q.mean.detach()

    _code(opened, _Coder(drawn), _bound)


@healthy
def a_code_with_the_gradient_of_its_probability(opened: Open) -> None:
    """Neural variational inference: the error is the reward of the code."""

    def loss_of(x: Tensor, y: Tensor, out: Tensor, code: Tensor, q: Normal, more: Tensor) -> Tensor:
        error = (out - x).square().sum(1)
        reward = error.detach() - error.detach().mean()
        return (error + 0.05 * reward * q.log_prob(code).sum(1) + _divergence(q)).mean()

    _code(opened, _Coder(_sampled), loss_of)


@healthy
def a_decoder_that_watches_codes_that_learn_classes(opened: Open) -> None:
    """The pictures are for people: codes learn from the classes of their means."""

    def loss_of(x: Tensor, y: Tensor, out: Tensor, code: Tensor, q: Normal, more: Tensor) -> Tensor:
        return F.cross_entropy(more, y) + 0.01 * _divergence(q).mean() + F.mse_loss(out, x)

    _code(opened, _Coder(_sampled, both=True), loss_of)


@healthy
def means_that_learn_targets_beside_a_decoder_of_samples(opened: Open) -> None:
    """Means are compared with numbers of the data before a sample is drawn of them."""

    class _Guided(_Coder):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Normal, Tensor]:
            hidden = self.body(x)
            mean = self.mean(hidden)
            error = F.mse_loss(mean, x[:, :8])
            q = Normal(mean, F.softplus(self.scale(hidden)) + 1e-3)
            code = q.sample()
            return self.decoder(code), code, q, error

    _code(opened, _Guided(_sampled), lambda x, y, out, code, q, error: _bound(x, y, out, code, q, error) + error)


class _Player(nn.Module):
    """A policy and a critic of states and actions."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(_FEATURES, 32), nn.Tanh(), nn.Linear(32, 3))
        self.critic = nn.Sequential(nn.Linear(_FEATURES + 3, 32), nn.Tanh(), nn.Linear(32, 1))
        self.wanted = nn.Linear(_FEATURES, 3).requires_grad_(False)

    def forward(self, x: Tensor) -> Normal:
        return Normal(self.policy(x), 0.5)

    def value(self, x: Tensor, action: Tensor) -> Tensor:
        out: Tensor = self.critic(torch.cat((x, action), 1))
        return out[:, 0]


def _play(opened: Open, loss_of: Callable[[_Player, Tensor, Normal, Tensor, Tensor], Tensor]) -> None:
    model = _Player()
    optimizer = torch.optim.Adam([each for each in model.parameters() if each.requires_grad], 3e-3)
    recorder = opened(model, optimizer)
    for x, _ in batches(40):
        policy = model(x)
        action = policy.sample()
        with torch.no_grad():
            reward = -(action - model.wanted(x)).square().sum(1)
        recorder.step(_step(optimizer, loss_of(model, x, policy, action, reward)))


@healthy
def a_critic_of_sampled_actions_beside_a_policy_gradient(opened: Open) -> None:
    def loss_of(model: _Player, x: Tensor, policy: Normal, action: Tensor, reward: Tensor) -> Tensor:
        value = model.value(x, action)
        gain = (reward - value).detach()
        return F.mse_loss(value, reward) - 0.1 * (policy.log_prob(action).sum(1) * gain).mean()

    _play(opened, loss_of)


@healthy
def a_critic_of_sampled_actions_beside_an_actor_of_other_samples(opened: Open) -> None:
    def loss_of(model: _Player, x: Tensor, policy: Normal, action: Tensor, reward: Tensor) -> Tensor:
        actor = -model.value(x, policy.rsample()).mean() + 1e-3 * policy.mean.square().mean()
        return F.mse_loss(model.value(x, action), reward) + actor

    _play(opened, loss_of)


@healthy
def a_forecast_that_reads_its_own_samples(opened: Open) -> None:
    """Sampled answers are inputs of the next step, and the means are compared with the true ones."""
    cell, head = nn.GRUCell(1, 24), nn.Linear(24, 1)
    model = nn.ModuleList([cell, head])
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    for _ in range(24):
        series = torch.sin(torch.rand(32, 1) * 6 + 0.4 * torch.arange(6))
        state, read, loss = torch.zeros(32, 24), series[:, :1], torch.zeros(())
        for at in range(1, 6):
            state = cell(read, state)
            forecast = Normal(head(state), 0.3)
            loss = loss - forecast.log_prob(series[:, at : at + 1]).mean()
            read = forecast.sample()
        recorder.step(_step(optimizer, loss))


@healthy
def hard_choices_with_the_gradient_of_their_probability(opened: Open) -> None:
    """One of several experts is drawn for a sample."""
    gate, experts = nn.Linear(_FEATURES, 4), nn.Linear(_FEATURES, 24)
    model = nn.ModuleList([gate, experts])
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    for x, y in batches(40):
        choice = Categorical(logits=gate(x))
        chosen = choice.sample()
        out = experts(x).reshape(-1, 4, 6)[torch.arange(len(x)), chosen]
        error = F.cross_entropy(out, y, reduction="none")
        gain = (error - error.mean()).detach()
        recorder.step(_step(optimizer, (error + choice.log_prob(chosen) * gain).mean()))


# Samples and what they got.


def _reward(opened: Open, loss_of: Callable[[Distribution, Tensor, Tensor], Tensor], *, continuous: bool = False,
            steps: int = 40) -> None:  # fmt: skip
    """A bandit with a context: `loss_of` gets the policy, inputs and the best action."""
    model = nn.Sequential(nn.Linear(_FEATURES, 32), nn.Tanh(), nn.Linear(32, 6))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    for x, y in batches(steps):
        out = model(x)
        policy = Normal(out, 0.5) if continuous else Categorical(logits=out)
        recorder.step(_step(optimizer, loss_of(policy, x, y)))


@fault("foreign-sample", "another sample than the one that was rewarded", "Draw once")
def the_logarithm_of_another_action(opened: Open) -> None:
    def loss_of(policy: Distribution, x: Tensor, y: Tensor) -> Tensor:
        gain = (policy.sample() == y).float() - 1 / 6
        return -(policy.log_prob(policy.sample()) * gain).mean()

    _reward(opened, loss_of)


@fault("foreign-sample", "another sample than the one that was rewarded", "Draw once")
def the_logarithm_of_another_number(opened: Open) -> None:
    """Of a normal distribution; rewards are normalised, and there is an entropy."""

    def loss_of(policy: Distribution, x: Tensor, y: Tensor) -> Tensor:
        gain = -(policy.sample() - x[:, :6]).square().sum(1)
        gain = (gain - gain.mean()) / gain.std()
        return -(gain * policy.log_prob(policy.sample()).sum(1)).mean() - 0.01 * policy.entropy().mean()

    _reward(opened, loss_of, continuous=True)


@healthy
def the_logarithm_of_the_action_that_was_rewarded(opened: Open) -> None:
    def loss_of(policy: Distribution, x: Tensor, y: Tensor) -> Tensor:
        action = policy.sample()
        gain = (action == y).float() - 1 / 6
        return -(policy.log_prob(action) * gain).mean()

    _reward(opened, loss_of)


@healthy
def a_reward_of_another_sample_as_the_baseline(opened: Open) -> None:
    """The other sample tells what to expect, and nothing else."""

    def loss_of(policy: Distribution, x: Tensor, y: Tensor) -> Tensor:
        action, other = policy.sample(), policy.sample()
        gain = (action == y).float() - (other == y).float()
        return -(policy.log_prob(action) * gain).mean()

    _reward(opened, loss_of)


@healthy
def each_sample_with_the_others_as_its_baseline(opened: Open) -> None:
    """Leave one out, as two sums of products."""

    def loss_of(policy: Distribution, x: Tensor, y: Tensor) -> Tensor:
        one, other = policy.sample(), policy.sample()
        first, second = (one == y).float(), (other == y).float()
        return (
            -(policy.log_prob(one) * first - policy.log_prob(one) * second).mean()
            - (policy.log_prob(other) * second - policy.log_prob(other) * first).mean()
        )

    _reward(opened, loss_of)


@healthy
def an_entropy_by_another_sample(opened: Open) -> None:
    """A bonus of an estimate of the entropy, whose gradient is that of the logarithm of its own sample."""

    def loss_of(policy: Distribution, x: Tensor, y: Tensor) -> Tensor:
        action, other = policy.sample(), policy.sample()
        gain = (action == y).float() - 1 / 6
        surprise = policy.log_prob(other)
        return -(policy.log_prob(action) * gain).mean() + 0.01 * (surprise * surprise.detach()).mean()

    _reward(opened, loss_of)


@healthy
def a_proposal_of_numbers_that_is_rewarded_by_itself(opened: Open) -> None:
    def loss_of(policy: Distribution, x: Tensor, y: Tensor) -> Tensor:
        proposal = policy.sample((3,))
        gain = -(proposal - x[:, :6]).square().sum(2)
        gain = (gain - gain.mean(0)).detach()
        return -(policy.log_prob(proposal).sum(2) * gain).mean()

    _reward(opened, loss_of, continuous=True)
