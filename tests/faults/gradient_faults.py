"""Loops that change gradients between the backward pass and the step: with harm, and as people do it on purpose."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.faults.published_faults import Open, batches

Change = Callable[[list[nn.Parameter], list[Tensor]], None]  # of the gradients; a memory of each


class _TwoHeads(nn.Module):
    """A classifier, and a second task of other units whose gradients are a thousand times as large."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.size = nn.Linear(24, 32), nn.Linear(32, 6), nn.Linear(24, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.head(torch.tanh(self.body(x))), self.size(x)[:, 0]


def _grad(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _coded(values: Tensor, top: Tensor) -> Tensor:
    return torch.round(values / top * 127).to(torch.int8).float() * top / 127


def one_scale(weights: list[nn.Parameter], _: list[Tensor]) -> None:
    top = torch.stack([_grad(each).abs().max() for each in weights]).max()
    for each in weights:
        _grad(each).copy_(_coded(_grad(each), top))


def scales_of_tensors(weights: list[nn.Parameter], _: list[Tensor]) -> None:
    for each in weights:
        _grad(each).copy_(_coded(_grad(each), _grad(each).abs().max().clamp(min=1e-20)))


def feedback(weights: list[nn.Parameter], memory: list[Tensor]) -> None:
    """One scale, and what is lost is added to the next gradient."""
    for each, kept in zip(weights, memory, strict=True):
        _grad(each).add_(kept)
    top = torch.stack([_grad(each).abs().max() for each in weights]).max()
    for each, kept in zip(weights, memory, strict=True):
        coded = _coded(_grad(each), top)
        kept.copy_(_grad(each) - coded)
        _grad(each).copy_(coded)


def stochastic(weights: list[nn.Parameter], _: list[Tensor]) -> None:
    top = torch.stack([_grad(each).abs().max() for each in weights]).max()
    for each in weights:
        units = _grad(each) / top * 127
        _grad(each).copy_(torch.floor(units + torch.rand_like(units)) * top / 127)


def signs(weights: list[nn.Parameter], _: list[Tensor]) -> None:
    for each in weights:
        _grad(each).sign_()


def largest_tenth(weights: list[nn.Parameter], _: list[Tensor]) -> None:
    for each in weights:
        own = _grad(each)
        own[own.abs() < own.abs().flatten().kthvalue(max(int(0.9 * own.numel()), 1)).values] = 0


def frozen_body(weights: list[nn.Parameter], _: list[Tensor]) -> None:
    _grad(weights[0]).zero_()


def clipped_values(weights: list[nn.Parameter], _: list[Tensor]) -> None:
    nn.utils.clip_grad_value_(weights, 0.01)


LOSING: dict[str, Change] = {each.__name__: each for each in (one_scale,)}
KEEPING: dict[str, Change] = {
    each.__name__: each
    for each in (scales_of_tensors, feedback, stochastic, signs, largest_tenth, frozen_body, clipped_values)
}


def train(opened: Open, change: Change) -> None:
    model = _TwoHeads()
    rate = 1e-3 if change is signs else 0.02
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.0 if change is signs else 0.9)
    recorder = opened(model, optimizer)
    weights = list(model.parameters())
    memory = [torch.zeros_like(each) for each in weights]
    for x, y in batches(60):
        classes, size = model(x)
        loss = F.cross_entropy(classes, y) + (size - 400 * x[:, 0] - 300).square().mean() / 100
        optimizer.zero_grad()
        loss.backward()
        change(weights, memory)
        optimizer.step()
        recorder.step(loss)
