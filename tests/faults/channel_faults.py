"""Quantisations whose one step for a whole tensor leaves quiet channels without any number, each with the correction;
and loops that round to whole numbers and lose nothing that they need."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.faults.narrow_faults import _mistake, _sound
from tests.faults.published_faults import Open
from tests.faults.watched_faults import _descend

Round = Callable[[Tensor], Tensor]
_WORDS = ("one step for each channel", "largest magnitude")


def _table(count: int, loud: float = 400.0) -> tuple[Tensor, Tensor]:
    """Readings of which the first column has another unit, and a class that the others decide."""
    x = torch.randn(count, 12)
    score = x[:, 1] + x[:, 2] * x[:, 3]
    return x * torch.tensor([loud] + 11 * [1.0]), (score > -0.5).long() + (score > 0.5).long()


def _through(x: Tensor, rounded: Tensor) -> Tensor:
    return x + (rounded - x).detach()


class _Quantised(nn.Module):
    """Rounds what it is given to multiples of a step, which a function takes from it."""

    def __init__(self, step_of: Round, levels: int = 127) -> None:
        super().__init__()
        self.step_of, self.levels = step_of, levels

    def forward(self, x: Tensor) -> Tensor:
        step = (self.step_of(x.detach().abs()) / self.levels).clamp(min=1e-8)
        return _through(x, torch.clamp(torch.round(x / step), -self.levels, self.levels) * step)


def _fit(opened: Open, quantiser: nn.Module, steps: int = 120, loud: float = 400.0) -> float:
    model = nn.Sequential(
        quantiser, nn.BatchNorm1d(12, affine=False), nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 3)
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    recorder = opened(model, optimizer)
    for _ in range(steps):
        x, y = _table(128, loud)
        _descend(recorder, optimizer, F.cross_entropy(model(x), y))
    x, y = _table(512, loud)
    with torch.no_grad():
        return float(F.cross_entropy(model(x), y))


@_mistake("lost-channels", *_WORDS, left=0.75)
def one_int8_step_for_a_table_with_a_loud_column(opened: Open, broken: bool) -> float:
    return _fit(opened, _Quantised(lambda x: x.amax() if broken else x.amax(0)))


class _OfTorch(nn.Module):
    """torch's own operation, with the range of the numbers, or one for each channel."""

    def __init__(self, *, shared: bool) -> None:
        super().__init__()
        self.shared = shared

    def forward(self, x: Tensor) -> Tensor:
        if self.shared:
            low, high = torch.aminmax(x.detach())
            step = float((high - low) / 255)
            return torch.fake_quantize_per_tensor_affine(x, step, int(-low / step), 0, 255)
        steps = x.detach().abs().amax(0) / 127
        return torch.fake_quantize_per_channel_affine(x, steps, torch.zeros_like(steps), 1, -128, 127)


@_mistake("lost-channels", *_WORDS, left=0.75)
def one_fake_quantisation_of_torch_for_all_channels(opened: Open, broken: bool) -> float:
    return _fit(opened, _OfTorch(shared=broken))


class _Tokens(nn.Module):
    """Tokens with a channel around a large number, as language models have them, quantised and mixed."""

    def __init__(self, *, by_token: bool) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(32, 16), nn.Linear(16, 4)
        self.register_buffer("offset", torch.tensor([900.0] + 15 * [0.0]))
        self.by_token = by_token

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens) + self.offset
        size = h.detach().abs()
        step = (size.amax(-1, keepdim=True) if self.by_token else size.amax((0, 1))) / 127
        codes = (h / step).round().clamp(-127, 127)
        out: Tensor = self.head((_through(h, codes * step) - self.offset).mean(1))
        return out


@_mistake("lost-channels", *_WORDS, left=0.75)
def one_step_for_each_token_beside_a_loud_channel(opened: Open, broken: bool) -> float:
    model = _Tokens(by_token=broken)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    recorder, loss = opened(model, optimizer), torch.zeros(())
    for _ in range(150):
        tokens = torch.randint(32, (64, 6))
        loss = F.cross_entropy(model(tokens), (tokens % 4).float().mean(1).round().long())
        _descend(recorder, optimizer, loss)
    return float(loss.detach())


class _Rows(nn.Module):
    """A layer whose weights are rounded to 8 bits; its outputs have different units, which the loss divides by."""

    def __init__(self, *, shared: bool) -> None:
        super().__init__()
        self.units = torch.tensor(3 * [2000.0] + 5 * [1.0])
        self.layer, self.shared = nn.Linear(16, 8, bias=False), shared
        with torch.no_grad():
            self.layer.weight.mul_(self.units[:, None])

    def forward(self, x: Tensor) -> Tensor:
        w = self.layer.weight
        size = w.detach().abs()
        step = (size.max() if self.shared else size.amax(1, keepdim=True)) / 127
        return F.linear(x, _through(w, (w / step).round() * step)) / self.units


