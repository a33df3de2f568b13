"""Models that answer one number, alike units, batches of one class, large epsilons and narrow ranges; and cousins."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.faults.class_faults import _fault as fault
from tests.faults.class_faults import _healthy as healthy
from tests.faults.published_faults import Open


def _regress(opened: Open, model: nn.Module, optimizer: torch.optim.Optimizer | None = None, weight: float = 1.0,
             steps: int = 22) -> None:  # fmt: skip
    """Learn a smooth function of 12 numbers."""
    optimizer = optimizer or torch.optim.Adam(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    for _ in range(steps):
        x = torch.randn(32, 12)
        loss = weight * (model(x) - torch.sigmoid(x[:, :3].sum(1, keepdim=True))).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


def _net(*last: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1), *last)


class _Gated(nn.Module):
    """A softmax that is a function of the forward pass, behind a layer of one output."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.softmax(self.layer(x), 1)


@fault("constant-output", "makes a constant", "a sigmoid for one output", False)
def softmax_of_one_gate(opened: Open) -> None:
    _regress(opened, _Gated())


@fault("constant-output", "LayerNorm", "no norm behind the last layer", False)
def a_norm_behind_one_output(opened: Open) -> None:
    _regress(opened, _net(nn.LayerNorm(1)))


@healthy
def a_last_layer_that_begins_at_zero(opened: Open) -> None:
    model = _net(nn.Sigmoid())
    nn.init.zeros_(model[4].weight)
    nn.init.zeros_(model[4].bias)
    _regress(opened, model)


class _Learned(nn.Module):
    """One number for all, which is learnt: a model of a prior."""

    def __init__(self) -> None:
        super().__init__()
        self.level = nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor) -> Tensor:
        return self.level.expand(len(x), 1) * 1.0


@healthy
def one_number_that_is_learnt(opened: Open) -> None:
    _regress(opened, _Learned())


@fault("alike-units", "began with the same number", "at random", False)
def all_weights_begin_as_one_number(opened: Open) -> None:
    model = _net()
    for each in model.parameters():
        nn.init.constant_(each, 0.05)
    _regress(opened, model)


@healthy
def last_layers_that_begin_as_means(opened: Open) -> None:
    """Of three matrices two begin with equal elements, behind units that differ, and with rows that do."""
    model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 4, bias=False), nn.Linear(4, 1, bias=False))
    nn.init.constant_(model[2].weight, 1 / 24)
    model[3].weight.data = torch.tensor([[0.1, 0.2, 0.3, 0.4]])
    _regress(opened, model)


def _classify(opened: Open, labels: Tensor) -> None:
    """A batch for each row of labels; inputs tell the class."""
    centers = torch.randn(6, 12)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 6))
    optimizer = torch.optim.SGD(model.parameters(), 0.2, momentum=0.9)
    recorder = opened(model, optimizer)
    for y in labels:
        loss = F.cross_entropy(model(centers[y] + 0.5 * torch.randn(len(y), 12)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@fault("sorted-batches", "come class by class", "Shuffle", False)
def classes_one_behind_another(opened: Open) -> None:
    _classify(opened, (torch.arange(36 * 24) // (6 * 24) % 6).reshape(36, 24))


@healthy
def a_class_that_is_nearly_all(opened: Open) -> None:
    _classify(opened, torch.where(torch.rand(36, 24) < 0.97, 2, torch.randint(0, 6, (36, 24))))


@healthy
def shuffled_classes(opened: Open) -> None:
    _classify(opened, torch.randint(0, 6, (36, 24)))


@fault("no-progress", "the epsilon 1 of the optimizer", "Lower eps", False)
def adam_with_an_epsilon_of_one(opened: Open) -> None:
    model = _net()
    _regress(opened, model, torch.optim.Adam(model.parameters(), 3e-3, eps=1.0), weight=0.02, steps=60)


@healthy
def adam_with_an_epsilon_of_one_and_large_gradients(opened: Open) -> None:
    model = _net()
    _regress(opened, model, torch.optim.Adam(model.parameters(), 1e-2, eps=1.0), weight=1000.0)


class _Range(nn.Module):
    """Rounds to 8 bits between the ends of a range, which it takes from the first batch, or from each one."""

    def __init__(self, each: bool) -> None:
        super().__init__()
        self.each, self.peak = each, 0.0

    def forward(self, x: Tensor) -> Tensor:
        if self.each or not self.peak:
            self.peak = float(x.detach().abs().max())
        return torch.fake_quantize_per_tensor_affine(x, self.peak / 127, 0, -127, 127)


def _rounded(opened: Open, each: bool) -> None:
    """The first batch is a quiet one."""
    model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), _Range(each), nn.Linear(24, 1))
    recorder = opened(model, optimizer := torch.optim.Adam(model.parameters(), 3e-3))
    for step in range(10):
        x = torch.randn(32, 12) * (3.0 if step else 0.02)
        if not step:
            model[0].bias.data.zero_()
        loss = (model(x) - x[:, :1].sign()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@fault("clipped-in-quantisation", "its range is too small", "not from the first batch", True)
def a_range_of_the_first_quiet_batch(opened: Open) -> None:
    _rounded(opened, each=False)


@healthy
def a_range_of_each_batch(opened: Open) -> None:
    _rounded(opened, each=True)
