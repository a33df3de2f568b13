"""What the histogram foretells, against real casts of the same numbers."""

from __future__ import annotations

import time

import ml_dtypes
import numpy as np
import pytest

from precgui.events import EXPONENT_BINS, TENSOR_STATS
from precgui.runs.tensors.what_if import WhatIf, format_names, range_of

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


NARROW = {
    "e4m3fn": ml_dtypes.float8_e4m3fn,
    "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "e4m3b11fnuz": ml_dtypes.float8_e4m3b11fnuz,
    "e4m3_ieee": ml_dtypes.float8_e4m3,
    "e3m4_ieee": ml_dtypes.float8_e3m4,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
}


@pytest.mark.parametrize("name", [*NARROW, *CASTS])
def test_that_the_limits_of_every_format_are_where_a_cast_has_them(name: str) -> None:
    """Numbers on both sides of the limits: below `zero_below` all are lost, above it none; so with the others."""
    spans, kind = range_of(name), (NARROW | CASTS)[name]
    about = ml_dtypes.finfo(kind)
    with np.errstate(all="ignore"):
        edge = np.float32(2.0) ** np.float32(spans.zero_below) if spans.zero_below >= -126 else np.float32(2.0**-126)
        lost = np.array([edge, np.nextafter(edge, np.float32(1))]).astype(kind).astype(np.float64)
        assert (lost[0] == 0) == (spans.zero_below >= -126)
        assert lost[1] > 0
        top = np.float32(spans.overflow)
        top = top if float(top) >= spans.overflow else np.nextafter(top, np.float32(np.inf))
        below, above = np.array([np.nextafter(top, np.float32(0)), top]).astype(kind).astype(np.float64)
    assert below == float(about.max)
    assert float(about.smallest_normal) == 2.0**spans.smallest_normal
    assert float(about.smallest_subnormal) == 2.0 ** (spans.zero_below + 1)
    if name not in ("e3m2", "e2m3", "e2m1"):  # which saturate
        assert not np.isfinite(above)


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("log2_scale", [-4, 0, 6, 14, 24])
def test_that_zeros_of_narrow_formats_are_those_of_a_real_cast(name: str, log2_scale: int) -> None:
    tensors = gradients()
    seen = record(tensors).predict(name, log2_scale)
    for place, tensor in enumerate(tensors):
        scaled = tensor * np.float32(2.0**log2_scale)
        with np.errstate(all="ignore"):
            cast = scaled.astype(NARROW[name]).astype(np.float32)
        assert seen.underflow[place] * tensor.size == pytest.approx(np.count_nonzero((cast == 0) & (tensor != 0)))
        beyond = np.count_nonzero(np.abs(scaled) >= range_of(name).overflow) / tensor.size
        assert seen.overflow[place] == pytest.approx(beyond, abs=8e-3)  # the top of one bin is estimated
        assert (seen.overflow[place] > 0) == (beyond > 0)


def test_that_what_is_not_finite_has_no_share() -> None:
    seen = WhatIf(np.eye(2, EXPONENT_BINS, EXPONENT_BINS - 1)[:1] * 9, np.zeros((1, len(TENSOR_STATS)))).predict("fp16")
    for values in (seen.underflow, seen.subnormal, seen.overflow, seen.snr_db, seen.safe_scale):
        assert np.isnan(values).all()


def test_that_tensors_without_elements_are_not_told_about() -> None:
    seen = WhatIf(np.zeros((2, EXPONENT_BINS)), np.zeros((2, len(TENSOR_STATS)))).predict("fp16")
    for values in (seen.underflow, seen.subnormal, seen.overflow, seen.snr_db, seen.safe_scale):
        assert np.isnan(values).all()


def test_that_every_offered_format_can_be_asked_at_any_scale() -> None:
    seen = record(gradients())
    assert {"fp16", "bf16", "e4m3fn", "e5m2", "tf32"} <= set(format_names())
    assert set(format_names()) == {*NARROW, *CASTS, "tf32"}  # none without a sign
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


@pytest.mark.parametrize("name", ["fp64", "e15m60"])
def test_that_formats_beyond_the_range_of_doubles_lose_nothing(name: str) -> None:
    seen = record(gradients())
    told = seen.predict(name)
    assert np.nansum(told.overflow) == np.nansum(told.underflow) == 0
    assert range_of(name).overflow == np.inf
    largest = float(np.nanmax(seen.amax))
    assert np.nanmin(told.safe_scale) == 1024 - np.frexp(largest)[1]
