"""Numbers around an offset that the loop rounds by itself, and state that 8 bits make zero; and sound cousins."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.faults.class_faults import _fault as fault
from tests.faults.class_faults import _healthy as healthy
from tests.faults.published_faults import Open

Round = Callable[[Tensor], Tensor]


def _bits(x: Tensor, kept: int) -> Tensor:
    """So many of the 23 digits of FP32, rounded half up."""
    dropped = 23 - kept
    bits = x.detach().contiguous().view(torch.int32)
    return ((bits + (1 << (dropped - 1))) & ~((1 << dropped) - 1)).view(torch.float32)


def _through(x: Tensor, rounded: Tensor) -> Tensor:
    """The rounded number, with the gradient of the one before."""
    return x + (rounded - x).detach()


def _codes(x: Tensor, zero: Tensor | float = 0.0) -> Tensor:
    """255 equal levels on both sides of a zero point."""
    scale = (x - zero).abs().amax() / 127
    return ((x - zero) / scale).round().clamp(-127, 127) * scale + zero


class _Rounds(nn.Module):
    def __init__(self, rounds: Round) -> None:
        super().__init__()
        self.rounds = rounds

    def forward(self, x: Tensor) -> Tensor:
        return self.rounds(x)


def _readings(opened: Open, rounds: Round, offset: float = 300.0, inside: bool = True, steps: int = 40) -> None:
    """Readings around an offset, which the first layer takes off; `inside`: a module rounds, else the loop."""
    first = nn.Linear(8, 32)
    with torch.no_grad():
        first.bias.sub_(offset * first.weight.sum(1))
    model = nn.Sequential(_Rounds(rounds) if inside else nn.Identity(), first, nn.Tanh(), nn.Linear(32, 1))
    first.requires_grad_(False)
    optimizer = torch.optim.Adam([each for each in model.parameters() if each.requires_grad], 5e-3)
    recorder = opened(model, optimizer)
    for _ in range(steps):
        own = torch.randn(64, 8)
        x = offset + 0.4 * own
        loss = F.mse_loss(model(x if inside else rounds(x))[:, 0], own[:, 0] + own[:, 1].tanh())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


_LOST = "most of what they differ by", "Subtract the mean"


@fault("coarse-data", *_LOST, True)
def eight_digits_by_bits(opened: Open) -> None:
    _readings(opened, lambda x: _through(x, _bits(x, 7)))


@fault("coarse-data", *_LOST, True)
def codes_around_zero_of_readings_around_300(opened: Open) -> None:
    _readings(opened, _codes)


@fault("coarse-data", *_LOST, True)
def codes_that_the_loop_makes(opened: Open) -> None:
    def stored(x: Tensor) -> Tensor:
        scale = x.abs().amax() / 127
        return (x / scale).round().to(torch.int8).float() * scale

    _readings(opened, stored, inside=False)


@fault("coarse-data", *_LOST, True)
def readings_in_e4m3(opened: Open) -> None:
    _readings(opened, lambda x: (x / 2).to(torch.float8_e4m3fn).float() * 2)


@healthy
def digits_by_bits_of_centred_readings(opened: Open) -> None:
    _readings(opened, lambda x: 300 + _bits(x - 300, 7))


@healthy
def twelve_digits_are_enough(opened: Open) -> None:
    _readings(opened, lambda x: _through(x, _bits(x, 13)))


@healthy
def codes_around_a_zero_point(opened: Open) -> None:
    _readings(opened, lambda x: _codes(x, x.mean()))


@healthy
def codes_of_readings_around_zero(opened: Open) -> None:
    _readings(opened, _codes, offset=0.0)


@healthy
def hours_as_remainders_of_days(opened: Open) -> None:
    """A day is the rounded time; what the model gets is the time since it began."""

    def since_midnight(t: Tensor) -> Tensor:
        days = (t / 24).floor() * 24
        return 300 + (t - days - 12) / 8

    _readings(opened, since_midnight)


@healthy
def dither_before_a_coarse_grid(opened: Open) -> None:
    """Noise of the size of a step before the rounding keeps the mean of many numbers."""
    _readings(opened, lambda x: ((x / 2 + torch.rand_like(x)).floor()) * 2)


@healthy
def whole_degrees_on_purpose(opened: Open) -> None:
    _readings(opened, torch.round)


class _Binary(nn.Module):
    """Activations of one bit around their mean, with a straight-through estimator."""

    def forward(self, x: Tensor) -> Tensor:
        size = x.detach().abs().mean()
        return _through(x, (x / size).clamp(-1, 1).round() * size)


@healthy
def activations_of_three_levels(opened: Open) -> None:
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), _Binary(), nn.Linear(64, 32), _Binary(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    for _ in range(40):
        x = torch.randn(64, 8)
        loss = F.mse_loss(model(x)[:, 0], x[:, 0] + x[:, 1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
