"""Rounding at the edges: subnormals that torch flushes, results that a narrow dtype cannot hold, odd tensors."""

from __future__ import annotations

import pytest
import torch

from precgui.engine.quantize.blocks import quantize_blocks
from precgui.engine.quantize.elements import quantize
from precgui.formats.affine import quantize_sign
from precgui.formats.arrays import quantize_array
from precgui.formats.codec import encode
from precgui.formats.real import from_float
from precgui.formats.registry import get
from precgui.formats.rounding import ROUNDINGS, CastPolicy, RoundingMode, interval_of


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.int32)


SMALL = torch.arange(1, 1 << 22, 4099, dtype=torch.int32).view(torch.float32)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("name", ["fp16", "bf16", "e4m3fn", "e9m7", "e11m20", "int8", "sign1", "nf4", "e8m0"])
def test_that_flushing_of_subnormals_changes_no_element(name: str, rounding: RoundingMode) -> None:
    both = torch.cat([SMALL, -SMALL])
    wanted = quantize(both, name, rounding=rounding, seed=1)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        found = quantize(both, name, rounding=rounding, seed=1)
        assert float(torch.tensor(1e-40) * 1) == 0, "the switch stays as the user has set it"
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(_bits(found), _bits(wanted))


@pytest.mark.parametrize("rounding", ["nearest_even", "up"])
@pytest.mark.parametrize("name", ["mxint8", "mxfp8_e4m3", "mxfp4", "nvfp4"])
def test_that_flushing_of_subnormals_changes_no_block(name: str, rounding: RoundingMode) -> None:
    """The inverse of the scale of values near 3e38 is 2^-127: all of mxint8 became 0."""
    values = torch.linspace(2e38, 3e38, 128)
    wanted = quantize_blocks(values, name, rounding=rounding)
    small = quantize_blocks(SMALL[:128], name, rounding=rounding)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        found, found_small = (quantize_blocks(part, name, rounding=rounding) for part in (values, SMALL[:128]))
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(_bits(found), _bits(wanted))
    assert torch.equal(_bits(found_small), _bits(small))
    assert bool((wanted > 1e38).all())


@pytest.mark.parametrize(
    ("dtype", "name", "largest"),
    [
        (torch.bfloat16, "fp16", 65280.0),
        (torch.float16, "bf16", 65280.0),
        (torch.float16, "e8m0", 32768.0),
        (torch.bfloat16, "e4m3fn", 448.0),
        (torch.float16, "e5m2", 57344.0),
    ],
)
def test_that_saturation_ends_at_the_largest_number_of_format_and_dtype(
    dtype: torch.dtype, name: str, largest: float
) -> None:
    """BF16 does not hold 65504 and went to 65536, which is past FP16; FP16 went to infinity."""
    values = torch.tensor([torch.finfo(dtype).max, torch.inf], dtype=dtype)
    assert quantize(values, name, saturate=True).tolist() == [largest, largest]


def test_that_a_finite_result_does_not_pass_the_format_in_a_narrow_dtype() -> None:
    values = torch.tensor([65280.0, 65536.0, -65280.0], dtype=torch.bfloat16)
    assert quantize(values, "fp16").tolist() == [65280.0, torch.inf, -65280.0]
    assert quantize(values, "fp16", rounding="toward_zero").tolist() == [65280.0, 65280.0, -65280.0]


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.complex64, torch.float8_e5m2])
def test_that_blocks_take_floats_only(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match="float32, float64, bfloat16 or float16 tensors, not"):
        quantize_blocks(torch.ones(32).to(dtype), "mxfp4")


def test_that_a_format_is_called_by_its_name() -> None:
    with pytest.raises(TypeError, match=r"such as .e4m3fn., not torch\.float8_e4m3fn"):
        quantize(torch.ones(2), torch.float8_e4m3fn)


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "mxint8"])
def test_that_tensors_without_numbers_are_rounded_on_any_device(name: str) -> None:
    shaped = torch.empty(3, 40, device="meta", dtype=torch.bfloat16)
    for result in (quantize_blocks(shaped, name), quantize(shaped, "e4m3fn")):
        assert (result.device.type, result.shape, result.dtype) == ("meta", shaped.shape, shaped.dtype)


@pytest.mark.parametrize("rounding", ["nearest_even", "nearest_away"])
def test_that_the_sign_of_zero_is_positive_everywhere(rounding: RoundingMode) -> None:
    sign, zeros, cast_policy = get("sign1"), torch.tensor([0.0, -0.0]), CastPolicy(rounding)
    assert quantize(zeros, "sign1", rounding=rounding).tolist() == [1.0, 1.0]
    assert quantize_array(zeros.numpy(), sign, cast_policy).tolist() == [1.0, 1.0]
    assert quantize_sign(zeros.numpy(), 1.0).tolist() == [1.0, 1.0]
    assert [encode(from_float(zero), sign, cast_policy) for zero in zeros.tolist()] == [1, 1]
    assert [0 in interval_of(sign, ordinal, cast_policy) for ordinal in (0, 1)] == [False, True]
