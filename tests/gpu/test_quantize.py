"""Rounding on the GPU by the fused kernel equals that on the CPU bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from precgui.engine.emulation import fp8_cast, fused_fp8, native_fp8
from precgui.engine.emulation.operands import AmaxScale, BatchSeed
from precgui.engine.quantize import device, torch_form
from precgui.engine.quantize.blocks import quantize_blocks
from precgui.engine.quantize.elements import _held, quantize
from precgui.formats.arrays import quantize_array
from precgui.formats.registry import blocks, formats, get
from precgui.formats.rounding import ROUNDINGS, CastPolicy

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
BLOCKS = ("mxfp8_e4m3", "mxfp6_e2m3", "mxfp4", "nvfp4")


def values(count: int = 1 << 16) -> torch.Tensor:
    """Special values of FP32, and all signs and exponents with random mantissas, half of them around 1."""
    draw = np.random.default_rng(5)
    bits = draw.integers(0, 2**32, count, dtype=np.uint64).astype(np.uint32)
    bits[::2] = (
        (draw.normal(size=len(bits[::2])) * np.exp2(draw.integers(-12, 12, len(bits[::2]))))
        .astype(np.float32)
        .view(np.uint32)
    )
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 448.0, 464.0, 65504.0, 65520.0, 2.0**-24, 2.0**-149]
    return torch.from_numpy(np.concatenate([np.array(special, np.float32), bits.view(np.float32)]))


def same(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Equal bits, NaN equal to NaN."""
    word = {2: torch.int16, 4: torch.int32, 8: torch.int64}[ours.dtype.itemsize]
    both_nan = ours.isnan() & theirs.isnan()
    alike = both_nan | (ours.contiguous().view(word) == theirs.contiguous().view(word))
    return ours.dtype == theirs.dtype and bool(alike.all())


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_that_the_gpu_rounds_as_the_exact_form_does(rounding):
    """Of FP32 to every format by name, against the array form of `formats`; NaN stays where a format has none."""
    source = values()[: 1 << 15]
    for name, fmt in formats().items():
        with np.errstate(all="ignore"):
            exact = torch.from_numpy(quantize_array(source.numpy(), fmt, CastPolicy(rounding), 3)).float()
        there = quantize(source.to(DEVICE), name, rounding=rounding, seed=3)
        assert there.device.type == DEVICE
        assert same(there.cpu(), torch.where(source.isnan(), source, exact)), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_that_the_kernel_has_the_bits_of_torch_operations(rounding, dtype):
    """To every format by name, whatever the dtype; the CPU shows that those bits are its own."""
    source = values(1 << 20).to(DEVICE, dtype)
    if dtype == torch.float64:
        source = source * (1 + 2.0**-40)
    for name in (*formats(), "e5m7", "e9m4"):
        fmt, policy = get(name), CastPolicy(rounding)
        wide = source if dtype in (torch.float32, torch.float64) else source.float()
        plain = device.rounded_on_device(wide, fmt, policy, 3)
        assert same(quantize(source, name, rounding=rounding, seed=3), _held(plain, fmt, policy, dtype)), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_that_blocks_have_the_bits_of_torch_operations(rounding, dtype):
    if dtype != torch.float32 and rounding != "nearest_even":
        pytest.skip("one kernel of each dtype is enough: it differs in how numbers are read and written")
    spread = torch.exp2(torch.randint(-20, 20, (1000, 8), generator=torch.Generator().manual_seed(1)).float())
    source = (torch.randn(1000, 250, generator=torch.Generator().manual_seed(2)) * spread.repeat(1, 32)[:, :250]).to(
        dtype
    )
    source[3, 7], source[5, 100] = float("nan"), float("inf")
    for name in blocks():
        for axis in (-1, 0):
            there = quantize_blocks(source.to(DEVICE), name, rounding=rounding, seed=3, axis=axis)
            plain = torch_form.quantize_blocks(source.to(DEVICE), name, rounding=rounding, seed=3, axis=axis)
            assert same(there, plain), (name, axis)


@pytest.mark.parametrize("name", BLOCKS)
def test_that_blocks_round_as_on_the_cpu(name):
    source = torch.randn(64, 256, generator=torch.Generator().manual_seed(2)) * 10
    assert same(quantize_blocks(source.to(DEVICE), name).cpu(), quantize_blocks(source, name))


@pytest.mark.parametrize("place", ["odd size", "not aligned", "turned", "strided", "channels last"])
def test_that_any_layout_is_rounded(place):
    lay_out = {
        "odd size": lambda plain: plain.view(-1)[:1679], "not aligned": lambda plain: plain.view(-1)[1:],
        "turned": lambda plain: plain.view(48, 35).t(), "strided": lambda plain: plain[::2, :, 1:],
        "channels last": lambda plain: plain.contiguous(memory_format=torch.channels_last),
    }[place]  # fmt: skip
    plain = torch.randn(6, 8, 5, 7, generator=torch.Generator().manual_seed(2))
    for rounding in ("nearest_even", "stochastic"):
        there = quantize(lay_out(plain.to(DEVICE)), "e4m3fn", rounding=rounding, seed=3)
        assert same(there.cpu(), quantize(lay_out(plain), "e4m3fn", rounding=rounding, seed=3))


def test_that_the_rounding_is_one_kernel_without_temporaries():
    for dtype in DTYPES:
        source = torch.randn(1 << 22, device=DEVICE).to(dtype)
        for rounding in ("nearest_even", "stochastic"):
            quantize(source, "e4m3fn", rounding=rounding)
            if DEVICE != "cuda":
                continue
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            quantize(source, "e4m3fn", rounding=rounding)
            assert torch.cuda.max_memory_allocated() - before <= 1.1 * source.nbytes


def test_that_no_kernel_failed_to_build():
    """The last of those that build any: a rounding falls back on torch operations, with a line in the log."""
    assert device.failures() == ()


@pytest.mark.parametrize("dtype", [native_fp8.FORWARD, native_fp8.BACKWARD])
def test_that_casts_to_fp8_have_the_bits_of_torch_operations(dtype):
    if DEVICE == "cuda" and not native_fp8.available(torch.device("cuda:0")):
        pytest.skip("FP8 is not native on this GPU")
    matrix = torch.randn(80, 112, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    matrix *= torch.exp2(torch.randint(-12, 12, (80, 112), generator=torch.Generator().manual_seed(2)).to(DEVICE))
    zero, unknown = matrix.clone(), matrix.clone()
    zero[3], unknown[1, 2], unknown[5, 5] = 0.0, float("nan"), float("inf")
    for source in (matrix, zero, unknown, matrix.t(), matrix * 1e-40, matrix * 1e30):
        for rowwise, axis in ((False, 0), (True, 0), (True, 1)):
            scale = AmaxScale(torch.finfo(dtype).max, BatchSeed(0), rowwise=rowwise)
            found = fused_fp8.quantized(source, dtype, scale, axis, turned=True)
            plain = fp8_cast.quantized(source, dtype, scale, axis, turned=True)
            for own, other in zip(found, plain, strict=True):
                assert same(own.float(), other.float())
