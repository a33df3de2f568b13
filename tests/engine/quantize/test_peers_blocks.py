"""Block formats against torchao and microxcaling, where they are installed, with the known differences of convention.

torchao: a block whose scale would be 2^-127 is halved or zeroed there, and a block with infinity keeps its finite
elements or becomes zero; neither is compared. Its NVFP4 multiplies by a reciprocal, so exact ties may fall to the other
side, and clamps block scales at 2^-6, so blocks far below the tensor's largest value differ.
microxcaling: MXINT8 ends at -1.984375 there, at -2 here, and zero has no sign there. Its package asks for an old torch
and is not on the package index: install it from its repository (github.com/microsoft/microxcaling).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from precgui.engine.quantize.blocks import quantize_blocks
from precgui.formats.blocks import ScaleRule
from precgui.formats.checkpoints.survey import ratio_db
from precgui.formats.weight_formats import round_weights, weight_format

RNG = np.random.default_rng(7)
NORMAL = torch.from_numpy(RNG.normal(size=(256, 128)).astype(np.float32))
SPREAD = NORMAL * torch.from_numpy((2.0 ** RNG.integers(-100, 100, (256, 1))).astype(np.float32))
TIES = torch.from_numpy((RNG.integers(-64, 65, (256, 128)) / 16).astype(np.float32))
TORCHAO_ELEMENTS = {
    "mxfp8_e4m3": "float8_e4m3fn", "mxfp8_e5m2": "float8_e5m2", "mxfp6_e2m3": "fp6_e2m3", "mxfp6_e3m2": "fp6_e3m2",
    "mxfp4": "float4_e2m1fn_x2",
}  # fmt: skip
MICROXCALING_ELEMENTS = {
    "mxfp8_e4m3": "fp8_e4m3", "mxfp8_e5m2": "fp8_e5m2", "mxfp6_e2m3": "fp6_e2m3", "mxfp6_e3m2": "fp6_e3m2",
    "mxfp4": "fp4_e2m1", "mxint8": "int8",
}  # fmt: skip


@pytest.mark.parametrize("rule", ["floor", "ceil", "even", "rceil"])
@pytest.mark.parametrize("name", ["mxfp8_e4m3", "mxfp8_e5m2", "mxfp4"])
def test_that_mx_blocks_are_those_of_torchao(name: str, rule: ScaleRule) -> None:
    mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    config = pytest.importorskip("torchao.prototype.mx_formats.config")
    mode = config.ScaleCalculationMode(rule)
    element = getattr(torch, TORCHAO_ELEMENTS[name])
    for values in (NORMAL, SPREAD, TIES):
        scales, elements = mx.to_mx(values, element, 32, mode)
        theirs = mx.to_dtype(elements, scales, element, 32, torch.float32)
        assert torch.equal(quantize_blocks(values, name, rule=rule), theirs.view(values.shape))


def test_that_nvfp4_is_that_of_torchao_on_normal_data() -> None:
    nvfp4 = pytest.importorskip("torchao.prototype.mx_formats.nvfp4_tensor")
    for values in (NORMAL, NORMAL * 1e-6):
        tensor_scale = nvfp4.per_tensor_amax_to_scale(values.abs().max())
        theirs = nvfp4.NVFP4Tensor.to_nvfp4(values, 16, tensor_scale).dequantize(torch.float32)
        ours = quantize_blocks(values, "nvfp4")
        assert torch.allclose(ours, theirs, rtol=1e-6, atol=0)


def test_that_int8_of_torchao_is_its_own() -> None:
    quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    layer = torch.nn.Linear(128, 256, bias=False)
    layer.weight.data.copy_(NORMAL)
    quantization.quantize_(layer, quantization.Int8WeightOnlyConfig())
    theirs = layer.weight.dequantize().detach().numpy()
    ours = round_weights(NORMAL.numpy(), weight_format("torchao:int8"))
    assert (ours == theirs).mean() > 0.999  # it divides in another order: one code more or less at a tie
    plain = NORMAL.numpy().astype(float)
    noise = [((rounded - plain) ** 2).sum() for rounded in (ours, theirs)]
    assert ratio_db((plain**2).sum(), noise[0]) == pytest.approx(ratio_db((plain**2).sum(), noise[1]), abs=0.01)


@pytest.mark.parametrize("rounding", ["nearest_even", "nearest_away", "toward_zero"])
@pytest.mark.parametrize("name", sorted(MICROXCALING_ELEMENTS))
def test_that_mx_blocks_are_those_of_microxcaling(name: str, rounding: str) -> None:
    mx_ops = pytest.importorskip("mx.mx_ops")
    word = {"nearest_even": "even", "nearest_away": "nearest", "toward_zero": "floor"}[rounding]
    for values in (NORMAL, SPREAD, TIES):
        theirs = mx_ops._quantize_mx(
            values, 8, MICROXCALING_ELEMENTS[name], shared_exp_method="max", axes=[-1], block_size=32, round=word
        )
        ours = quantize_blocks(values, name, rounding=rounding)
        differs = ours != theirs
        if name == "mxint8":  # the least integer, which microxcaling leaves unused
            ratio = (ours / theirs)[differs]
            assert torch.allclose(ratio, torch.full_like(ratio, 2 / 1.984375))
            assert (ours[differs] < 0).all()
        else:
            assert not differs.any()
