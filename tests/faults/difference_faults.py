"""Differences of coordinates, time stamps and positions that a cast has rounded; and the same ones taken before it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.faults.narrow_faults import _mistake, _sound
from tests.faults.published_faults import Open
from tests.faults.watched_faults import _descend

_WORDS = ("Take the difference", "cast the result")
B16, HALF = torch.bfloat16, torch.float16


class _Cloud(nn.Module):
    """A class of a cloud of points, from the offsets of neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.head = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 32)), nn.Linear(32, 2)

    def forward(self, offsets: Tensor) -> Tensor:
        out: Tensor = self.head(self.each(offsets).amax((1, 2)))
        return out


def _clouds(opened: Open, offsets_of: Callable[[Tensor, Tensor], Tensor]) -> float:
    """Coordinates of a map, in metres from its corner; one class of clouds is higher."""
    model = _Cloud()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder, last = opened(model, optimizer), list[float]()
    for _ in range(60):
        labels = torch.randint(2, (16,))
        points = torch.randn(16, 24, 3, dtype=torch.float64) * torch.tensor([1.0, 1.0, 0.3])
        points[..., 2] *= 1 + 2 * labels[:, None]
        points += torch.tensor([4000.0, 9000.0, 1200.0])
        nearest = torch.cdist(points, points).topk(6, largest=False).indices
        loss = F.cross_entropy(model(offsets_of(points, nearest)), labels)
        _descend(recorder, optimizer, loss)
        last.append(float(loss.detach()))
    return sum(last[-10:]) / 10


def _offsets(points: Tensor, nearest: Tensor) -> Tensor:
    near = torch.stack([own[places] for own, places in zip(points, nearest, strict=True)])
    return near - points[:, :, None]


@_mistake("cancelled-digits", *_WORDS, left=0.8)
def offsets_of_neighbours_in_a_map_in_bf16(opened: Open, broken: bool) -> float:
    if broken:
        return _clouds(opened, lambda points, nearest: _offsets(points.to(B16), nearest).float())
    return _clouds(opened, lambda points, nearest: _offsets(points, nearest).to(B16).float())


@_mistake("cancelled-digits", *_WORDS, left=0.8)
def offsets_in_fp32_of_coordinates_that_were_in_bf16(opened: Open, broken: bool) -> float:
    """The loader stores the coordinates in 16 bits, and the training widens them before it subtracts."""
    if broken:
        return _clouds(opened, lambda points, nearest: _offsets(points.to(B16).float(), nearest))
    return _clouds(opened, lambda points, nearest: _offsets(points, nearest).to(B16).float())


