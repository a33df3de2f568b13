"""FP8 products of the GPU equal emulated ones, with the sums that it is measured to have."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from precgui.engine import accumulation
from precgui.engine.accumulation import OPERANDS, SumArithmetic, measure, multiply_on
from precgui.engine.emulation import native_fp8
from precgui.engine.emulation.layers import MatmulArithmetic, emulate_products, layers
from precgui.engine.emulation.operands import AmaxScale, BatchSeed, Identity, RoundingSpec, ScaledCast
from precgui.engine.emulation.tensor_core import HOPPER, TensorCore

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
E4M3_MAX, E5M2_MAX = 448.0, 57344.0


def needs_fp8() -> None:
    if DEVICE == "cuda" and not native_fp8.available(torch.device("cuda:0")):
        pytest.skip("FP8 is not native on this GPU")


def sums(fmt: str, *, fast: bool) -> SumArithmetic:
    return measure(multiply_on(torch.device(DEVICE), OPERANDS[fmt], fast=fast), OPERANDS[fmt])


def fp8_layer(width: int, *, native: bool = True) -> nn.Linear:
    """A linear layer whose products are FP8, on tensor cores or emulated, from the same weights."""
    torch.manual_seed(0)
    layer = nn.Linear(width, 32).to(DEVICE)
    forward, backward = AmaxScale(E4M3_MAX, BatchSeed(0)), AmaxScale(E5M2_MAX, BatchSeed(0))
    if native:
        native_fp8.use_native(layer, native_fp8.Scales(forward, forward, backward))
        return layer
    nearest = RoundingSpec("nearest_even", BatchSeed(0), "")
    operand, gradient = ScaledCast("e4m3fn", nearest, forward), ScaledCast("e5m2", nearest, backward)
    products = MatmulArithmetic("e4m3fn", operand, operand, gradient, Identity(), Identity())
    model = nn.Sequential(layer)
    emulate_products(layers(model, set()), lambda _: products)
    return model[0]  # type: ignore[return-value]


def step(layer: nn.Linear, rows: int) -> list[torch.Tensor]:
    """The output of a layer, and the gradients of its input and of its weight."""
    x = torch.randn(rows, layer.in_features, generator=torch.Generator().manual_seed(1)).to(DEVICE).requires_grad_()
    y = layer(x)
    y.backward(torch.randn(rows, 32, generator=torch.Generator().manual_seed(2)).to(DEVICE))
    assert x.grad is not None
    assert layer.weight.grad is not None
    return [y.detach(), x.grad, layer.weight.grad]


def are_within(most: float, found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    """Whether each relative distance is below `most`; NaN is not."""
    return all(float((a - b).norm() / b.norm()) < most for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("width", [64, 1024])
def test_that_native_fp8_products_are_those_of_the_measured_sums(width):
    """The limit is that of FP32: what is left are scales that are multiplied in another order, and sums in FP32."""
    needs_fp8()
    forward, backward = sums("e4m3fn", fast=True), sums("e5m2", fast=False)
    assert forward.bits is not None
    native = step(fp8_layer(width), 1040)
    if forward.bits >= accumulation.FP32_BITS:
        assert are_within(1e-5, native, step(fp8_layer(width, native=False), 1040))
        return
    assert (backward.bits, backward.terms) == (forward.bits, forward.terms)
    unit = TensorCore(forward.bits, forward.terms or 1, backward.promoted_every or 1 << 20, "")
    layer = fp8_layer(width)
    layer.multiply = unit.scaled_mm
    assert are_within(2.0**-22, native, step(layer, 1040))


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("left", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("length", [32, 160, 4096])
def test_that_emulated_sums_of_hopper_are_its_own_to_the_last_bit(length, left, fast):
    needs_fp8()
    if DEVICE == "cuda" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("this GPU is no Hopper")
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randn(128, length, generator=generator) * 20 for _ in range(2))
    a, b = a.to(DEVICE).to(left), b.to(DEVICE).to(torch.float8_e4m3fn).t()
    one = torch.ones((), device=DEVICE)
    ours = HOPPER.scaled_mm(a, b, one, one, fast=fast)
    assert torch.equal(ours, native_fp8.on_tensor_cores(a, b, one, one, fast=fast))