@_mistake("lost-channels", *_WORDS, left=0.75)
def one_step_for_all_rows_of_weights(opened: Open, broken: bool) -> float:
    model, truth = _Rows(shared=broken), torch.randn(8, 16) / 4
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    recorder, loss = opened(model, optimizer), torch.zeros(())
    for _ in range(150):
        x = torch.randn(64, 16)
        loss = F.mse_loss(model(x), x @ truth.T)
        _descend(recorder, optimizer, loss)
    return float(loss.detach())


class _Fit(nn.Module):
    """Features, a quantiser, and a head."""

    def __init__(self, quantiser: nn.Module, inputs: int = 12) -> None:
        super().__init__()
        self.features, self.quantiser, self.head = nn.Linear(inputs, 24), quantiser, nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.quantiser(self.features(x).relu()))
        return out


def _classes(opened: Open, model: nn.Module, batch: Callable[[], Tensor], steps: int = 140) -> None:
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    recorder = opened(model, optimizer)
    for _ in range(steps):
        x = batch()
        labels = (x[:, 0] > -0.4).long() + (x[:, 1] > 0.4).long()
        _descend(recorder, optimizer, F.cross_entropy(model(x), labels))


@_sound
def one_step_for_channels_of_one_scale(opened: Open) -> None:
    _classes(opened, _Fit(_Quantised(lambda x: x.amax())), lambda: torch.randn(64, 12))


@_sound
def one_step_beside_channels_that_are_mostly_zero(opened: Open) -> None:
    def batch() -> Tensor:
        x = torch.randn(64, 24)
        x[:, 12:] *= 1e-3 * (torch.rand(64, 12) < 0.1)
        return x

    _classes(opened, nn.Sequential(_Quantised(lambda x: x.amax()), _Fit(nn.Identity(), 24)), batch)


class _ByChance(nn.Module):
    """Rounds up or down by chance, so that also what is far below a step is right on average."""

    def forward(self, x: Tensor) -> Tensor:
        step = x.detach().abs().amax() / 127
        return _through(x, torch.floor(x / step + torch.rand_like(x)) * step)


@_sound
def rounded_up_or_down_by_chance(opened: Open) -> None:
    _fit(opened, _ByChance(), loud=60.0)


class _Bounded(nn.Module):
    """Few levels of bounded numbers (FSQ), the widest of which is also read for a log."""

    def forward(self, x: Tensor) -> Tensor:
        self.widest = float(x.detach().abs().amax())
        bounded = 3.5 * torch.tanh(x)
        return _through(bounded, bounded.round()) / 3.5


@_sound
def few_levels_of_bounded_numbers(opened: Open) -> None:
    _classes(opened, _Fit(_Bounded()), lambda: torch.randn(64, 12))


class _Cells(nn.Module):
    """The cell of a grid in which each point lies; two of four coordinates are nearly flat."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(64 * 64, 8), nn.Linear(8, 2)

    def forward(self, points: Tensor) -> Tensor:
        low, high = points.amin((0, 1)), points.amax((0, 1))
        size = (high - low).max() / 63
        cells = ((points - low) / size).round().clamp(0, 63)
        self.centres = cells * size
        out: Tensor = self.head(self.table((cells[..., 0] * 64 + cells[..., 1]).long()).mean(1))
        return out


@_sound
def cells_of_points_in_a_plane(opened: Open) -> None:
    model = _Cells()
    optimizer = torch.optim.Adam(model.parameters(), 2e-2)
    recorder = opened(model, optimizer)
    for _ in range(140):
        labels = torch.randint(2, (32,))
        points = torch.rand(32, 20, 4) * torch.tensor([50.0, 50.0, 0.2, 0.1])
        points[..., 0] *= 0.5 + 0.5 * labels[:, None]
        _descend(recorder, optimizer, F.cross_entropy(model(points), labels))


class _Attends(nn.Module):
    """Attention whose probabilities are rounded to 8 bits: those of most keys are next to nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
        self.rounded = _Quantised(lambda x: x.amax(), 255)

    def forward(self, x: Tensor) -> Tensor:
        weights = (4 * self.q(x) @ self.k(x).mT).softmax(-1)
        return (self.rounded(weights) @ self.v(x)).mean((1, 2))


@_sound
def probabilities_in_8_bits(opened: Open) -> None:
    model = _Attends()
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    recorder = opened(model, optimizer)
    for _ in range(140):
        x = torch.randn(32, 24, 8)
        x[:, 0] *= 6
        _descend(recorder, optimizer, F.mse_loss(model(x), x[:, 0].mean(1)))
