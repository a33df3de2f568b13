"""A network that names a spoken word from its sound: a spectrogram in FP32, and convolutions over it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_WIDTH = {"small": 8, "medium": 32, "large": 96}
WINDOW, HOP = 256, 128  # samples
_POOLED = 2  # neighbouring frequencies
_FLOOR = 1e-6  # of the power, below what FP16 holds


class LogSpectrogram(nn.Module):
    """The logarithm of the power spectrum of windows of a sound: [batch, 2048] to [batch, 1, 64, 15].

    It is computed in FP32 or FP64, whatever the sound comes in: torch has no Fourier transform in BF16, the power of a
    loud sound overflows in FP16, and that of silence is below its smallest number. It has no gradient to hand on.
    """

    @torch.no_grad()
    def forward(self, sounds: Tensor) -> Tensor:
        exact = sounds if sounds.dtype == torch.float64 else sounds.float()
        windows = exact.unfold(1, WINDOW, HOP)
        shape = torch.hann_window(WINDOW, dtype=exact.dtype, device=exact.device)
        spectrum = torch.view_as_real(torch.fft.rfft(windows * shape))[:, :, : WINDOW // 2]
        power = spectrum.square().sum(3).unflatten(2, (-1, _POOLED)).mean(3)
        spectrogram: Tensor = (power + _FLOOR).log().transpose(1, 2).unsqueeze(1)
        return spectrogram


class SpeechNet(nn.Module):
    """Spectrogram, three convolutions with batch norm, and a linear layer; output: logits [batch, words]."""

    def __init__(self, size: str, words: int) -> None:
        super().__init__()
        width = _WIDTH[size]
        self.spectrogram = LogSpectrogram()
        self.features = nn.Sequential(
            nn.BatchNorm2d(1), *_layer(1, width), *_layer(width, 2 * width), *_layer(2 * width, 2 * width)
        )
        self.head = nn.Linear(2 * width * 8 * 1, words)

    def forward(self, sounds: Tensor) -> Tensor:
        spectra = self.spectrogram(sounds).to(self.head.weight.dtype)
        logits: Tensor = self.head(self.features(spectra).flatten(1))
        return logits


def _layer(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    return convolution, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)
