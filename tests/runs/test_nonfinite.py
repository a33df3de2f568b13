"""Where values that are not finite came up first."""

from __future__ import annotations

import numpy as np
import pytest

from precgui.events import EXPONENT_BINS, TENSOR_STATS, Incident, ModelDescribed, ParameterInfo, TensorStats
from precgui.runs.nonfinite import FirstNonFinite, first_nonfinite, nonfinite_gradients
from tests.runs.synthetic import live_run


def gradients(step: int, bad: set[str]) -> TensorStats:
    names = ("a.weight", "b.weight", "c.weight")
    values = np.ones((3, len(TENSOR_STATS)))
    values[:, TENSOR_STATS.index("nan") : TENSOR_STATS.index("neg_inf") + 1] = 0
    for place, name in enumerate(names):
        values[place, TENSOR_STATS.index("pos_inf")] = 3.0 * (name in bad)
    exponents = np.ones((3, EXPONENT_BINS), np.uint32)
    return TensorStats(step, 0.0, "gradient", names, (1,) * 3, values.tobytes(), exponents.tobytes())


def incident(step: int, kind: str, module: str) -> Incident:
    return Incident(0.0, step, kind, "error", "", module)  # type: ignore[arg-type]


def test_that_the_first_place_is_that_of_the_first_step_forward_before_backward() -> None:
    told = [
        incident(9, "nonfinite_loss", "late"), incident(4, "nonfinite_gradient", "b.weight"),
        incident(4, "nonfinite_activation", "b"), incident(2, "skipped_step", ""),
    ]  # fmt: skip
    assert first_nonfinite(live_run(told)) == FirstNonFinite(4, "forward", "b")
    assert first_nonfinite(live_run(told[:2])) == FirstNonFinite(4, "backward", "b.weight")
    assert first_nonfinite(live_run(told[3:])) is None


@pytest.mark.parametrize("described", [False, True])
def test_that_gradients_are_in_the_order_of_the_backward_pass(described: bool) -> None:
    orders = {"a.weight": 0, "b.weight": 2, "c.weight": 1}  # a model that does not run in its own order
    parameters = tuple(ParameterInfo(n, "parameter", "fp32", (1,), True, True, o) for n, o in orders.items())
    events = [gradients(1, set()), gradients(2, {"a.weight", "c.weight"})]
    run = live_run([*events, ModelDescribed(0.0, (), parameters)] if described else [*events])
    assert nonfinite_gradients(run, 1) == nonfinite_gradients(run, 7) == []
    assert nonfinite_gradients(run, 2) == (["a.weight", "c.weight"] if described else ["c.weight", "a.weight"])
