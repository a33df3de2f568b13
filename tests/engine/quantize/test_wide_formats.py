"""Formats at least as wide as the tensor's type, and ends between two of its numbers, against rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from precgui.engine.quantize.elements import quantize
from precgui.formats.arrays import quantize_array
from precgui.formats.model import FloatFormat
from precgui.formats.real import finite, to_float
from precgui.formats.registry import get
from precgui.formats.rounding import Overflow, RoundingMode

NAMES = ("e8m23fn", "e9m23fn", "e10m23fnuz", "e8m24fnuz", "e8m23", "e11m52fn", "e12m60fnuz", "e7m65", "e6m53", "e5m30",
         "e5m30fn", "e4m60fnuz", "e7m24", "e8m22fn", "e11m53fn")  # fmt: skip
RNG = np.random.default_rng(5)


def expected(value: float, fmt: FloatFormat, rounding: str, overflow: str, held: type[np.floating]) -> float:
    """The number of `fmt` that a value becomes, by fractions, as the nearest number of the type."""
    negative = math.copysign(1.0, value) < 0
    if math.isnan(value):
        return math.nan
    beyond = math.inf if fmt.has_inf else math.nan if fmt.has_nan else _held(fmt.max_finite, held)
    largest = _held(fmt.max_finite, held)
    if math.isinf(value):
        result = largest if overflow == "saturate" else beyond
        return math.copysign(result, value)
    exact = abs(Fraction(value))
    exponent = max(_floor_log2(exact), fmt.emin) if exact else fmt.emin
    quantum = Fraction(2) ** (exponent - fmt.mantissa_bits)
    whole, rest = divmod(exact, quantum)
    up = rest * 2 > quantum or (rest * 2 == quantum and whole % 2 == 1) if rounding == "nearest_even" else False
    rounded = (whole + up) * quantum
    if rounded > fmt.max_finite:
        kept = overflow == "saturate" or rounding == "toward_zero"
        return math.copysign(largest if kept else beyond, value)
    result = _held(rounded, held)
    return math.copysign(result, value) if result or (negative and fmt.has_negative_zero) else 0.0


def _held(value: Fraction, held: type[np.floating]) -> float:
    """The nearest number of a type, infinity beyond it."""
    with np.errstate(over="ignore"):
        return float(held(to_float(finite(value))))


def _down(value: Fraction, held: type[np.floating]) -> float:
    """The largest finite number of a type up to a value."""
    top = float(np.finfo(held).max)
    if value >= Fraction(top):
        return top if value == Fraction(top) else math.inf
    near = held(float(value))
    return float(near if Fraction(float(near)) <= value else np.nextafter(near, held(0)))


def _floor_log2(value: Fraction) -> int:
    estimate = value.numerator.bit_length() - value.denominator.bit_length()
    return estimate if Fraction(2) ** estimate <= value else estimate - 1


def hard(fmt: FloatFormat, held: type[np.floating]) -> np.ndarray:
    """Numbers at the ends of a format and of a type, and any bits."""
    word = np.uint32 if held is np.float32 else np.uint64
    any_bits = RNG.integers(0, np.iinfo(word).max, 400, dtype=word, endpoint=True).view(held)
    ends = [0.0, float(fmt.min_positive), float(np.finfo(held).max), float(np.finfo(held).smallest_subnormal), math.inf]
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        near = held(_down(fmt.max_finite, held))
        ends += [float(near), float(np.nextafter(near, held(np.inf))), float(np.nextafter(near, held(0)))]
        positive = np.concatenate([np.array(ends, held), any_bits])
        return np.concatenate([positive, -positive, np.array([np.nan], held)])


@pytest.mark.parametrize("overflow", ["ieee", "saturate"])
@pytest.mark.parametrize("rounding", ["nearest_even", "toward_zero"])
@pytest.mark.parametrize("name", NAMES)
def test_that_wide_formats_round_as_fractions_do(name: str, rounding: RoundingMode, overflow: Overflow) -> None:
    fmt = get(name)
    assert isinstance(fmt, FloatFormat)
    for held in (np.float32, np.float64):
        values = hard(fmt, held)
        found = quantize(torch.from_numpy(values), name, rounding=rounding, overflow=overflow).numpy()
        wanted = np.array([expected(float(value), fmt, rounding, overflow, held) for value in values], held)
        same = (found == wanted) & (np.signbit(found) == np.signbit(wanted)) | np.isnan(found) & np.isnan(wanted)
        assert same.all(), list(zip(values[~same], found[~same], wanted[~same], strict=True))[:5]


def test_that_a_wide_format_rounds_alike_in_both_types() -> None:
    values = torch.tensor([math.inf, -math.inf, -0.0, 2.0**64, -(2.0**64), 1.5])
    for name in NAMES:
        single, double = quantize(values, name), quantize(values.double(), name)
        assert torch.equal(single.isnan(), double.isnan()), name
        assert torch.equal(single.nan_to_num(7.0), double.float().nan_to_num(7.0)), name
        assert torch.equal(single.signbit() & ~single.isnan(), double.signbit() & ~double.isnan()), name


def test_that_a_format_ends_between_two_doubles() -> None:
    fmt = get("e7m65")
    assert isinstance(fmt, FloatFormat)
    for dtype in (torch.float32, torch.float64):
        below = 2.0**64 - 2.0**40
        assert quantize(torch.tensor([2.0**64, below], dtype=dtype), "e7m65").tolist() == [math.inf, below]
    assert np.isinf(quantize_array([2.0**64], fmt)).all()
