"""Models and optimizers that are set up wrongly: an axis, betas, a sign; and sound loops that look like it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.faults.class_faults import _fault as fault
from tests.faults.class_faults import _healthy as healthy
from tests.faults.published_faults import Open, batches, network


class _Attention(nn.Module):
    """Classes of sequences by one attention of two heads; `axis` is that of its softmax."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis, self.mixed, self.scores = axis, nn.Linear(16, 48), nn.Linear(16, 4)

    def weights(self, scores: Tensor) -> Tensor:
        return F.dropout(scores.softmax(self.axis), 0.1, self.training)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (each.view(batch, length, 2, 8).transpose(1, 2) for each in self.mixed(x).chunk(3, -1))
        mixed = self.weights(q @ k.transpose(-2, -1) / 8**0.5) @ v
        out: Tensor = self.scores(mixed.transpose(1, 2).flatten(2).mean(1))
        return out


class _Slots(_Attention):
    """Slots compete for inputs: the softmax is over the slots, and the sum over inputs is divided by its weights."""

    def weights(self, scores: Tensor) -> Tensor:
        shares = scores.softmax(-2) + 1e-8
        return shares / shares.sum(-1, keepdim=True)


class _Both(nn.Module):
    """Two sequences attend to each other by one matrix of scores, which is used both ways."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.scores = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.left(x[:, :6]), self.right(x[:, 6:])
        scores = a @ b.transpose(1, 2)
        to_a = scores.softmax(2) @ b
        to_b = scores.softmax(1).transpose(1, 2) @ a
        out: Tensor = self.scores(torch.cat([to_a.mean(1), to_b.mean(1)], 1))
        return out


def _attend(opened: Open, model: nn.Module) -> None:
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    marks = torch.randn(4, 16)
    for _ in range(12):
        y = torch.randint(0, 4, (16,))
        x = torch.randn(16, 12, 16)
        x[:, 3] += 2 * marks[y]
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@fault("softmax-over-wrong-axis", "wrong axis", "dim=-1", False)
def attention_over_the_queries(opened: Open) -> None:
    _attend(opened, _Attention(-2))


@healthy
def attention_over_the_keys(opened: Open) -> None:
    _attend(opened, _Attention(-1))


@healthy
def slots_that_compete(opened: Open) -> None:
    _attend(opened, _Slots(-2))


@healthy
def sequences_that_attend_to_each_other(opened: Open) -> None:
    _attend(opened, _Both())


def _fit(
    opened: Open, optimizer: type[torch.optim.Optimizer], sign: float = 1.0, steps: int = 12, **more: object
) -> None:
    model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 1))
    made = optimizer(model.parameters(), **more)
    recorder = opened(model, made)
    for _ in range(steps):
        x = torch.randn(32, 12)
        loss = F.mse_loss(model(x), torch.sigmoid(x[:, :3].sum(1, keepdim=True)))
        made.zero_grad()
        (sign * loss).backward()
        made.step()
        recorder.step(loss)


@fault("betas-swapped", "swapped", "betas=(0.9, 0.999)", False)
def betas_in_the_other_order(opened: Open) -> None:
    _fit(opened, torch.optim.Adam, lr=3e-3, betas=(0.999, 0.9))


@healthy
def a_long_first_moment(opened: Open) -> None:
    _fit(opened, torch.optim.Adam, lr=3e-3, betas=(0.95, 0.95))


@fault("loss-climbed", "its sign is turned", "Call backward", False)
def backward_of_the_negative_loss(opened: Open) -> None:
    _fit(opened, torch.optim.SGD, -1.0, lr=0.1)


@fault("loss-climbed", "its sign is turned", "leave maximize", False)
def an_optimizer_that_climbs(opened: Open) -> None:
    _fit(opened, torch.optim.Adam, lr=1e-2, maximize=True)


@healthy
def a_reward_that_is_maximised(opened: Open) -> None:
    """The negative of the squared error is a reward, and rises."""
    model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 1))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3, maximize=True)
    recorder = opened(model, optimizer)
    for _ in range(40):
        x = torch.randn(32, 12)
        reward = -F.mse_loss(model(x), torch.sigmoid(x[:, :3].sum(1, keepdim=True)))
        optimizer.zero_grad()
        reward.backward()
        optimizer.step()
        recorder.step(reward)


def _begin(opened: Open, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 40) -> None:
    with torch.no_grad():
        for each in model.modules():
            if isinstance(each, nn.Linear):
                each.weight.normal_()
    recorder = opened(model, optimizer)
    for x, y in batches(steps):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@fault("large-initial-weights", "began too large", "He", False)
def weights_of_standard_deviation_one(opened: Open) -> None:
    model = network()
    _begin(opened, model, torch.optim.Adam(model.parameters(), 1e-3))


@fault("large-initial-weights", "began too large", "He", False)
def weights_of_standard_deviation_one_that_end_in_nan(opened: Open) -> None:
    """It is no matter of the rate, which is usual: the first loss is in the thousands."""
    hidden = [part for _ in range(3) for part in (nn.Linear(64, 64), nn.ReLU())]
    model = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), *hidden, nn.Linear(64, 6))
    _begin(opened, model, torch.optim.SGD(model.parameters(), 1e-2))


@healthy
def weights_of_standard_deviation_one_before_norms(opened: Open) -> None:
    model = nn.Sequential(
        nn.Linear(24, 48), nn.LayerNorm(48), nn.GELU(), nn.Linear(48, 48), nn.LayerNorm(48), nn.GELU(),
        nn.Linear(48, 6), nn.LayerNorm(6),
    )  # fmt: skip
    _begin(opened, model, torch.optim.Adam(model.parameters(), 3e-3))


@healthy
def weights_of_standard_deviation_one_that_are_learnt(opened: Open) -> None:
    """A rate to match, for long enough."""
    model = nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 6))
    _begin(opened, model, torch.optim.Adam(model.parameters(), 5e-2), 120)


class _Rounding(nn.Module):
    """Rounds what is between its layers in its own forward pass."""

    def __init__(self, estimate: bool) -> None:
        super().__init__()
        self.first, self.last, self.estimate = nn.Linear(24, 48), nn.Linear(48, 6), estimate

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.first(x))
        codes = torch.round(8 * h) / 8
        out: Tensor = self.last(h + (codes - h).detach() if self.estimate else codes)
        return out


def _round(opened: Open, estimate: bool) -> None:
    model = _Rounding(estimate)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    for x, y in batches(40):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@fault("no-gradients", "round() in the model", "straight-through", False)
def rounded_in_the_forward_pass_of_the_model(opened: Open) -> None:
    _round(opened, estimate=False)


@healthy
def rounded_with_an_estimator(opened: Open) -> None:
    _round(opened, estimate=True)


def _learn(opened: Open, model: nn.Module, rate: float = 3e-3) -> None:
    optimizer = torch.optim.Adam(model.parameters(), rate)
    recorder = opened(model, optimizer)
    for x, y in batches(60):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


def _zeroed(model: nn.Module, *kinds: type[nn.Module]) -> nn.Module:
    for module in model.modules():
        if isinstance(module, kinds):
            for parameter in module.parameters():
                nn.init.zeros_(parameter)
    return model


@fault("zero-weights", "3 layers begin as zeros", "at random", False)
def all_weights_begin_as_zeros(opened: Open) -> None:
    _learn(opened, _zeroed(network(), nn.Linear))


@fault("zero-weights", "2 layers begin as zeros", "at random", False)
def own_parameters_begin_as_zeros(opened: Open) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Parameter(torch.zeros(24, 32))
            self.last = nn.Parameter(torch.zeros(32, 6))
            self.bias = nn.Parameter(torch.zeros(6))

        def forward(self, x: Tensor) -> Tensor:
            return (x @ self.first).tanh() @ self.last + self.bias

    _learn(opened, Own())


@healthy
def the_last_layer_begins_as_zeros(opened: Open) -> None:
    model = network()
    last = [each for each in model.modules() if isinstance(each, nn.Linear)][-1]
    _zeroed(last, nn.Linear)
    _learn(opened, model)


@healthy
def branches_beside_the_identity_begin_as_zeros(opened: Open) -> None:
    """As Fixup and ReZero do: the last layer of each branch."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.last = nn.Linear(32, 32), nn.Linear(32, 32)
            _zeroed(self.last, nn.Linear)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = x + self.last(self.body(x).relu())
            return out

    _learn(opened, nn.Sequential(nn.Linear(24, 32), Block(), Block(), Block(), nn.Linear(32, 6)))
