"""Training tasks in which 16 bits do not pay off for a known reason; see `waterfall.py`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from precgui.config import RunConfig
from precgui.events import NO_METRIC, Metric

_STEPS = 400


class Planted:
    """Regression on random numbers; a subclass plants one cause."""

    metric = Metric(NO_METRIC, "None", "")
    steps_per_epoch = _STEPS
    facts: ClassVar[dict[str, Any]] = {}
    width, batch = 512, 256

    def __init__(self, config: RunConfig) -> None:
        draw = torch.Generator().manual_seed(config.seed)
        self.inputs = torch.randn(self.batch, self.width, generator=draw)
        self.targets = torch.randn(self.batch, self.width, generator=draw)

    def model(self) -> nn.Module:
        return nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(self.width, self.width), nn.ReLU())))

    def train_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(_STEPS):
            yield self.inputs, self.targets

    def validation_batches(self) -> list[tuple[Tensor, Tensor]]:
        return [(self.inputs, self.targets)]

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.mse_loss(outputs, targets)

    def score(self, outputs: Tensor, targets: Tensor) -> float:
        return 0.0

    def result(self, scores: Sequence[Any]) -> float:
        return float("nan")


class TinyBatch(Planted):
    """Two samples through many narrow layers: starting operations takes longer than they do."""

    width, batch = 32, 2

    def model(self) -> nn.Module:
        return nn.Sequential(*(layer for _ in range(24) for layer in (nn.Linear(32, 32), nn.ReLU())))


class Vocabulary(Planted):
    """A head of 50257 rows: no multiple of 8. The loss looks at few of them, so that the products are nearly all."""

    width, batch = 64, 64

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 50257, bias=False))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.mse_loss(outputs[:, :64], targets)


class SlowLoader(Planted):
    """Each batch takes 60 ms to come."""

    def train_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in super().train_batches():
            time.sleep(0.06)
            yield batch


class _CastLoop(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        for _ in range(40):
            x = x.float().to(torch.bfloat16).to(x.dtype)
        return x.relu()


class CastsInALoop(Planted):
    """Between two layers the activations go to BF16 and back forty times."""

    batch = 512

    def model(self) -> nn.Module:
        return nn.Sequential(*(_CastLoop(self.width) for _ in range(4)))


class _Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Conv2d(4, 4, 3, padding=1) for _ in range(20)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.reshape(len(x), 4, 4, 4)).flatten(1)


class OneSmallImage(Planted):
    """One image of 4 x 4 pixels through twenty convolutions."""

    width, batch = 64, 1

    def model(self) -> nn.Module:
        return _Convolutions()


class DecodingLoader(Planted):
    """Each batch is sorted and summed for about 40 ms of CPU time before it comes."""

    def train_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in super().train_batches():
            begin = time.thread_time()
            while time.thread_time() - begin < 0.04:
                torch.sort(torch.rand(20_000))
            yield batch


class _Island(nn.Module):
    """A scale and shift in FP32 between two products in the format of autocast."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, 32), nn.Linear(32, width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(6):
            x = (x.float() * self.scale).to(torch.bfloat16)
        x = x.float()
        return x + self.second(self.first(x))


class FloatIslands(Planted):
    """A wide stream of activations is taken to FP32 for one multiplication, again and again."""

    width, batch = 2048, 512

    def model(self) -> nn.Module:
        return nn.Sequential(*(_Island(self.width) for _ in range(3)))


class _Tower(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        for _ in range(30):
            x = torch.tanh(x)
        return x


class ElementwiseTower(Planted):
    """Thirty hyperbolic tangents after each product: a faster product changes little."""

    width, batch = 256, 1024

    def model(self) -> nn.Module:
        return nn.Sequential(*(_Tower(self.width) for _ in range(3)))


def one_small_image(config: RunConfig) -> Planted:
    return OneSmallImage(config)


def decoding_loader(config: RunConfig) -> Planted:
    return DecodingLoader(config)


def float_islands(config: RunConfig) -> Planted:
    return FloatIslands(config)


def elementwise_tower(config: RunConfig) -> Planted:
    return ElementwiseTower(config)


def tiny_batch(config: RunConfig) -> Planted:
    return TinyBatch(config)


def vocabulary(config: RunConfig) -> Planted:
    return Vocabulary(config)


def slow_loader(config: RunConfig) -> Planted:
    return SlowLoader(config)


def casts_in_a_loop(config: RunConfig) -> Planted:
    return CastsInALoop(config)
