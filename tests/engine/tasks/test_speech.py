"""Speech: words are told apart, and the Fourier transform stays in FP32 in every precision."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from precgui import config
from precgui.engine.models import LogSpectrogram, SpeechNet
from precgui.engine.tasks import speech
from precgui.events import Evaluated, StepDone
from tests.engine.conftest import Record

QUIET = ("task=speech", "record.tensors=false", "optimizer.name=adamw", "optimizer.lr=5e-3", "data.batch_size=32")


@pytest.fixture
def few_sounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speech, "_SOUNDS", (480, 120))


def test_that_words_are_told_apart(record: Record, few_sounds: None) -> None:
    events = record(*QUIET, "train.max_steps=75", "train.epochs=5")
    losses = [event.loss for event in events if isinstance(event, StepDone)]
    assert losses[0] == pytest.approx(math.log(len(speech.WORDS)), rel=0.25), "at first all words are equally likely"
    assert [event.accuracy for event in events if isinstance(event, Evaluated)][-1] > 0.6  # chance: 0.1


def test_that_sounds_are_the_same_for_a_seed_and_others_for_another() -> None:
    words = torch.tensor([0, 5])
    first, again, other = (speech.spoken(words, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.shape == (2, speech.SAMPLES)


def test_that_the_first_vowel_sounds_at_its_resonance(monkeypatch: pytest.MonkeyPatch) -> None:
    """The word of a and i: most power of its begin is below 1.6 kHz, and the end has its own near 2.3 kHz."""
    monkeypatch.setattr(speech, "_NOISE", 0.0)
    words = torch.full((40,), speech.WORDS.index((1, 0)))
    power = LogSpectrogram()(speech.spoken(words, torch.Generator().manual_seed(0))).exp()[:, 0].mean(0)  # [64, 15]
    band = power[30:42].sum(0) / power[:26].sum(0)  # 1.9 to 2.6 kHz over what lies below 1.6 kHz
    assert band[11] > 3 * band[3]


def test_that_the_spectrogram_is_that_of_numpy() -> None:
    sound = torch.randn(3, 2048, generator=torch.Generator().manual_seed(0))
    found = LogSpectrogram()(sound.double())
    windows = np.lib.stride_tricks.sliding_window_view(sound.double().numpy(), 256, axis=1)[:, ::128]
    shape = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(256) / 256)
    power = np.abs(np.fft.rfft(windows * shape))[:, :, :128] ** 2
    expected = np.log(power.reshape(3, 15, 64, 2).mean(3) + 1e-6).transpose(0, 2, 1)
    np.testing.assert_allclose(found[:, 0].numpy(), expected, rtol=1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_that_the_transform_is_in_fp32_whatever_the_sound_comes_in(dtype: torch.dtype) -> None:
    """A power above 65504, which FP16 does not hold, and silence, of which the logarithm of FP16 would be -Inf."""
    loud = 8 * torch.sin(torch.arange(2048) * 0.5).expand(1, -1).to(dtype)
    net = SpeechNet("small", 10).to(dtype).eval()
    with torch.autocast("cpu", torch.bfloat16):
        spectrum = net.spectrogram(loud)
    assert spectrum.dtype == torch.float32
    assert spectrum.exp().max() > 65504
    torch.testing.assert_close(spectrum, net.spectrogram(loud.float()))
    assert torch.isfinite(net.spectrogram(torch.zeros(1, 2048, dtype=dtype))).all()
    assert net(loud).dtype == dtype


@pytest.mark.parametrize("precision", ["bf16-amp", "bf16-pure", "fp64", "emulated:e5m2", "int8-qat", "mxfp8"])
def test_that_speech_trains_in_every_kind_of_precision(record: Record, few_sounds: None, precision: str) -> None:
    quick = ("qat.start_epoch=1", "qat.observers_off_after_epoch=1", "qat.freeze_bn_after_epoch=1", "qat.measure=false")
    events = record(*QUIET, *quick, f"precision={precision}", "train.max_steps=3", "train.epochs=1")
    losses = [event.loss for event in events if isinstance(event, StepDone)]
    assert len(losses) == 3
    assert all(map(math.isfinite, losses))


def test_that_the_recipe_names_its_data(few_sounds: None) -> None:
    task = speech.Speech(config.load("speech-quick", ["device=cpu"]))
    assert task.facts["classes"] == 10
    assert sum(p.numel() for p in task.model().parameters()) < 20_000
