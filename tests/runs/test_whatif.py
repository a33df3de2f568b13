"""What the histogram foretells, against real casts of the same numbers."""

from __future__ import annotations

import time

import ml_dtypes
import numpy as np
import pytest

from precgui.events import EXPONENT_BINS, TENSOR_STATS
from precgui.runs.whatif import WhatIf, format_names

CASTS = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16, "e5m2": ml_dtypes.float8_e5m2}


def record(tensors: list[np.ndarray]) -> WhatIf:
    """Histograms and statistics by NumPy."""
    exponents = np.array(
        [np.bincount((t.view(np.uint32) >> 23) & 255, minlength=EXPONENT_BINS) for t in tensors], np.uint32
    )
    stats = np.zeros((len(tensors), len(TENSOR_STATS)))
    stats[:, TENSOR_STATS.index("amax")] = [np.abs(t).max() for t in tensors]
    stats[:, TENSOR_STATS.index("zeros")] = [np.count_nonzero(t == 0) for t in tensors]
    return WhatIf(exponents, stats)


def gradients() -> list[np.ndarray]:
    """Numbers spread like gradients: narrow, wide, heavy-tailed, half zeros."""
    rng = np.random.default_rng(4)
    shapes = [
        rng.normal(size=100_000) * 1e-4,
        rng.lognormal(-14, 4, 100_000) * rng.choice([-1, 1], 100_000),
        rng.standard_t(2, 100_000) * 1e-6,
        np.maximum(rng.normal(size=100_000), 0) * 1e-8,
    ]
    return [shape.astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("name", CASTS)
@pytest.mark.parametrize("log2_scale", [0, 4, 10, 16, 24, 32])
def test_that_zeros_and_infinities_are_those_of_a_real_cast(name: str, log2_scale: int) -> None:
    tensors = gradients()
    seen = record(tensors).predict(name, log2_scale)
    for place, tensor in enumerate(tensors):
        with np.errstate(over="ignore"):
            cast = (tensor * np.float32(2.0**log2_scale)).astype(CASTS[name]).astype(np.float32)
        zeros = np.count_nonzero((cast == 0) & (tensor != 0)) / tensor.size
        assert seen.underflow[place] == pytest.approx(zeros, abs=5e-6)
        infinite = np.count_nonzero(np.isinf(cast)) / tensor.size
        tolerance = 5e-5 if name != "e5m2" else 5e-3  # the top of one bin is estimated, of 100 000 elements
        assert seen.overflow[place] == pytest.approx(infinite, abs=tolerance)
        assert (seen.overflow[place] > 0) == (infinite > 0)


@pytest.mark.parametrize("name", CASTS)
def test_that_the_largest_safe_scale_is_the_last_before_an_overflow(name: str) -> None:
    tensors = gradients()
    for tensor, scale in zip(tensors, record(tensors).predict(name).safe_scale, strict=True):
        with np.errstate(over="ignore"):
            safe, beyond = (np.ldexp(tensor.astype(np.float64), int(scale) + more) for more in (0, 1))
            assert np.isfinite(safe.astype(CASTS[name]).astype(np.float64)).all()
            assert not np.isfinite(beyond.astype(CASTS[name]).astype(np.float64)).all()


@pytest.mark.parametrize("name", CASTS)
@pytest.mark.parametrize("log2_scale", [0, 8, 16])
def test_that_the_signal_to_noise_ratio_is_near_that_of_a_cast(name: str, log2_scale: int) -> None:
    tensors = gradients()[::3]  # of the others a few elements make up the sum
    seen = record(tensors).predict(name, log2_scale)
    for tensor, told in zip(tensors, seen.snr_db, strict=True):
        scaled = tensor.astype(np.float64) * 2.0**log2_scale
        with np.errstate(over="ignore"):
            cast = scaled.astype(np.float32).astype(CASTS[name]).astype(np.float64)
        if np.isinf(cast).any():
            assert told == -np.inf
        else:
            error = np.square(scaled - cast).sum()
            assert told == pytest.approx(10 * np.log10(np.square(scaled).sum() / error), abs=1.5)


def test_that_bounds_are_told_from_exact_predictions() -> None:
    assert WhatIf.is_exact(0)
    assert not WhatIf.is_exact(-1)


def test_that_tensors_without_elements_are_not_told_about() -> None:
    seen = WhatIf(np.zeros((2, EXPONENT_BINS)), np.zeros((2, len(TENSOR_STATS)))).predict("fp16")
    for values in (seen.underflow, seen.subnormal, seen.overflow, seen.snr_db, seen.safe_scale):
        assert np.isnan(values).all()


def test_that_every_offered_format_can_be_asked_at_any_scale() -> None:
    seen = record(gradients())
    assert {"fp16", "bf16", "e4m3fn", "e5m2", "tf32"} <= set(format_names())
    for name in format_names():
        for log2_scale in range(-140, 141, 20):
            told = seen.predict(name, log2_scale)
            shares = told.underflow + told.subnormal + told.overflow
            assert np.all((shares >= 0) & (shares <= 1 + 1e-12))
    with pytest.raises(ValueError, match="int8 has no exponents"):
        seen.predict("int8")


def test_that_two_hundred_tensors_follow_a_slider() -> None:
    rng = np.random.default_rng(0)
    stats = np.ones((200, len(TENSOR_STATS)))
    seen = WhatIf(rng.integers(0, 1000, (200, EXPONENT_BINS)), stats)
    seen.predict("fp16")
    begin = time.process_time()
    for log2_scale in range(60):
        seen.predict("fp16", log2_scale)
    assert time.process_time() - begin < 5  # a sixtieth of a second each is asked for; this only catches a slip
