"""Norms and sizes of 0 divide nothing: a quotient that does not exist accuses nobody."""

from __future__ import annotations

import numpy as np
import pytest

from precgui.events import Event
from precgui.runs.diagnosis import examine
from precgui.runs.diagnosis.analysis import update_ratios
from precgui.runs.diagnosis.measurements import Measurements
from tests.runs.diagnosis.hand_made import FALLING, run_of, steps, tensors


@pytest.mark.parametrize(("other", "accused"), [(1.0, False), (2.0**-36, True)])
def test_that_a_gradient_of_exactly_zero_is_lost_only_beside_gradients_as_small_as_the_range(
    other: float, accused: bool
) -> None:
    events: list[Event] = [*steps(FALLING, scale=[2.0**16] * len(FALLING))]
    for step in range(1, 60, 4):
        gradients = {
            "head.weight": {"amax": 1.5 * other, "amin_nonzero": 1.25 * other, "l2": 12.0 * other, "rms": other},
            "aux.weight": {"amax": 0.0, "amin_nonzero": np.nan, "l2": 0.0, "rms": 0.0, "count": 900.0, "zeros": 900.0},
        }
        events.append(tensors(step, "gradient", gradients))
    found = examine(run_of(events, "fp16-amp"))
    assert ("gradient-underflow" in {each.rule for each in found.problems}) is accused
    assert ("gradient-underflow" in {each.rule for each in found.ruled_out}) is not accused


def test_that_weights_of_exactly_zero_make_no_update_large() -> None:
    events: list[Event] = [
        *steps([2.0] * 20),
        tensors(0, "weight", {"w": {"l2": 0.0, "amax": 0.0}}),
        *(tensors(step, "update", {"w": {"l2": 0.1, "amax": 0.1, "changed": 1.0}}) for step in (1, 10)),
    ]
    assert np.isnan(update_ratios(Measurements(run_of(events)))[1]).all()


def test_that_updates_whose_changes_are_unknown_are_no_proof_that_weights_stay() -> None:
    rows = [tensors(step, "update", {"w": {"l2": 0.1, "amax": 0.1}}) for step in (1, 10, 20)]
    assert "weights-unchanged" not in {each.rule for each in examine(run_of([*steps(FALLING), *rows])).findings}
