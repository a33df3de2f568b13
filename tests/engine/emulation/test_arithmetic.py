"""Emulated arithmetic against other implementations, and torch's switches."""

from __future__ import annotations

import contextlib

import gfloat
import numpy as np
import pytest
import torch
from torch import nn

from precgui import config
from precgui.engine import precisions
from precgui.engine.backend_flags import restored, set_fp32_arithmetic
from precgui.engine.certificate import gemm_error
from precgui.engine.emulation.accumulator import Accumulator
from precgui.engine.emulation.layers import MatmulArithmetic, emulate_products, layers
from precgui.engine.emulation.operands import FormatCast, Identity, OperandQuantizer, TorchCast
from precgui.engine.precisions.fp16 import Fp16ProductMode

CPU = torch.device("cpu")
FP16 = TorchCast(torch.float16)


def emulate(
    model: nn.Module, operand: OperandQuantizer, result: OperandQuantizer, accumulator: Accumulator | None = None
) -> nn.Module:
    products = MatmulArithmetic("test", operand, operand, operand, result, operand, accumulator)
    emulate_products(layers(model, set()), lambda _: products)
    return model


def to_fp16(tensor: torch.Tensor) -> torch.Tensor:
    return FP16(tensor, 0)


TF32 = gfloat.FormatInfo(
    "tf32",
    19,
    11,
    bias=127,
    is_signed=True,
    domain=gfloat.Domain.Extended,
    has_nz=True,
    num_high_nans=2**10 - 1,
    has_subnormals=True,
    is_twos_complement=False,
)


def test_that_tf32_rounding_equals_gfloat() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 20_000, dtype=np.uint64).astype(np.uint32)
    values = bits.view(np.float32)
    values = values[np.isfinite(values)]
    expected = gfloat.round_ndarray(TF32, values.astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(FormatCast("tf32")(torch.from_numpy(values), 0).numpy(), expected)


def test_that_tf32_rounding_keeps_nan_and_inf() -> None:
    special = torch.tensor([float("inf"), float("-inf"), float("nan"), -0.0])
    rounded = FormatCast("tf32")(special, 0)
    assert rounded[:2].tolist() == [float("inf"), float("-inf")]
    assert rounded[2].isnan()
    assert rounded[3].signbit()


LAYERS = {
    "linear": (lambda: nn.Linear(12, 6), (5, 3, 12)),
    "linear without bias": (lambda: nn.Linear(12, 6, bias=False), (5, 12)),
    "conv": (lambda: nn.Conv2d(4, 6, 3, padding=1, stride=2), (2, 4, 9, 9)),
    "conv in groups": (lambda: nn.Conv2d(4, 6, 3, dilation=2, groups=2), (2, 4, 9, 9)),
    "conv 1d": (lambda: nn.Conv1d(4, 6, 5, padding="valid"), (2, 4, 9)),
    "conv transposed": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1), (2, 4, 5, 5)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_that_an_emulated_layer_equals_autograd_on_rounded_operands(name: str) -> None:
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    layer = make()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(to_fp16(parameter))
    x = to_fp16(torch.randn(shape)).requires_grad_()
    out = layer(x)
    grad = to_fp16(torch.randn_like(out))
    out.backward(grad)
    expected = [out, x.grad, *(p.grad for p in layer.parameters())]
    x.grad = None
    layer.zero_grad()
    emulate(nn.Sequential(layer), operand=FP16, result=Identity())
    assert type(layer).__name__.startswith("Emulated")
    found = layer(x)
    found.backward(grad)
    for value, reference in zip([found, x.grad, *(p.grad for p in layer.parameters())], expected, strict=True):
        torch.testing.assert_close(value, reference, rtol=1e-5, atol=1e-5)


def test_that_a_padding_of_torchs_own_is_left_alone() -> None:
    model = nn.Sequential(nn.Conv2d(1, 1, 3, padding="same"), nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular"))
    assert layers(model, set()) == {}


def test_that_emulated_fp16_agrees_with_torchs_own_fp16() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 16, 5))
    x = torch.randn(4, 3, 6, 6)
    with torch.autocast("cpu", dtype=torch.float16):
        native = model(x)
    native.float().square().sum().backward()
    native_grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    emulated_model = precisions.make(config.load("digits-quick", ["precision=fp16-amp"]), CPU).convert(model)
    with torch.autocast("cpu", dtype=torch.float16):
        emulated = emulated_model(x)
    emulated.float().square().sum().backward()
    torch.testing.assert_close(emulated.float(), native.float(), rtol=2e-3, atol=2e-3)
    for found, reference in zip(emulated_model.parameters(), native_grads, strict=True):
        torch.testing.assert_close(found.grad, reference, rtol=2e-2, atol=2e-2)


def test_that_emulated_fp16_overflows_like_fp16() -> None:
    layer = nn.Sequential(nn.Linear(1, 1, bias=False))
    nn.init.constant_(layer[0].weight, 300.0)
    emulate(layer, operand=FP16, result=FP16)
    out = layer(torch.tensor([[300.0]]))
    assert out.item() == float("inf")
    (out.new_tensor(0.0) + layer(torch.tensor([[100.0]])) * 1000.0).backward()
    assert layer[0].weight.grad is not None
    assert layer[0].weight.grad.item() == float("inf")


def test_that_the_switches_are_set_both_ways() -> None:
    with restored():
        for tf32, word in ((True, "tf32"), (False, "ieee")):
            set_fp32_arithmetic(tf32=tf32)
            assert torch.backends.mkldnn.matmul.fp32_precision == word  # type: ignore[attr-defined]
            assert torch.backends.cudnn.allow_tf32 is tf32
            assert torch.get_float32_matmul_precision() == ("high" if tf32 else "highest")


def test_that_the_error_of_a_product_tells_the_format() -> None:
    set_fp32_arithmetic(tf32=False)
    assert gemm_error(CPU) < 1e-6
    assert 1e-4 < gemm_error(CPU, torch.float16) < 1e-3
    assert 1e-3 < gemm_error(CPU, torch.bfloat16) < 5e-3
    assert gemm_error(CPU, torch.float64) == 0


@pytest.mark.parametrize("under_autocast", [True, False])
def test_that_attention_in_fp16_agrees_with_torchs_own(under_autocast: bool) -> None:
    torch.manual_seed(0)
    values = [torch.randn(1, 2, 8, 16) for _ in range(3)]
    grad = torch.randn(1, 2, 8, 16)

    def attention(emulated: bool) -> list[torch.Tensor]:
        operands = [(v if under_autocast else v.half()).clone().requires_grad_() for v in values]
        cast = torch.autocast("cpu", dtype=torch.float16, enabled=under_autocast)
        with cast, Fp16ProductMode() if emulated else contextlib.nullcontext():
            out = torch.nn.functional.scaled_dot_product_attention(*operands)
        assert out.dtype is torch.float16
        out.backward(grad.half())
        return [out, *(o.grad for o in operands if o.grad is not None)]

    for found, reference in zip(attention(True), attention(False), strict=True):
        assert found.dtype is reference.dtype
        torch.testing.assert_close(found, reference, rtol=5e-3, atol=5e-3)


def test_that_products_of_kept_modules_stay_fp32() -> None:
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    with Fp16ProductMode():
        assert torch.equal(a @ b, torch.mm(a, b))
        with torch.autocast("cpu", dtype=torch.float16):
            assert (a @ b).dtype is torch.float16
