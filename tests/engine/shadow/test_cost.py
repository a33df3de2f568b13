"""Work that the shadow leaves out, or does in pieces, because nothing would come of it: the answers stay the same."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import precgui
from precgui.engine.shadow.attribution import AdjointReplay
from precgui.engine.shadow.derivatives import PRODUCTS, known_product
from precgui.engine.shadow.record import RecordedStep, record_step
from precgui.engine.shadow.replay import F64, replay_exact
from precgui.engine.shadow.step import Shadow

aten = torch.ops.aten


def recorded(width: int = 300) -> RecordedStep:
    """A step in FP32 whose results have more numbers than are compared at once."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 4))
    x, y = torch.randn(257, 8), torch.randint(4, (257,))

    def step() -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return record_step(step, model.parameters())


def test_that_no_derivative_is_computed_by_what_has_no_error() -> None:
    """Weights and data of FP32 steps are exact; a derivative by them is a matrix product for nothing."""
    step = recorded(16)
    exact = replay_exact(step.tape, step.gradients)
    errors = {id: low - exact[id] for id, low in zip(step.gradients, step.low_gradients, strict=True)}
    balance = AdjointReplay(step.tape, step.gradients)
    with FlopCounterMode(display=False) as counter:
        balance.shares(errors)
    sizes = (257 * 8 * 16, 257 * 16 * 4)  # of the first layer, of the second
    forward, by_weights, by_inputs = sizes[1], 2 * sizes[1] + sizes[0], sizes[1]
    assert counter.get_total_flops() == 2 * (forward + by_weights + by_inputs)


def test_that_shares_in_fp32_are_those_in_fp64() -> None:
    step = recorded()
    requested = [*step.gradients, step.loss]
    exact = replay_exact(step.tape, requested)
    errors = {id: low - exact[id] for id, low in zip(step.gradients, step.low_gradients, strict=True)}
    narrow, wide = (AdjointReplay(step.tape, requested, dtype).shares(errors) for dtype in (torch.float32, F64))
    assert narrow.by_operation == pytest.approx(wide.by_operation, rel=1e-4, abs=1e-6)
    assert wide.explained == pytest.approx(1, abs=0.02)


def test_that_products_of_fp32_are_not_computed_again_for_derivatives_in_fp32() -> None:
    step = recorded(16)
    with FlopCounterMode(display=False) as counter:
        AdjointReplay(step.tape, step.gradients, torch.float32)
    assert counter.get_total_flops() == 0


@pytest.mark.parametrize("function", sorted(PRODUCTS, key=str), ids=str)
def test_that_a_known_product_has_the_derivatives_of_the_product(function: Any) -> None:
    torch.manual_seed(0)
    shapes = {aten.mm.default: ((3, 4), (4, 5)), aten.bmm.default: ((2, 3, 4), (2, 4, 5))}
    sizes = shapes.get(function, ((5,), (3, 4), (4, 5)))
    arguments = [torch.randn(size, dtype=F64, requires_grad=True) for size in sizes]
    result = function(*arguments)
    known = known_product(function, result.detach(), arguments)
    adjoint = torch.randn_like(result)
    torch.testing.assert_close(known, result)
    for one, other in zip(
        torch.autograd.grad(known, arguments, adjoint), torch.autograd.grad(result, arguments, adjoint), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_that_shares_can_be_asked_for_twice_where_that_was_said() -> None:
    step = recorded(16)
    errors = {step.loss: torch.full((), 1e-7, dtype=F64)}
    balance = AdjointReplay(step.tape, [step.loss])
    first = balance.shares(errors, again=True)
    assert first.by_operation
    assert balance.shares(errors).by_operation == first.by_operation
    with pytest.raises(RuntimeError, match="second time"):
        balance.shares(errors)


@pytest.mark.parametrize("blocks", [0, 3])
def test_that_a_shadow_leaves_nothing_in_memory(monkeypatch: pytest.MonkeyPatch, blocks: int) -> None:
    monkeypatch.setattr("precgui.engine.shadow.blockwise.GraphMemory.blocks", blocks)
    shadow = Shadow(recorded(16))
    assert shadow.shares.by_operation
    errors = [weakref.ref(e) for o in shadow.step.tape.operations for e in o.local_errors if e is not None]
    assert errors
    del shadow
    gc.collect()
    assert not any(error() is not None for error in errors)


def test_that_a_step_without_any_error_has_no_shares_and_no_verdict_on_a_line() -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(4, 1).double(), torch.randn(3, 4, dtype=F64)

    def step() -> Tensor:
        loss = model(x).square().mean()
        loss.backward()
        return loss

    shadow = precgui.shadow(step, model.parameters())
    assert (shadow.verdict, shadow.gradient_error, shadow.shares.by_operation) == ("healthy", 0.0, {})


def test_that_large_results_are_compared_as_small_ones_are() -> None:
    tape = recorded().tape
    product = next(o for o in tape.operations if o.name == "addmm.default" and o.local_errors)
    low = tape.value(product.outputs[0] or 0)
    bias, x, weight = (tape.value(id) for id in product.inputs)
    assert low is not None and bias is not None and x is not None and weight is not None
    assert low.numel() > 1 << 16
    exact = torch.addmm(bias.double(), x.double(), weight.double())
    gap = low.double() - exact
    assert product.local_errors[0] is not None
    torch.testing.assert_close(product.local_errors[0], gap.float())
    assert product.local_error == pytest.approx(float(gap.norm() / exact.norm()), rel=1e-6)


def test_that_values_with_the_same_elements_have_the_same_range() -> None:
    tape = recorded(16).tape
    known = {id: tape.value(id) for id in tape.magnitudes}
    assert len(known) > 20
    for id, value in known.items():
        if value is not None and value.numel():
            assert tape.magnitudes[id] == float(value.abs().max())
            assert tape.kinds[id] == ""
