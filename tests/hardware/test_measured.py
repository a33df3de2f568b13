"""What kept measurements say of formats."""

from __future__ import annotations

import pytest

from precgui.hardware import measured


@pytest.mark.parametrize(
    ("tops", "spread", "gain"),
    [(2.0, 0.1, 2.0), (0.02, 0.5, 0.02), (1.3, 0.0, 1.3), (1.3, 0.2, None), (0.8, 0.2, None), (0.8, None, 0.8)],
)
def test_that_a_gain_that_lies_within_the_spread_of_both_rates_is_not_known(
    tops: float, spread: float | None, gain: float | None
) -> None:
    rows = [{"format": "fp32", "tops": 1.0, "spread": spread}, {"format": "bf16", "tops": tops, "spread": spread}]
    assert measured.gain("card", [{"device": {"name": "card"}, "gemm": rows}]) == gain
