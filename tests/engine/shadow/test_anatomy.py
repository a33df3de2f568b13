"""The anatomy of a step: operations, casts with who asked, moments."""

from __future__ import annotations

import torch
from torch import nn

from precgui.engine.shadow.anatomy import anatomy
from precgui.engine.shadow.record import record_step
from precgui.runs.anatomy import StepAnatomy


def taken(scale: float = 8.0, *, twice: bool = False) -> StepAnatomy:
    torch.manual_seed(0)
    layer, x = nn.Linear(4, 3), torch.randn(5, 4)

    def step() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            outputs = layer(x) + (layer(x) if twice else 0)
        loss = outputs.float().square().mean()
        (loss * scale).backward()
        return loss

    return StepAnatomy.model_validate(
        {"step": 1, "precision": "bf16-amp", **anatomy(record_step(step, layer.parameters()), scale)}
    )


def test_that_casts_are_listed_by_who_asked_for_them() -> None:
    casts = {(c.asked_by, c.source, c.target): c for c in taken().casts}
    asked = casts["autocast: linear", "fp32", "bf16"]
    assert (asked.count, asked.of, asked.bytes) == (3, "weights and inputs", 2 * (3 * 4 + 3 + 5 * 4))
    assert casts["user: .float", "bf16", "fp32"].count == 1
    assert any(who == "autograd" for who, _, _ in casts)


def test_that_a_second_use_of_a_weight_takes_its_cast_from_the_cache() -> None:
    once = sum(c.reused for c in taken().casts)
    again = [c for c in taken(twice=True).casts if c.asked_by == "autocast: linear"]
    assert sum(c.reused for c in again) == once + 2  # weight and bias


def test_that_operations_know_their_pass_their_format_and_their_error() -> None:
    result = taken()
    product = next(o for o in result.operations if "addmm" in o.operation)
    assert (product.format, product.inputs, product.backward, product.asked_by) == ("bf16", ["bf16"], False, "")
    assert product.bytes == 2 * 5 * 3 and 1e-5 < product.local_error < 1e-2
    assert any(o.backward for o in result.operations) and all(o.finite for o in result.operations)


def test_that_the_moments_hold_the_scale_the_loss_and_the_gradients() -> None:
    one, eight = taken(1.0).moments, taken(8.0).moments
    assert eight.loss == one.loss and eight.scaled_loss == 8 * eight.loss
    assert eight.gradient_largest == 8 * one.gradient_largest == 8 * eight.unscaled_largest
    assert one.gradients_are_finite
    sentences = taken().sentences()
    assert len(sentences) == 8 and sentences[-1] == "Step: the optimizer updates the weights."
