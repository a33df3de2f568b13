"""Single numbers in 16 bits are followed with their values without rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from precgui.engine.exact_scalars import ExactScalars
from precgui.engine.torch_private import TorchDispatchMode

_OLD = {torch.bfloat16: torch.tensor(0.9981, dtype=torch.bfloat16), torch.float16: torch.ones((), dtype=torch.float16)}


def _followed(compute: Callable[[], Tensor]) -> tuple[ExactScalars, Tensor]:
    scalars = ExactScalars(lambda tensor: any(tensor is each for each in _OLD.values()))

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            scalars.observe(func, args, out)
            return out

    with Mode():
        result = compute()
    return scalars, result


@pytest.mark.parametrize(
    "compute",
    [
        lambda: torch.tensor(0.9981).bfloat16(),
        lambda: 1 - torch.tensor(0.0019).bfloat16(),
        lambda: torch.full((), 0.9981, dtype=torch.bfloat16),
        lambda: 1 - (1 - torch.tensor(0.9981).bfloat16()),
    ],
)
def test_that_a_number_that_rounds_to_1_is_known(compute: Callable[[], Tensor]) -> None:
    scalars, result = _followed(compute)
    exact = scalars.get(result)
    assert float(result) == 1 and exact is not None
    assert exact.is_void and not exact.is_assumed and exact.value == pytest.approx(0.9981, abs=1e-6)


@pytest.mark.parametrize("dtype", _OLD)
def test_that_of_an_old_1_the_middle_is_assumed(dtype: torch.dtype) -> None:
    scalars, result = _followed(lambda: 1 - _OLD[dtype])
    exact = scalars.get(result)
    assert float(result) == 0 and exact is not None and exact.is_assumed and exact.is_void
    assert float(torch.tensor(1 - exact.value, dtype=dtype)) == pytest.approx(1) != 1 - exact.value


@pytest.mark.parametrize("compute", [lambda: torch.ones((), dtype=torch.bfloat16), lambda: torch.ones(()) / 3])
def test_that_an_exact_number_is_not_void(compute: Callable[[], Tensor]) -> None:
    scalars, result = _followed(compute)
    exact = scalars.get(result)
    assert exact is None or not exact.is_void


def test_that_products_with_such_numbers_are_known() -> None:
    tensor = torch.ones(4, dtype=torch.bfloat16)
    scalars, result = _followed(lambda: tensor * (1 - torch.tensor(0.9981).bfloat16()))
    product = scalars.product(result)
    assert product is not None and product[0] is tensor and product[1].value == pytest.approx(0.0019, rel=1e-3)
