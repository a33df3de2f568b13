"""Words made of vowels that are synthesised on the spot: which of ten words was said."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from precgui.engine.models.speech import SpeechNet
from precgui.engine.tasks.base import Classification, DatasetTask, InMemory

if TYPE_CHECKING:
    from precgui.config import RunConfig

RATE_HZ = 8000
SAMPLES = 2048  # a quarter of a second
_SOUNDS = (1200, 300)  # to train and to validate
# First and second resonance of the vowels i, a, u, e, o in Hz (Peterson and Barney 1952, men, rounded).
_VOWELS_HZ = ((270.0, 2290.0), (730.0, 1090.0), (300.0, 870.0), (530.0, 1840.0), (570.0, 840.0))
WORDS = ((0, 1), (1, 0), (2, 1), (1, 2), (3, 4), (4, 3), (0, 2), (2, 0), (3, 1), (1, 3))  # two vowels each
_HARMONICS = 24
_RESONANCE_HZ = 90.0  # width
_NOISE = 0.3  # of the loudest sample


def spoken(words: Tensor, draw: torch.Generator) -> Tensor:
    """Each word [count] as a sound [count, 2048] at 8 kHz: a voice of its own pitch, size, pace, loudness, and noise.

    A voice is a sum of harmonics, each as loud as the resonances of the vowel of its moment let through.
    """
    count = len(words)
    time_s = torch.arange(SAMPLES) / RATE_HZ

    def some(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, 1, generator=draw)

    pitch_hz, size, loudness = some(90, 220), some(0.85, 1.15), some(0.1, 1.0)
    turn_s, pace_s, start_s, end_s = some(0.09, 0.16), some(0.008, 0.03), some(0.0, 0.04), some(0.21, 0.25)
    second = torch.sigmoid((time_s - turn_s) / pace_s)  # from the first vowel to the second
    vowels = torch.tensor(_VOWELS_HZ)[torch.tensor(WORDS)[words]]  # [count, 2 vowels, 2 resonances]
    resonances = (vowels[:, :1] * (1 - second)[:, :, None] + vowels[:, 1:] * second[:, :, None]) * size[:, :, None]
    phase = 2 * math.pi * pitch_hz * time_s
    sound, before, tone, twice = torch.zeros(count, SAMPLES), torch.zeros_like(phase), phase.sin(), 2 * phase.cos()
    for harmonic in range(1, _HARMONICS + 1):
        distance = (harmonic * pitch_hz[:, :, None] - resonances) / _RESONANCE_HZ
        sound += tone * (1 / (1 + distance.square())).sum(2) / harmonic**0.5
        before, tone = tone, twice * tone - before  # sin((n + 1) x) = 2 cos(x) sin(n x) - sin((n - 1) x)
    open_mouth = torch.sigmoid((time_s - start_s) / 0.005) * torch.sigmoid((end_s - time_s) / 0.005)
    sound = sound * open_mouth
    sound = sound / sound.abs().amax(1, keepdim=True) + _NOISE * torch.randn(count, SAMPLES, generator=draw)
    return sound * loudness


class Speech(Classification, DatasetTask):
    """Sounds for training and for validation come from different voices. `outputs` are logits [batch, 10]."""

    def __init__(self, config: RunConfig) -> None:
        sets = []
        for place, count in enumerate(_SOUNDS):
            draw = torch.Generator().manual_seed(2 * config.seed + place)
            words = torch.randint(len(WORDS), (count,), generator=draw)
            sets.append(InMemory(spoken(words, draw), words))
        super().__init__(config, sets[0], sets[1], _SOUNDS[0])
        self.facts: Mapping[str, Any] = {
            "training_samples": _SOUNDS[0], "validation_samples": _SOUNDS[1], "sampling_hz": RATE_HZ,
            "samples_of_a_sound": SAMPLES, "classes": len(WORDS),
        }  # fmt: skip

    def model(self) -> nn.Module:
        return SpeechNet(self.config.model.size, len(WORDS))
