"""A network that names the class of every pixel."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_WIDTH = {"small": 12, "medium": 32, "large": 64}


class UNet(nn.Module):
    """U-Net (Ronneberger et al. 2015) with two halvings.

    [batch, 1, pixels, pixels] to logits [batch, classes, pixels, pixels]; `pixels` must be a multiple of four.
    """

    def __init__(self, size: str, classes: int) -> None:
        super().__init__()
        width = _WIDTH[size]
        self.pool = nn.MaxPool2d(2)
        self.grow = nn.Upsample(scale_factor=2)
        self.down1, self.down2 = _pair(1, width), _pair(width, 2 * width)
        self.bottom = _pair(2 * width, 4 * width)
        self.up2, self.up1 = _pair(6 * width, 2 * width), _pair(3 * width, width)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        fine = self.down1(images)
        coarse = self.down2(self.pool(fine))
        x = self.grow(self.bottom(self.pool(coarse)))
        x = self.grow(self.up2(torch.cat((x, coarse), 1)))
        logits: Tensor = self.head(self.up1(torch.cat((x, fine), 1)))
        return logits


def _pair(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before in (inputs, outputs):
        layers += [nn.Conv2d(before, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)
