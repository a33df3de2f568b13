"""Operations written anew for the replay: the values of torch's own kernels, and right derivatives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import precgui
from precgui.engine.shadow import semantics
from precgui.engine.shadow.derivatives import DIFFERENTIABLE
from precgui.engine.shadow.numbering import MemoryLayout, flatten, overlap, read_through, write_through
from precgui.engine.shadow.step import Shadow

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
    aten.native_layer_norm_backward.default: (
        _random(2, 3, 4), _random(2, 3, 4) * 2, [3, 4], _random(2, 1, 1).requires_grad_(), _random(2, 1, 1).abs(),
        _random(3, 4), _random(4, 3).mT, [True] * 3,
    ),
    aten.native_batch_norm.default: _group("batch"),
    aten.native_batch_norm_backward.default: (
        _random(2, 4, 3, 3), *_group("batch")[:2], None, None, _random(4), _random(4).abs(), True, 1e-5, [True] * 3
    ),
    aten._weight_norm_interface_backward.default: (
        _random(3, 4, 2), _random(3, 4, 2) * 2, _random(3, 1, 1), _random(1, 3, 1).reshape(3, 1, 1).abs(), 0
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


def _first(layer: nn.Module, dtype: torch.dtype | None, sample: Tensor) -> Shadow:
    """A step in which nothing before the layer makes an error."""
    torch.manual_seed(0)
    end = nn.Linear(16, 3)

    def step() -> Tensor:
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            loss = end(layer(sample).flatten(-2)).float().pow(2).mean()
        loss.backward()
        return loss

    return precgui.shadow(step, [*layer.parameters(), *end.parameters()])


FIRST: dict[str, nn.Module] = {
    "layer norm": nn.LayerNorm((4, 4)), "layer norm of rows": nn.LayerNorm(4), "RMS norm": nn.RMSNorm(4),
    "group norm": nn.GroupNorm(2, 4), "batch norm": nn.BatchNorm2d(4),
    "instance norm": nn.InstanceNorm2d(4, affine=True),
    "convolution": nn.Conv2d(4, 4, 3, padding=1), "rectifier": nn.PReLU(),
    "softmax": nn.Sequential(nn.Softmax(-1), nn.LayerNorm(4)), "log sigmoid": nn.LogSigmoid(),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, None])
@pytest.mark.parametrize("name", FIRST)
def test_that_the_shares_add_up_where_a_layer_stands_directly_on_the_input(
    name: str, dtype: torch.dtype | None
) -> None:
    sample = torch.randn(4, 4, 4, 4, generator=torch.Generator().manual_seed(0))
    shadow = _first(FIRST[name], dtype, sample)
    assert shadow.explained == pytest.approx(1, abs=0.05)
    assert (shadow.verdict, shadow.notes) == ("healthy", [])


def test_that_an_argument_without_a_derivative_leaves_the_shares_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(semantics.DIFFERENTIABLE, aten.native_layer_norm_backward.default)  # type: ignore[attr-defined]
    sample = torch.randn(4, 4, 4, 4, generator=torch.Generator().manual_seed(0))
    shadow = _first(nn.LayerNorm(4), torch.bfloat16, sample)
    assert shadow.explained == pytest.approx(1, abs=0.05)
    assert "no derivative of native_layer_norm_backward by mean" in shadow.notes[0]


def test_that_memory_seen_through_another_geometry_is_differentiated() -> None:
    whole, part = _random(3, 4).requires_grad_(), _random(3, 2).requires_grad_()
    left, right = (MemoryLayout((3, 2), (4, 1), offset, torch.float64) for offset in (0, 2))

    def through(base: Tensor, value: Tensor) -> Tensor:
        return read_through(write_through(flatten(base, (3, 4), (4, 1)), value, left), right)

    assert torch.autograd.gradcheck(through, (whole, part))
    assert not overlap(left, right)
    assert overlap(left, MemoryLayout((12,), (1,), 0, torch.float64))
