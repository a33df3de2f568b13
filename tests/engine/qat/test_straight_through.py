"""Estimators of quantised training: against torch's own, and the formulas of their papers."""

from __future__ import annotations

import math

import pytest
import torch

from precgui.engine.qat.layers import Quantizer
from precgui.engine.qat.straight_through import (
    clipped_input,
    fake_input,
    fake_weight,
    learned_weight,
    weight_integers,
    weight_scale,
)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("per_channel", [True, False])
def test_that_weights_are_rounded_as_torch_does(bits: int, per_channel: bool) -> None:
    weight = torch.randn(6, 4, 3, 3, generator=torch.Generator().manual_seed(0))
    axes = (1, 2, 3) if per_channel else (0, 1, 2, 3)
    largest = 2 ** (bits - 1) - 1
    scale = weight_scale(weight, bits, axes).flatten().expand(6).contiguous()
    zeros = torch.zeros(6, dtype=torch.int32)
    reference = torch.fake_quantize_per_channel_affine(weight, scale, zeros, 0, -largest, largest)
    torch.testing.assert_close(fake_weight(weight, bits, axes), reference, rtol=0, atol=1e-6)


def test_that_inputs_are_rounded_and_their_gradients_stopped_as_torch_does() -> None:
    value = torch.randn(1001, generator=torch.Generator().manual_seed(7)).requires_grad_()
    scale, zero = torch.tensor(2.5 / 255), torch.tensor(70.0)
    ours = fake_input(value, scale, zero, 255)
    (our_gradient,) = torch.autograd.grad(ours.square().sum(), value)
    theirs = torch.fake_quantize_per_tensor_affine(value, float(scale), int(zero), 0, 255)
    (their_gradient,) = torch.autograd.grad(theirs.square().sum(), value)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    torch.testing.assert_close(our_gradient, their_gradient, rtol=1e-5, atol=1e-5)
    assert 0 < int((our_gradient == 0).sum()) < 700, "some lie outside the range, most inside"


def test_that_learned_scales_have_the_gradients_of_torch() -> None:
    weight = torch.randn(5, 7, generator=torch.Generator().manual_seed(1), requires_grad=True)
    scale = torch.rand(5, 1, generator=torch.Generator().manual_seed(2)).mul(0.3).add(0.1).requires_grad_()
    upstream = torch.randn(5, 7, generator=torch.Generator().manual_seed(3))
    ours = torch.autograd.grad(learned_weight(weight, 4, scale), (weight, scale), upstream)
    flat = scale.detach().flatten().requires_grad_()
    factor = 1 / math.sqrt(7 * 7)
    their_value = torch._fake_quantize_learnable_per_channel_affine(weight, flat, torch.zeros(5), 0, -7, 7, factor)
    theirs = torch.autograd.grad(their_value, (weight, flat), upstream)
    torch.testing.assert_close(ours[0], theirs[0])
    torch.testing.assert_close(ours[1].flatten(), theirs[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_that_learned_ranges_follow_the_formulas_of_pact(bits: int) -> None:
    """Equations 1 and 2 of Choi et al. 2018 under autograd, the rounding passed straight through."""
    value = torch.randn(4, 99, generator=torch.Generator().manual_seed(11)).mul_(3).requires_grad_()
    upstream = torch.randn(4, 99, generator=torch.Generator().manual_seed(12))
    alpha, largest = torch.tensor(2.5, requires_grad=True), 2**bits - 1
    clipped = 0.5 * (value.abs() - (value - alpha).abs() + alpha)
    rounded = torch.round(clipped * largest / alpha) * alpha / largest
    theirs = torch.autograd.grad(clipped + (rounded - clipped).detach(), (value, alpha), upstream)
    low, high = torch.zeros((), requires_grad=True), torch.tensor(2.5, requires_grad=True)
    ours = clipped_input(value, low, high, largest)
    torch.testing.assert_close(ours, rounded)
    found = torch.autograd.grad(ours, (value, high), upstream)
    for one, other in zip(found, theirs, strict=True):
        torch.testing.assert_close(one, other)


def test_that_both_bounds_of_a_range_are_learned_as_those_of_torchs_clamp() -> None:
    value = torch.randn(400, generator=torch.Generator().manual_seed(13)).mul_(3).requires_grad_()
    upstream = torch.randn(400, generator=torch.Generator().manual_seed(14))
    bounds = [torch.tensor(-1.5, requires_grad=True), torch.tensor(2.5, requires_grad=True)]
    theirs = torch.autograd.grad(torch.clamp(value, *bounds), (value, *bounds), upstream)
    ours = torch.autograd.grad(clipped_input(value, *bounds, 15), (value, *bounds), upstream)  # type: ignore[call-arg]
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


def test_that_a_learned_range_begins_with_what_was_seen_and_is_held_when_frozen() -> None:
    weight = torch.randn(2, 3)
    made = Quantizer(weight, 4, 4, per_channel=True, learned=False, learned_range=True)
    inputs = torch.tensor([[-1.0, 0.5, 3.0]])
    for factor in (1, 2):  # the second batch has values beyond the range of the first one
        made.due = True
        made.inputs(inputs * factor).sum().backward()
    assert [made.low.item(), made.high.item()] == [-1.0, 3.0]
    assert [made.low.grad.item(), made.high.grad.item()] == [1.0, 2.0]
    made.observing = False
    made.zero_grad()
    held = made.inputs((inputs * 2).requires_grad_())
    held.sum().backward()
    assert made.high.grad is None
    assert held.max().item() == pytest.approx(3.0, abs=0.2)


def test_that_few_bits_take_the_values_that_they_have() -> None:
    weight = torch.randn(3, 50, generator=torch.Generator().manual_seed(4))
    for bits, values in ((2, {-1.0, 0.0, 1.0}), (1, {-1.0, 1.0})):
        integers = weight_integers(weight, bits, weight_scale(weight, bits, (1,)))
        assert set(integers.flatten().tolist()) == values
    signs = weight_integers(weight, 1, weight_scale(weight, 1, (1,)))
    best = (signs * weight).sum(1) / signs.square().sum(1)  # least squares
    torch.testing.assert_close(weight_scale(weight, 1, (1,)).flatten(), best)


def test_that_gradients_pass_the_rounding_of_weights_unchanged() -> None:
    for bits in (8, 4, 2, 1):
        weight = torch.randn(4, 6, requires_grad=True)
        fake_weight(weight, bits, (1,)).sum().backward()
        assert weight.grad is not None
        assert torch.equal(weight.grad, torch.ones(4, 6))
