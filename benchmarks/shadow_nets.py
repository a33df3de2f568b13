"""Five small networks whose pieces can be replaced by a faulty one, for benchmarks/shadow.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Piece = Callable[[Tensor], Tensor]
VOCABULARY, LENGTH, WIDTH, CLASSES, PIXELS = 64, 24, 32, 10, 16


def _norm(x: Tensor) -> Tensor:
    return F.layer_norm(x.float(), x.shape[-1:]).to(x.dtype)


def _softmax(scores: Tensor) -> Tensor:
    return scores.float().softmax(-1).to(scores.dtype)


@dataclass
class Pieces:
    """The replaceable pieces of one block; each takes and gives [..., features], `scores` [..., query, key]."""

    act: Piece = F.gelu
    norm: Piece = _norm
    rotate: Piece | None = None
    scores: Piece | None = None
    softmax: Piece = _softmax
    head: Piece | None = None
    loss: Callable[[Tensor, Tensor], Tensor] = field(default=lambda o, y: F.cross_entropy(o.float(), y))


class Attention(nn.Module):
    def __init__(self, pieces: Pieces, causal: bool) -> None:
        super().__init__()
        self.pieces, self.causal = pieces, causal
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (t.view(batch, length, 2, -1).transpose(1, 2) for t in self.qkv(x).split(WIDTH, -1))
        if self.pieces.rotate is not None:
            q, k = self.pieces.rotate(q), self.pieces.rotate(k)
        a = (q @ k.transpose(-1, -2)) * (q.shape[-1] ** -0.5)
        if self.pieces.scores is not None:
            a = self.pieces.scores(a)
        if self.causal:
            a = a.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), float("-inf"))
        return self.out((self.pieces.softmax(a) @ v).transpose(1, 2).reshape(batch, length, WIDTH))


class Block(nn.Module):
    def __init__(self, pieces: Pieces, causal: bool) -> None:
        super().__init__()
        self.pieces, self.attention = pieces, Attention(pieces, causal)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.gain1, self.gain2 = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.pieces.norm(x) * self.gain1.to(x.dtype))
        hidden = self.up(self.pieces.norm(x) * self.gain2.to(x.dtype))
        return x + self.down(self.pieces.act(hidden))


def _blocks(pieces: Pieces, causal: bool) -> nn.ModuleList:
    """Three blocks, of which the middle one has the pieces."""
    return nn.ModuleList(Block(pieces if i == 1 else Pieces(), causal) for i in range(3))


class SmallGpt(nn.Module):
    def __init__(self, pieces: Pieces) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks, self.pieces = _blocks(pieces, True), pieces
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        x = _norm(x)
        return self.head(self.pieces.head(x) if self.pieces.head else x).flatten(0, 1)


class SmallViT(nn.Module):
    def __init__(self, pieces: Pieces) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, WIDTH, 4, stride=4)
        self.position = nn.Parameter(torch.randn(16, WIDTH) * 0.1)
        self.blocks, self.pieces = _blocks(pieces, False), pieces
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).mT + self.position
        for block in self.blocks:
            x = block(x)
        x = _norm(x).mean(1)
        return self.head(self.pieces.head(x) if self.pieces.head else x)


class SmallLstm(nn.Module):
    def __init__(self, pieces: Pieces) -> None:
        super().__init__()
        self.token, self.pieces = nn.Embedding(VOCABULARY, WIDTH), pieces
        self.lstm, self.middle = nn.LSTM(WIDTH, WIDTH, 1, batch_first=True), nn.Linear(WIDTH, 2 * WIDTH)
        self.down, self.head = nn.Linear(2 * WIDTH, WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x, _ = self.lstm(self.token(tokens))
        x = x + self.down(self.pieces.act(self.middle(self.pieces.norm(x))))
        return self.head(self.pieces.head(x) if self.pieces.head else x).flatten(0, 1)


def _over_channels(piece: Piece, x: Tensor) -> Tensor:
    return piece(x.movedim(1, -1)).movedim(-1, 1)


class SmallCnn(nn.Module):
    """Batch norm and ReLU, max-pooling: a network with kinks."""

    def __init__(self, pieces: Pieces) -> None:
        super().__init__()
        self.pieces = pieces
        self.conv1, self.norm1 = nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.conv2, self.norm2 = nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.conv3, self.head = nn.Conv2d(32, 64, 3, padding=1), nn.Linear(64, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(images))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        x = _over_channels(self.pieces.act, self.conv3(_over_channels(self.pieces.norm, x)))
        x = x.mean((2, 3))
        return self.head(self.pieces.head(x) if self.pieces.head else x)


class SmallUNet(nn.Module):
    """Down, up, and a skip; one class for each pixel."""

    def __init__(self, pieces: Pieces) -> None:
        super().__init__()
        self.pieces = pieces
        self.enter, self.norm1 = nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16)
        self.down, self.norm2 = nn.Conv2d(16, 32, 3, padding=1, stride=2), nn.GroupNorm(4, 32)
        self.up, self.leave = nn.ConvTranspose2d(32, 16, 2, stride=2), nn.Conv2d(32, 16, 3, padding=1)
        self.head = nn.Conv2d(16, 3, 1)

    def forward(self, images: Tensor) -> Tensor:
        first = F.silu(self.norm1(self.enter(images)))
        low = _over_channels(self.pieces.act, self.down(_over_channels(self.pieces.norm, first)))
        x = F.silu(self.leave(torch.cat((self.up(self.norm2(low)), first), 1)))
        x = _over_channels(self.pieces.head, x) if self.pieces.head else x
        return self.head(x).flatten(2).mT.flatten(0, 1)


NETS: dict[str, Callable[[Pieces], nn.Module]] = {
    "gpt": SmallGpt, "cnn": SmallCnn, "lstm": SmallLstm, "vit": SmallViT, "unet": SmallUNet,
}  # fmt: skip
SMOOTH = ("gpt", "lstm", "vit", "unet")


def batch(net: str, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A batch that can be learned: sequences that count on, images with a bright place."""
    generator = torch.Generator().manual_seed(seed)
    if net in ("gpt", "lstm"):
        start = torch.randint(VOCABULARY, (8, 1), generator=generator)
        tokens = (start + torch.arange(LENGTH + 1) * torch.randint(1, 4, (8, 1), generator=generator)) % VOCABULARY
        return tokens[:, :-1], tokens[:, 1:].flatten()
    labels = torch.randint(CLASSES, (16,), generator=generator)
    images = torch.randn(16, 1, PIXELS, PIXELS, generator=generator) * 0.5
    for image, label in zip(images, labels.tolist(), strict=True):
        image[0, label : label + 5, label : label + 5] += 1.5
    if net == "unet":
        return images, ((images > 1).long() + (images > 0).long()).flatten()
    return images, labels
