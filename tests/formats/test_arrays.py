"""The array form against the exact form and against ml_dtypes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from precgui.formats.arrays import decode_table, quantize_array, values_of
from precgui.formats.codec import decode, encode
from precgui.formats.real import from_float, to_float
from precgui.formats.registry import formats, get
from precgui.formats.rounding import OVERFLOWS, ROUNDINGS, CastPolicy, Overflow, RoundingMode, draw
from tests.formats.references import ML_DTYPES, all_values, bits_equal, hard_inputs

NAMES = [*formats(), "e5m7", "e0m5", "e5m0", "e3m2_ieee", "e2m2fn", "ue4m2"]


@pytest.mark.parametrize("name", [n for n in ML_DTYPES if n != "e8m0"])
def test_that_arrays_round_as_ml_dtypes_does(name: str) -> None:
    inputs = hard_inputs(all_values(name, get(name).bits), limit=70_000)
    with np.errstate(all="ignore"):
        theirs = inputs.astype(ML_DTYPES[name]).astype(np.float64)
    assert bits_equal(quantize_array(inputs, get(name)), theirs).all()


@pytest.mark.parametrize("overflow", OVERFLOWS)
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("name", NAMES)
def test_that_arrays_and_single_values_agree(name: str, rounding: RoundingMode, overflow: Overflow) -> None:
    fmt, cast_policy = get(name), CastPolicy(rounding, overflow)
    rng = np.random.default_rng(NAMES.index(name) * 10 + ROUNDINGS.index(rounding))
    inputs = rng.uniform(-1, 1, 60) * 2.0 ** rng.integers(-12, 12, 60)
    inputs[:8] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e38, -1e38, 1e-44]
    ours = quantize_array(inputs, fmt, cast_policy, seed=9)
    exact = [
        to_float(decode(encode(from_float(v), fmt, cast_policy, draw(9, i)), fmt).real) for i, v in enumerate(inputs)
    ]
    assert bits_equal(ours, exact).all()


def test_that_nan_in_a_format_without_one_follows_the_convention() -> None:
    fmt = get("e2m1")
    assert np.signbit(quantize_array(np.nan, fmt))
    assert quantize_array(np.nan, fmt, CastPolicy(nan="max")) == 6
    assert np.array(np.nan, np.float32).astype(ml_dtypes.float4_e2m1fn).astype(float) == 0


def test_that_shape_is_kept_and_wider_formats_keep_every_double() -> None:
    assert quantize_array(np.ones((2, 3, 0)), get("fp16")).shape == (2, 3, 0)
    assert quantize_array(1.0, get("fp16")).shape == ()
    doubles = np.random.default_rng(2).integers(0, 2**64, 5000, dtype=np.uint64).view(np.float64)
    assert bits_equal(quantize_array(doubles, get("e15m112")), doubles).all()


@pytest.mark.parametrize("name", ["e4m3fn", "e2m1", "int4", "nf4", "fp16"])
def test_that_the_list_of_values_is_complete_and_sorted(name: str) -> None:
    fmt = get(name)
    values, table = values_of(fmt), decode_table(fmt)
    assert (np.diff(values) > 0).all()
    assert set(values) == set(table[np.isfinite(table)])
    with pytest.raises(ValueError, match="too many"):
        values_of(get("fp32"))
