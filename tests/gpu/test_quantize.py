"""Rounding on the GPU by the fused kernel equals that on the CPU bit for bit; FP8 products equal their emulation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from precgui.engine.emulation import native_fp8
from precgui.engine.emulation.layers import MatmulArithmetic, emulate_products, layers
from precgui.engine.emulation.operands import AmaxScale, BatchSeed, Identity, RoundingSpec, ScaledCast
from precgui.engine.quantize import device
from precgui.engine.quantize.blocks import quantize_blocks
from precgui.engine.quantize.elements import quantize
from precgui.formats.rounding import ROUNDINGS

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
FORMATS = ("tf32", "bf16", "fp16", "e4m3fn", "e5m2", "e4m3fnuz", "e3m2", "e2m1", "e5m7", "e9m4", "e8m0", "int8", "nf4")
BLOCKS = ("mxfp8_e4m3", "mxfp6_e2m3", "mxfp4", "nvfp4")
E4M3_MAX, E5M2_MAX = 448.0, 57344.0


def values() -> torch.Tensor:
    """Every sign, exponent and special value of FP32 with random mantissas."""
    bits = np.random.default_rng(5).integers(0, 2**32, 1 << 16, dtype=np.uint64).astype(np.uint32)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 448.0, 464.0, 65504.0, 65520.0, 2.0**-24, 2.0**-149]
    return torch.from_numpy(np.concatenate([bits.view(np.float32), np.array(special, np.float32)]))


def same(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Equal bits, NaN equal to NaN."""
    both_nan = ours.isnan() & theirs.isnan()
    return bool((both_nan | (ours.view(torch.int32) == theirs.view(torch.int32))).all())


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("name", FORMATS)
def test_that_the_gpu_rounds_as_the_cpu_does(name, rounding):
    source = values()
    here = quantize(source, name, rounding=rounding, seed=3)
    there = quantize(source.to(DEVICE), name, rounding=rounding, seed=3)
    assert there.device.type == DEVICE
    assert same(there.cpu(), here)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_that_other_dtypes_round_alike(dtype):
    source = values().nan_to_num(0.0, 1e30, -1e30).to(dtype)
    here = quantize(source, "e4m3fn", seed=1)
    there = quantize(source.to(DEVICE), "e4m3fn", seed=1).cpu()
    assert there.dtype == dtype
    assert same(there.float(), here.float())


@pytest.mark.parametrize("name", BLOCKS)
def test_that_blocks_round_alike(name):
    source = torch.randn(64, 256, generator=torch.Generator().manual_seed(2)) * 10
    assert same(quantize_blocks(source.to(DEVICE), name).cpu(), quantize_blocks(source, name))


def test_that_the_rounding_is_one_fused_kernel():
    source = torch.randn(1 << 22, device=DEVICE)
    quantize(source, "e4m3fn")
    if device.failures() or DEVICE != "cuda":
        pytest.skip(f"torch cannot build a fused kernel here: {device.failures()}")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    quantize(source, "e4m3fn")
    assert torch.cuda.max_memory_allocated() - before <= 2.1 * source.nbytes  # no chain of temporaries


def fp8_layer(native: bool) -> nn.Linear:
    """A linear layer whose products are FP8, on tensor cores or emulated, from the same weights."""
    torch.manual_seed(0)
    layer = nn.Linear(64, 32).to(DEVICE)
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


def test_that_native_fp8_products_equal_their_emulation_to_the_bits_of_bf16():
    if DEVICE == "cuda" and not native_fp8.available(torch.device("cuda:0")):
        pytest.skip("FP8 is not native on this GPU")
    found = []
    for native in (True, False):
        layer = fp8_layer(native)
        x = torch.randn(48, 64, generator=torch.Generator().manual_seed(1)).to(DEVICE).requires_grad_()
        y = layer(x)
        y.backward(torch.randn(48, 32, generator=torch.Generator().manual_seed(2)).to(DEVICE))
        found.append((y.detach(), x.grad, layer.weight.grad))
    for ours, theirs in zip(*found, strict=True):
        assert float((ours - theirs).norm() / theirs.norm()) < 1e-2
