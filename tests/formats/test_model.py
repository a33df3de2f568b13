"""The numbers that follow from a layout, the registry and its names."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from precgui.formats.codec import canonical_nan, infinity_code
from precgui.formats.model import FloatFormat
from precgui.formats.registry import UnknownFormatError, blocks, formats, get, prose
from tests.formats.references import ML_DTYPES

EXPECTED: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "expected_limits.json").read_text())


def _fraction(text: str | None) -> Fraction | None:
    if text is None:
        return None
    count, _, exponent = text.rpartition("*") if "*" in text else ("1", "", text)
    base, _, power = exponent.partition("^")
    return Fraction(int(count)) * Fraction(int(base)) ** int(power or 1)


@pytest.mark.parametrize("name", EXPECTED)
def test_that_the_limits_are_those_of_the_fact_table(name: str) -> None:
    fmt, row = get(name), EXPECTED[name]
    assert isinstance(fmt, FloatFormat)
    for key in ("max_finite", "min_normal", "max_subnormal", "min_subnormal", "epsilon"):
        assert getattr(fmt, key) == _fraction(row[key]), key
    for key in ("bits", "emin", "emax", "nan_count", "has_negative_zero"):
        assert getattr(fmt, key) == row[key], key
    assert fmt.finite_values == row["distinct_finite_values"]
    assert round(fmt.decimal_digits, 2) == pytest.approx(row["decimal_digits"], abs=0.011)
    if row["overflow"]:
        assert fmt.overflow_midpoint == _fraction(row["overflow"])
        assert fmt.tie_overflows is row["tie_overflows"]
    if row["inf_codes"]:
        assert [infinity_code(fmt), infinity_code(fmt, negative=True)] == [int(c, 16) for c in row["inf_codes"]]
    if row["nan_canonical"]:
        assert canonical_nan(fmt) == int(row["nan_canonical"], 16)


@pytest.mark.parametrize("name", [n for n in ML_DTYPES if n != "fp16"])
def test_that_the_limits_agree_with_finfo(name: str) -> None:
    fmt, info = get(name), ml_dtypes.finfo(ML_DTYPES[name])
    assert isinstance(fmt, FloatFormat)
    assert float(fmt.max_finite) == float(info.max)
    assert fmt.min_normal is not None
    assert float(fmt.min_normal) == float(info.smallest_normal)
    if fmt.min_subnormal is not None:
        assert float(fmt.min_subnormal) == float(info.smallest_subnormal)


def test_that_numpy_agrees_on_the_ieee_formats() -> None:
    for name, dtype in (("fp64", np.float64), ("fp32", np.float32), ("fp16", np.float16)):
        fmt, info = get(name), np.finfo(dtype)
        assert isinstance(fmt, FloatFormat)
        assert fmt.min_subnormal is not None
        assert (float(fmt.max_finite), float(fmt.epsilon)) == (float(info.max), float(info.eps))
        assert float(fmt.min_subnormal) == float(info.smallest_subnormal)


@pytest.mark.parametrize(
    ("alias", "name"),
    [("half", "fp16"), ("bfloat16", "bf16"), ("fp8_e4m3fn", "e4m3fn"), ("float8_e4m3fn", "e4m3fn"), ("double", "fp64"),
     ("torch.float8_e5m2", "e5m2"), ("np.float16", "fp16"), ("FP32", "fp32"), ("E4M3", "e4m3_ieee"),
     ("ml_dtypes.float4_e2m1fn", "e2m1"), ("ue8m0", "e8m0"), ("normalfloat4", "nf4")],
)  # fmt: skip
def test_that_the_spellings_of_libraries_are_known(alias: str, name: str) -> None:
    assert get(alias).name == name


def test_that_custom_formats_follow_their_name() -> None:
    fmt = get("e5m7")
    assert isinstance(fmt, FloatFormat)
    assert (fmt.exponent_bits, fmt.mantissa_bits, fmt.bias, fmt.has_inf) == (5, 7, 15, True)
    wide = get("e15m112")
    assert isinstance(wide, FloatFormat)
    assert wide.max_finite == (2 - Fraction(1, 2**112)) * 2**16383
    assert get("e4m3b8fnuz").max_finite == get("e4m3fnuz").max_finite
    assert get("e2m1_finite").max_finite == get("e2m1").max_finite
    assert get("ue4m3fn").max_finite == 448


def test_that_fixed_point_has_even_steps_below_one() -> None:
    fmt = get("e0m4")
    assert [fmt.value(n) for n in (0, 1, 15)] == [0, Fraction(1, 16), Fraction(15, 16)]
    assert not fmt.has_inf


@pytest.mark.parametrize(
    ("name", "words"),
    [("e16m3", "too wide"), ("e5m113", "too wide"), ("e0m0", "no bits"), ("fp61", "near are fp"),
     ("mxfp4", "block format"), ("e1m0", "no value but zero"), ("", "no number format"),
     ("x" * 500, "no number format")],
)  # fmt: skip
def test_that_an_impossible_name_is_refused_in_one_sentence(name: str, words: str) -> None:
    with pytest.raises(UnknownFormatError, match=words) as caught:
        get(name)
    assert len(str(caught.value)) < 200


def test_that_every_named_format_says_what_it_is_for() -> None:
    for name in (*formats(), *blocks()):
        text = prose(name)
        assert text is not None
        assert text.strengths
        assert text.weaknesses
        assert text.used


def test_that_figures_in_the_words_on_formats_are_those_of_the_formats() -> None:
    """E5M2 was said to err by 12.5 %, and E4M3FNUZ to have one value more than E4M3."""
    errors = {}
    for name in formats():
        text = prose(name)
        assert text is not None
        if named := re.search(r"up to ([\d.]+) % relative error", text.weaknesses):
            errors[name] = float(named[1]), get(name).mantissa_bits
    assert "e5m2" in errors
    for name, (percent, bits) in errors.items():  # halfway between 1 and the next number
        assert percent == pytest.approx(100 / (2 ** (bits + 1) + 1), abs=0.05), name
    assert get("e4m3fnuz").finite_values == get("e4m3fn").finite_values + 2
    more = prose("e4m3fnuz")
    assert more is not None
    assert "two values more" in more.strengths
