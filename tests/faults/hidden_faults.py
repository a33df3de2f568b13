"""Models that hide layers from their optimizer, by mistake and on purpose."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.faults.published_faults import Open, batches

HIDING: dict[str, Callable[[], nn.Module]] = {}
MEANT: dict[str, Callable[[], nn.Module]] = {}


class _Deep(nn.Module):
    """Its layers are in a list, which torch does not look into, or in a ModuleList."""

    def __init__(self, listed: bool) -> None:
        super().__init__()
        layers = [nn.Linear(24, 24) for _ in range(3)]
        self.layers = layers if listed else nn.ModuleList(layers)
        self.head = nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        out: Tensor = self.head(x)
        return out


class _Bare(nn.Module):
    """A parameter in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = {"first": nn.Parameter(torch.randn(24, 24) / 5)}
        self.head = nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(x @ self.weights["first"]))
        return out


class _Teacher(nn.Module):
    """A frozen encoder hidden in a list, so that it is not saved: without gradients of its own or of the graph."""

    def __init__(self, frozen: bool) -> None:
        super().__init__()
        encoder = nn.Linear(24, 24)
        self.encoder = [encoder.requires_grad_(not frozen)]
        self.head = nn.Sequential(nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 6))

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(not self.encoder[0].weight.requires_grad):
            x = self.encoder[0](x)
        out: Tensor = self.head(x)
        return out


HIDING |= {"layers in a list": lambda: _Deep(True), "a parameter in a dictionary": _Bare}
MEANT |= {
    "layers in a module list": lambda: _Deep(False),
    "a frozen encoder in a list": lambda: _Teacher(True),
    "an encoder in a list without a graph": lambda: _Teacher(False),
}


def train(opened: Open, made: Callable[[], nn.Module], *, given: bool = False, critic: bool = False) -> None:
    """`given`: the optimizer gets hidden layers all the same. `critic`: the loss runs through another model."""
    model, judge = made(), nn.Linear(6, 6)
    more = [each for layer in model.layers for each in layer.parameters()] if given else []
    optimizer = torch.optim.Adam([*model.parameters(), *more], 3e-3)
    recorder = opened(model, optimizer)
    for x, y in batches(40):
        outputs = model(x)
        loss = F.cross_entropy(judge(outputs) if critic else outputs, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
