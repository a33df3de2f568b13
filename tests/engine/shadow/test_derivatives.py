"""Operations written anew for the replay: the values of torch's own kernels, and right derivatives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from precgui.engine.shadow.derivatives import DIFFERENTIABLE
from precgui.engine.shadow.numbering import MemoryLayout, flatten, overlap, read_through, write_through

aten = torch.ops.aten


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def _group(kind: str) -> tuple[Any, ...]:
    x, weight, bias = _random(2, 4, 3, 3), _random(4), _random(4)
    if kind == "group":
        return x, weight, bias, 2, 4, 9, 2, 1e-5
    return x, weight, bias, torch.zeros(4).double(), torch.ones(4).double(), True, 0.1, 1e-5


CALLS: dict[Any, tuple[Any, ...]] = {
    aten.gelu_backward.default: (_random(5), _random(1, 5)[0]),
    aten.silu_backward.default: (_random(5), _random(1, 5)[0]),
    aten.mish_backward.default: (_random(5), _random(1, 5)[0]),
    aten.hardsigmoid_backward.default: (_random(5), _random(1, 5)[0] * 4),
    aten.native_group_norm.default: _group("group"),
    aten.native_group_norm_backward.default: (
        _random(2, 4, 3, 3), _random(2, 4, 3, 3), _random(2, 2), _random(2, 2).abs(), _random(4), 2, 4, 9, 2, [True] * 3
    ),
    aten.native_batch_norm.default: _group("batch"),
    aten.native_batch_norm_backward.default: (
        _random(2, 4, 3, 3), *_group("batch")[:2], None, None, _random(4), _random(4).abs(), True, 1e-5, [True] * 3
    ),
}  # fmt: skip


def _cloned(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(a.clone() if isinstance(a, Tensor) else a for a in arguments)


@pytest.mark.parametrize("operation", CALLS, ids=str)
def test_that_the_values_are_those_of_the_kernel(operation: Any) -> None:
    arguments = CALLS[operation]
    ours, theirs = DIFFERENTIABLE[operation](*_cloned(arguments)), operation(*_cloned(arguments))
    pairs = zip(ours, theirs, strict=True) if isinstance(theirs, tuple) else [(ours, theirs)]
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)  # torch's hardsigmoid has 1/6 in FP32


@pytest.mark.parametrize("operation", CALLS, ids=str)
def test_that_the_derivatives_are_those_of_differences(operation: Any) -> None:
    arguments = CALLS[operation]
    places = [i for i, a in enumerate(arguments) if isinstance(a, Tensor)][:3]

    def called(*tensors: Tensor) -> Any:
        given = list(arguments)
        for place, tensor in zip(places, tensors, strict=True):
            given[place] = tensor
        result = DIFFERENTIABLE[operation](*given)
        return tuple(r for r in result if r is not None) if isinstance(result, tuple) else result

    assert torch.autograd.gradcheck(called, tuple(arguments[p].clone().requires_grad_() for p in places))


def test_that_memory_seen_through_another_geometry_is_differentiated() -> None:
    whole, part = _random(3, 4).requires_grad_(), _random(3, 2).requires_grad_()
    left, right = (MemoryLayout((3, 2), (4, 1), offset, torch.float64) for offset in (0, 2))

    def through(base: Tensor, value: Tensor) -> Tensor:
        return read_through(write_through(flatten(base, (3, 4), (4, 1)), value, left), right)

    assert torch.autograd.gradcheck(through, (whole, part))
    assert not overlap(left, right)
    assert overlap(left, MemoryLayout((12,), (1,), 0, torch.float64))
