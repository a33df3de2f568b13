"""The networks a run can train, built from the config."""

from __future__ import annotations

from torch import Tensor, nn

_CHANNELS = {"small": 16, "medium": 48, "large": 128}


class Cnn(nn.Module):
    """Three convolutions with batch norm and a linear layer, for single-channel images of 8x8.

    Input [batch, 1, 8, 8], output logits [batch, 10].
    """

    def __init__(self, size: str) -> None:
        super().__init__()
        width = _CHANNELS[size]
        self.features = nn.Sequential(
            *_block(1, width),
            *_block(width, 2 * width),
            nn.MaxPool2d(2),
            *_block(2 * width, 2 * width),
            nn.MaxPool2d(2),
        )
        self.head = nn.Linear(2 * width * 2 * 2, 10)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(images).flatten(1))
        return logits


def _block(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
