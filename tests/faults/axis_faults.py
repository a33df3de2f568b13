"""Views where axes should have changed places, and sound models that cut and join axes by views."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.faults.class_faults import _fault as fault
from tests.faults.class_faults import _healthy as healthy
from tests.faults.published_faults import Open

WORDS, LENGTH, WIDTH, HEADS = 9, 12, 24, 3
Cut = Callable[[Tensor], Tensor]  # [batch, length, width] to [batch, heads, length, width / heads]
Join = Callable[[Tensor], Tensor]  # and back


def _cut(x: Tensor) -> Tensor:
    return x.view(*x.shape[:2], HEADS, -1).transpose(1, 2)


def _join(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


class _Attention(nn.Module):
    def __init__(self, cut: Cut = _cut, join: Join = _join, fused: bool = False) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.cut, self.join, self.fused = cut, join, fused

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.cut(each) for each in self.inner(x).chunk(3, -1))
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            mixed = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1) @ v
        out: Tensor = self.outer(self.join(mixed))
        return out


class _Reader(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.norm, self.attention, self.head = nn.LayerNorm(WIDTH), attention, nn.Linear(WIDTH, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x) + self.places.weight
        out: Tensor = self.head(h + self.attention(self.norm(h)))
        return out


def _read(opened: Open, model: nn.Module, steps: int = 12, rows: Callable[[Tensor], Tensor] | None = None) -> None:
    """Sequences backwards."""
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    for _ in range(steps):
        x = torch.randint(WORDS, (16, LENGTH))
        scores, y = model(x), x.flip(1)
        loss = F.cross_entropy(rows(scores), y) if rows else F.cross_entropy(scores.flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@fault("mixed-axes", "positions of an attention", "transpose(1, 2)")
def heads_by_one_view(opened: Open) -> None:
    """Straight from the product, and three does not divide twelve times eight as the heads want it."""
    _read(opened, _Reader(_Attention(cut=lambda x: x.reshape(len(x), HEADS, LENGTH, -1))))


@fault("mixed-axes", "positions of an attention", "transpose(1, 2)")
def heads_in_the_batch_by_a_view(opened: Open) -> None:
    def cut(x: Tensor) -> Tensor:
        return x.contiguous().view(len(x) * HEADS, LENGTH, -1)

    _read(opened, _Reader(_Attention(cut, lambda x: x.view(-1, LENGTH, WIDTH))))


@fault("mixed-axes", "positions of an attention", "transpose(1, 2)")
def heads_by_a_view_for_fused_attention(opened: Open) -> None:
    attention = _Attention(lambda x: x.reshape(len(x), HEADS, LENGTH, -1), lambda x: x.reshape(-1, LENGTH, WIDTH), True)
    _read(opened, _Reader(attention))


@fault("mixed-axes", "put together by a view", "transpose(1, 2).reshape")
def heads_put_together_by_a_view(opened: Open) -> None:
    _read(opened, _Reader(_Attention(join=lambda x: x.reshape(len(x), LENGTH, -1))))


@fault("mixed-axes", "put together by a view", "transpose(1, 2).reshape")
def heads_of_fused_attention_put_together_by_a_view(opened: Open) -> None:
    _read(opened, _Reader(_Attention(join=lambda x: x.contiguous().view(len(x), -1, WIDTH), fused=True)))


@healthy
def heads_that_change_places(opened: Open) -> None:
    _read(opened, _Reader(_Attention()))


@healthy
def heads_that_change_places_for_fused_attention(opened: Open) -> None:
    _read(opened, _Reader(_Attention(fused=True)))


@healthy
def heads_in_the_batch(opened: Open) -> None:
    def cut(x: Tensor) -> Tensor:
        return _cut(x).reshape(len(x) * HEADS, LENGTH, -1)

    _read(opened, _Reader(_Attention(cut, lambda x: _join(x.view(-1, HEADS, LENGTH, WIDTH // HEADS)))))


@healthy
def heads_by_permutation_of_one_product(opened: Open) -> None:
    class Packed(_Attention):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.inner(x).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            out: Tensor = self.outer(_join(F.scaled_dot_product_attention(q, k, v)))
            return out

    _read(opened, _Reader(Packed()))


@healthy
def heads_by_einsum(opened: Open) -> None:
    class Summed(_Attention):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (each.view(*x.shape[:2], HEADS, -1) for each in self.inner(x).chunk(3, -1))
            weights = torch.einsum("bqhd,bkhd->bhqk", q, k).softmax(-1)
            out: Tensor = self.outer(torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2))
            return out

    _read(opened, _Reader(Summed()))


@healthy
def attention_of_torch(opened: Open) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x, x, x, need_weights=False)[0]
            return out

    _read(opened, _Reader(Own()))


@healthy
def attention_within_windows(opened: Open) -> None:
    """Four positions see each other; a view cuts positions and leaves features alone."""

    def cut(x: Tensor) -> Tensor:
        return _cut(x.reshape(-1, 4, WIDTH))

    _read(opened, _Reader(_Attention(cut, lambda x: _join(x).reshape(-1, LENGTH, WIDTH))))


@healthy
def one_key_for_all_heads(opened: Open) -> None:
    """The heads of a position stand among the queries, those of keys and values are one."""

    class Shared(_Attention):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.inner(x).chunk(3, -1)
            k, v = k[..., : WIDTH // HEADS], v[..., : WIDTH // HEADS]
            q = q.reshape(len(x), LENGTH * HEADS, -1)
            mixed = (q @ k.transpose(1, 2)).softmax(-1) @ v
            out: Tensor = self.outer(mixed.reshape(x.shape))
            return out

    _read(opened, _Reader(Shared()))


@healthy
def neighbours_joined_by_a_view(opened: Open) -> None:
    """Two positions become one of twice the features, as before a pooling; and back."""

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.mix, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(2 * WIDTH, 2 * WIDTH), _Attention()

        def forward(self, x: Tensor) -> Tensor:
            pairs = self.first(x).view(len(x), LENGTH // 2, 2 * WIDTH)
            out: Tensor = self.last(self.mix(pairs).view(x.shape))
            return out

    _read(opened, _Reader(Pooled()))


def _words_of(scores: Tensor) -> Tensor:
    return scores.view(len(scores), WORDS, LENGTH)


@fault("mixed-axes", "scores of several positions", "transpose(1, 2)")
def classes_by_a_view(opened: Open) -> None:
    _read(opened, _Reader(_Attention()), rows=_words_of)


@healthy
def classes_that_change_places(opened: Open) -> None:
    _read(opened, _Reader(_Attention()), rows=lambda scores: scores.transpose(1, 2))


class _Convolved(nn.Module):
    """Words as channels of a convolution over positions."""

    def __init__(self, turn: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.words, self.inner = nn.Embedding(WORDS, WIDTH), nn.Conv1d(WIDTH, 16, 3, padding=1)
        self.head, self.turn = nn.Linear(16, WORDS), turn

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(F.relu(self.inner(self.turn(self.words(x)))).transpose(1, 2))
        return out


@fault("mixed-axes", "for the channels of one", "transpose(1, 2)")
def channels_by_a_view(opened: Open) -> None:
    _read(opened, _Convolved(lambda h: h.view(len(h), WIDTH, LENGTH)))


@healthy
def channels_that_change_places(opened: Open) -> None:
    _read(opened, _Convolved(lambda h: h.transpose(1, 2)))


@healthy
def positions_as_channels(opened: Open) -> None:
    """A convolution along the features, with a position for a channel."""

    class Along(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.inner = nn.Embedding(WORDS, WIDTH), nn.Conv1d(LENGTH, LENGTH, 3, padding=1)
            self.head = nn.Linear(WIDTH, WORDS)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.inner(self.words(x)))
            return out

    _read(opened, Along())


class _Pixels(nn.Module):
    """Features of a convolution, pixel by pixel, to scores of six classes."""

    def __init__(self, turn: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.head, self.turn = nn.Conv2d(3, 10, 3, padding=1), nn.Linear(10, 6), turn

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.turn(F.relu(self.inner(x)))).mean(1)
        return out


def _see(opened: Open, model: nn.Module) -> None:
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    patterns = torch.randn(6, 3, 8, 8)
    for _ in range(12):
        y = torch.randint(6, (16,))
        loss = F.cross_entropy(model(patterns[y] + 0.3 * torch.randn(16, 3, 8, 8)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@fault("mixed-axes", "pixels of one channel", "flatten(2).transpose(1, 2)")
def pixels_by_a_view(opened: Open) -> None:
    _see(opened, _Pixels(lambda h: h.view(len(h), -1, 10)))


@healthy
def pixels_that_change_places(opened: Open) -> None:
    _see(opened, _Pixels(lambda h: h.flatten(2).transpose(1, 2)))


@healthy
def pixels_mixed_on_purpose(opened: Open) -> None:
    """A layer over all pixels of a channel, and one over a row of it."""

    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.all = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(64, 64)
            self.row, self.head = nn.Linear(8, 8), nn.Linear(512, 6)

        def forward(self, x: Tensor) -> Tensor:
            h = self.row(F.relu(self.inner(x)))
            out: Tensor = self.head(self.all(h.flatten(2)).flatten(1))
            return out

    _see(opened, Mixer())
