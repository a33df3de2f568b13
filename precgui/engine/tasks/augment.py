"""Changes of images that leave their classes as they are: the data of an epoch are then never those of another."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_PADDING = 8  # one pixel at each side for so many of the edge: 4 of 32 pixels, as He et al. 2016 have it


def augmented(images: Tensor, draw: torch.Generator, *, mirror: bool) -> Tensor:
    """Each image [channels, pixels, pixels] moved at random within a border of zeros; half of them mirrored."""
    count, channels, pixels, _ = images.shape
    border = max(1, pixels // _PADDING)
    padded = nn.functional.pad(images, [border] * 4)
    tops, lefts = torch.randint(2 * border + 1, (2, count, 1), generator=draw)
    rows, columns = tops + torch.arange(pixels), lefts + torch.arange(pixels)
    if mirror:
        columns = torch.where(torch.rand(count, 1, generator=draw) < 0.5, columns, columns.flip(1))
    across = columns[:, None, None, :].expand(-1, channels, padded.shape[2], -1)
    down = rows[:, None, :, None].expand(-1, channels, -1, pixels)
    return padded.gather(3, across).gather(2, down)
