"""The time of 2:4 sparse products beside dense ones, where a stand-in multiplies."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from precgui.engine.pruning.sparse_kernels import sparse_speed


@pytest.mark.parametrize(("first_s", "least", "most"), [(0.0, 0.4, 2.5), (0.2, 0.4, 2.5)])
def test_that_the_first_call_of_a_sparse_product_is_not_timed(
    first_s: float, least: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It compiles, or chooses a kernel."""
    product, called = nn.functional.linear, list[int]()

    def linear(rows: Tensor, weight: Any) -> Tensor:
        if isinstance(weight, tuple):
            if not called:
                time.sleep(first_s)
            called.append(1)
            weight = weight[0]
        return product(rows, weight)

    monkeypatch.setattr(torch.sparse, "to_sparse_semi_structured", lambda weight: (weight,))
    monkeypatch.setattr(nn.functional, "linear", linear)
    layers = {"fits": nn.Linear(64, 64), "odd": nn.Linear(60, 64)}
    found = sparse_speed(layers, torch.device("cpu"))
    assert list(found) == ["fits"]
    assert least < found["fits"] < most
