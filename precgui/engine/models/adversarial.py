"""A generator of digits and a discriminator of generated and real ones, as one model."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

NOISE = 32
_WIDTH = {"small": 128, "medium": 512, "large": 2048}


class GanOutput(NamedTuple):
    """Logits [batch] that an image is real, and the images [batch, 1, 8, 8] of the generator."""

    real: Tensor
    generated: Tensor  # of generated images, detached: trains the discriminator
    generated_live: Tensor  # of the same images by fixed discriminator weights: trains the generator
    images: Tensor


class GanNetworks(nn.Module):
    """Both networks of a GAN (Goodfellow et al. 2014), trained at once by one optimizer.

    Inputs are noise [batch, 32] and real images [batch, 1, 8, 8] in 0..1. No gradient reaches the generator through
    `generated`, nor the discriminator through `generated_live`: one backward pass of both losses trains both.
    """

    def __init__(self, size: str) -> None:
        super().__init__()
        width = _WIDTH[size]
        self.generator = nn.Sequential(
            nn.Linear(NOISE, width), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Linear(width, 64), nn.Sigmoid(), nn.Unflatten(1, (1, 8, 8)),
        )  # fmt: skip
        self.discriminator = nn.Sequential(
            nn.Flatten(), nn.Linear(64, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2),
            nn.Linear(width, 1), nn.Flatten(0),
        )  # fmt: skip

    def forward(self, inputs: tuple[Tensor, Tensor]) -> GanOutput:
        noise, real = inputs
        images = self.generator(noise)
        judged = self.discriminator(torch.cat((real, images.detach().to(real.dtype))))
        return GanOutput(judged[: len(real)], judged[len(real) :], self._judged_by_a_still_one(images), images)

    def _judged_by_a_still_one(self, images: Tensor) -> Tensor:
        parameters = [p for p in self.discriminator.parameters() if p.requires_grad]
        for parameter in parameters:
            parameter.requires_grad_(False)
        logits: Tensor = self.discriminator(images)
        for parameter in parameters:
            parameter.requires_grad_(True)
        return logits