class _Gaps(nn.Module):
    """The rate of events, from the times between them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, gaps: Tensor) -> Tensor:
        out: Tensor = self.layers(gaps)[:, 0]
        return out


def _rates(opened: Open, gaps_of: Callable[[Tensor], Tensor]) -> float:
    model = _Gaps()
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    recorder, loss = opened(model, optimizer), torch.zeros(())
    for _ in range(150):
        start, mean = 1e8 + 2e7 * torch.rand(64, 1, dtype=torch.float64), 0.2 + torch.rand(64, 1, dtype=torch.float64)
        times = start + (mean * torch.empty(64, 21, dtype=torch.float64).exponential_()).cumsum(1)
        loss = F.mse_loss(model(gaps_of(times)), mean[:, 0].float())
        _descend(recorder, optimizer, loss)
    return float(loss.detach())


@_mistake("cancelled-digits", *_WORDS, left=0.8)
def gaps_of_seconds_cast_to_fp32(opened: Open, broken: bool) -> float:
    return _rates(
        opened, lambda times: torch.diff(times.float()) if broken else torch.diff(times).float()
    )  # fmt: skip


class _Track(nn.Module):
    """The velocity of a track, from its points less the first one, or less the one before."""

    def __init__(self, *, casts_first: bool, low: torch.dtype, of_first: bool) -> None:
        super().__init__()
        self.casts_first, self.low, self.of_first = casts_first, low, of_first
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, points: Tensor) -> Tensor:
        if self.casts_first:
            points = points.to(self.low)
        moved = points[:, 1:] - (points[:, :1] if self.of_first else points[:, :-1])
        out: Tensor = self.layers(moved.to(self.low).float().flatten(1))
        return out


def _velocities(opened: Open, model: nn.Module, where: float) -> float:
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    recorder, loss = opened(model, optimizer), torch.zeros(())
    times = 0.5 * torch.arange(9.0)[None, :, None]
    for _ in range(120):
        velocity = torch.randn(64, 1, 2)
        points = where * (1 + 0.1 * torch.randn(64, 1, 2)) + velocity * times + 0.05 * torch.randn(64, 9, 2)
        loss = F.mse_loss(model(points), velocity[:, 0])
        _descend(recorder, optimizer, loss)
    return float(loss.detach())


@_mistake("cancelled-digits", *_WORDS, left=0.5)
def tracks_cast_in_the_model(opened: Open, broken: bool) -> float:
    return _velocities(opened, _Track(casts_first=broken, low=B16, of_first=True), 3000.0)


@_mistake("cancelled-digits", *_WORDS, left=0.5)
def steps_of_tracks_in_fp16(opened: Open, broken: bool) -> float:
    return _velocities(opened, _Track(casts_first=broken, low=HALF, of_first=False), 5000.0)


@_sound
def offsets_of_centred_points_in_bf16(opened: Open) -> None:
    def offsets_of(points: Tensor, nearest: Tensor) -> Tensor:
        return _offsets((points - points.mean(1, keepdim=True)).to(B16), nearest).float()

    _clouds(opened, offsets_of)


@_sound
def gaps_of_seconds_since_the_first_event(opened: Open) -> None:
    _rates(opened, lambda times: torch.diff((times - times[:, :1]).to(HALF)).float())


@_sound
def tracks_near_the_origin_in_bf16(opened: Open) -> None:
    _velocities(opened, _Track(casts_first=True, low=B16, of_first=True), 1.0)


@_sound
def positions_of_tokens_less_the_first_in_bf16(opened: Open) -> None:
    """Whole numbers below 256, which BF16 holds."""
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    for _ in range(60):
        places = torch.randint(200, (64, 21)).to(B16)
        apart = (places[:, 1:] - places[:, :1]).float() / 100
        _descend(recorder, optimizer, F.mse_loss(model(apart)[:, 0], apart.mean(1)))


@_sound
def frames_of_which_most_stays_as_it_was(opened: Open) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(144, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    for _ in range(60):
        before, row = torch.randint(256, (64, 12, 12)) / 255, torch.randint(12, (64,))
        after = before.clone()
        after[torch.arange(64), row] += 0.2
        moved = (after.to(HALF) - before.to(HALF)).float()
        _descend(recorder, optimizer, F.mse_loss(model(moved)[:, 0], row / 12))


def _policy(opened: Open, kept: Callable[[Tensor], Tensor], places: int = 96) -> float:
    """A policy that chooses one of 16 at each place, and two updates from the same samples; returns what is missed."""
    model = nn.Linear(1, 16 * places, bias=False)
    nn.init.normal_(model.weight, std=0.5)
    optimizer, target = torch.optim.Adam(model.parameters(), 0.05), torch.randint(16, (places,))
    recorder, worth = opened(model, optimizer), list[float]()

    def scores(chosen: Tensor) -> Tensor:
        each = model(torch.ones(1, 1)).view(1, places, 16).log_softmax(-1).expand(len(chosen), -1, -1)
        return each.gather(-1, chosen[..., None])[..., 0].sum(1)

    for _ in range(60):
        with torch.no_grad():
            chances = model(torch.ones(1, 1)).view(places, 16).softmax(-1)
            chosen = torch.multinomial(chances, 64, replacement=True).T
            reward = (chosen == target).float().mean(1)
            advantage, old = (reward - reward.mean()) / (reward.std() + 1e-6), kept(scores(chosen))
        for _ in range(2):
            ratio = (scores(chosen) - old).exp()
            loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            _descend(recorder, optimizer, loss)
        worth.append(float(reward.mean()))
    return 1 - sum(worth[-10:]) / 10


@_mistake("cancelled-digits", "Add up log-probabilities in FP32", left=0.95)
def log_probabilities_of_sequences_kept_in_bf16(opened: Open, broken: bool) -> float:
    return _policy(opened, lambda scores: scores.to(B16 if broken else torch.float32))


@_mistake("cancelled-digits", "Add up log-probabilities in FP32", left=0.95)
def log_probabilities_that_a_buffer_of_bf16_has_rounded(opened: Open, broken: bool) -> float:
    return _policy(opened, lambda scores: scores.to(B16).float() if broken else scores)


@_sound
def log_probabilities_of_short_sequences_in_bf16(opened: Open) -> None:
    """Where two numbers of BF16 are close enough together."""
    _policy(opened, lambda scores: scores.to(B16), places=8)


@_sound
def log_probabilities_of_sequences_in_fp16(opened: Open) -> None:
    _policy(opened, lambda scores: scores.to(HALF))
