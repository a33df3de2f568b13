"""Arithmetic on numbers that a training may have."""

from __future__ import annotations

import math

import pytest
import torch

from precgui.engine.extended_arithmetic import exact_sum, inverse


@pytest.mark.parametrize("scale", [0.0, -0.0, 5e-324, 2.0**-149, 1.0, -2.0, 2.0**128, math.inf, -math.inf, math.nan])
def test_that_a_scale_is_inverted_as_the_scaler_does(scale: float) -> None:
    expected = torch.tensor(scale, dtype=torch.float64).reciprocal().item()
    assert repr(inverse(scale)) == repr(expected)


@pytest.mark.parametrize(
    ("values", "expected"),
    [([1e308, 1e308], math.inf), ([math.inf, -math.inf], math.nan), ([math.nan, 1.0], math.nan), ([0.1] * 10, 1.0)],
)
def test_that_a_sum_of_any_numbers_has_a_value(values: list[float], expected: float) -> None:
    assert repr(exact_sum(values)) == repr(expected)
