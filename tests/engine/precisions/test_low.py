"""Products of rounded operands, against other implementations of the formats."""

from __future__ import annotations

from typing import Any

import gfloat
import gfloat.formats
import ml_dtypes
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from precgui import config
from precgui.engine import precisions
from precgui.engine.emulation.accumulator import Accumulator
from precgui.engine.emulation.operands import AmaxScale, BatchSeed
from precgui.engine.errors import EngineError
from precgui.engine.precisions.base import Precision
from precgui.engine.precisions.low import largest
from precgui.events import StepDone
from tests.engine.conftest import Record
from tests.engine.precisions.layer_gradients import gradients

CPU = torch.device("cpu")


def made(name: str, *settings: str) -> Precision:
    return precisions.make(config.load("digits-quick", [f"precision={name}", *settings]), CPU)


def cast(tensor: Tensor, dtype: Any) -> Tensor:
    return torch.from_numpy(tensor.detach().numpy().astype(dtype).astype(np.float32))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("e4m3fn", ml_dtypes.float8_e4m3fn),
        ("e5m2", ml_dtypes.float8_e5m2),
        ("bf16", ml_dtypes.bfloat16),
        ("fp16", np.float16),
        ("e3m2", ml_dtypes.float6_e3m2fn),
    ],
)
def test_that_an_emulated_layer_multiplies_rounded_operands(name: str, dtype: Any) -> None:
    torch.manual_seed(0)
    model = made(f"emulated:{name}").convert(nn.Sequential(nn.Linear(24, 16)))
    x, grad = torch.randn(5, 24), torch.randn(5, 16)
    out, grad_x, grad_w = gradients(model[0], x, grad)
    weight, x_q, grad_q = cast(model[0].weight, dtype), cast(x, dtype), cast(grad, dtype)
    torch.testing.assert_close(out, nn.functional.linear(x_q, weight, model[0].bias))
    torch.testing.assert_close(grad_x, grad_q @ weight)
    torch.testing.assert_close(grad_w, grad_q.t() @ x_q)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("emulated:e2m1",), ["e2m1 without a scale: it has no value between 0 and 0.5 and none above 6"]),
        (("emulated:e4m3fn", "precision_options.gradients=e5m2"), ["between 0 and 0.00195312 ", "to e5m2 without"]),
        (("emulated:fp32", "precision_options.layers=0=e3m2"), ["to e3m2 without a scale"]),
        (("emulated:bf16",), []), (("emulated:int4",), []), (("mxfp4",), []), (("fp8",), []),
    ],
)  # fmt: skip
def test_that_a_cast_of_narrow_floats_without_a_scale_is_said(settings: tuple[str, ...], said: list[str]) -> None:
    """E2M1 keeps nothing between 0 and 0.5: a training stands still there, and scaled precisions are the cure."""
    precision = made(*settings)
    precision.convert(nn.Sequential(nn.Linear(24, 16)))
    notes = [note for note in precision.notes if "without a scale" in note]
    assert len(notes) == len(said)
    for note, words in zip(notes, said, strict=True):
        assert words in note
        assert "nvfp4" in note


def test_that_each_role_has_its_format() -> None:
    torch.manual_seed(0)
    options = "precision_options."
    precision = made("emulated:fp32", f"{options}weights=e4m3fn", f"{options}gradients=e5m2")
    layer = precision.convert(nn.Sequential(nn.Linear(24, 16, bias=False)))[0]
    x, grad = torch.randn(5, 24), torch.randn(5, 16)
    out, grad_x, grad_w = gradients(layer, x, grad)
    weight, grad_q = cast(layer.weight, ml_dtypes.float8_e4m3fn), cast(grad, ml_dtypes.float8_e5m2)
    torch.testing.assert_close(out, x @ weight.t())
    torch.testing.assert_close(grad_x, grad_q @ weight)
    torch.testing.assert_close(grad_w, grad_q.t() @ x)
    assert precision.labels == {"0": "e4m3fn/fp32/e5m2"}


@pytest.mark.parametrize(("values", "expected"), [([0.0, 0.0], 1.0), ([1e-30, 0.0], None), ([float("nan"), 1.0], None)])
def test_that_a_scale_is_usable_at_the_edges(values: list[float], expected: float | None) -> None:
    factor = AmaxScale(448.0, BatchSeed(0))(torch.tensor(values), 0).item()
    if expected is not None:
        assert factor == expected
    elif np.isnan(values[0]):
        assert np.isnan(factor)
    else:
        assert np.isfinite(factor)


@pytest.mark.parametrize("name", ["e4m3fn", "e5m2", "fp16", "int8", "int4", "nf4", "sign1"])
def test_that_the_largest_value_is_the_formats(name: str) -> None:
    known = {"int8": 127, "int4": 7, "nf4": 1, "sign1": 1, "fp16": 65504, "e4m3fn": 448, "e5m2": 57344}
    assert largest(name) == known[name]


def test_that_integers_are_scaled_to_the_tensor() -> None:
    torch.manual_seed(0)
    layer = made("emulated:int8").convert(nn.Sequential(nn.Linear(24, 16, bias=False)))[0]
    x = torch.randn(5, 24) * 1e-3
    step_x, step_w = x.abs().max() / 127, layer.weight.detach().abs().max() / 127
    expected = torch.round(x / step_x) @ torch.round(layer.weight / step_w).t() * step_x * step_w
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "block", "element"),
    [("mxfp8", 32, gfloat.formats.format_info_ocp_e4m3), ("mxfp6", 32, gfloat.formats.format_info_ocp_e2m3),
     ("mxfp4", 32, gfloat.formats.format_info_ocp_e2m1)],
)  # fmt: skip
def test_that_mx_blocks_run_along_the_sum_of_each_product(name: str, block: int, element: gfloat.FormatInfo) -> None:
    torch.manual_seed(0)
    layer = made(name).convert(nn.Sequential(nn.Linear(2 * block, 3 * block, bias=False)))[0]
    x, grad = torch.randn(block, 2 * block), torch.randn(block, 3 * block)
    out, grad_x, grad_w = gradients(layer, x, grad)

    def mx(tensor: Tensor, axis: int) -> Tensor:
        rows = tensor.detach().movedim(axis, -1)
        blocks = rows.reshape(-1, block).double().numpy()
        scales = 2.0 ** (np.floor(np.log2(np.abs(blocks).max(1, keepdims=True))) - element.emax)
        rounded = gfloat.round_ndarray(element, blocks / scales, sat=True) * scales
        return torch.from_numpy(rounded).float().reshape(rows.shape).movedim(-1, axis)

    torch.testing.assert_close(out, mx(x, 1) @ mx(layer.weight, 1).t())
    torch.testing.assert_close(grad_x, mx(grad, 1) @ mx(layer.weight, 0))
    torch.testing.assert_close(grad_w, mx(grad, 0).t() @ mx(x, 0))


@pytest.mark.parametrize("transposed", [False, True])
def test_that_blocks_in_a_convolution_run_along_channels_and_samples(transposed: bool) -> None:
    torch.manual_seed(0)
    make = nn.ConvTranspose2d if transposed else nn.Conv2d
    layer = made("mxfp8").convert(nn.Sequential(make(32, 64, 1, bias=False)))[0]
    linear = made("mxfp8").convert(nn.Sequential(nn.Linear(32, 64, bias=False)))[0]
    weight = layer.weight.detach()[:, :, 0, 0]
    with torch.no_grad():
        linear.weight.copy_(weight.t() if transposed else weight)
    x, grad = torch.randn(32, 32), torch.randn(32, 64)
    found = gradients(layer, x[:, :, None, None], grad[:, :, None, None])
    expected = gradients(linear, x, grad)
    for value, reference in zip(found, expected, strict=True):
        value = value[:, :, 0, 0]
        torch.testing.assert_close(value.t() if value.shape != reference.shape else value, reference)


def test_that_a_short_accumulator_stops_growing() -> None:
    """4 096 ones summed in BF16, one by one, stick at 256."""
    precision = made("emulated:bf16", "precision_options.accumulator=bf16", "precision_options.accumulator_block=1")
    layer = precision.convert(nn.Sequential(nn.Linear(4096, 1, bias=False)))[0]
    nn.init.ones_(layer.weight)
    assert layer(torch.ones(1, 4096)).item() == 256.0
    assert precision.labels == {"0": "bf16 summed in bf16"}


@pytest.mark.parametrize(
    "layer",
    [nn.Linear(40, 6), nn.Conv2d(8, 6, 3, padding=1, stride=2), nn.ConvTranspose2d(8, 6, 3, stride=2)],
    ids=["linear", "convolution", "transposed"],
)
def test_that_blocks_of_a_sum_add_up_to_the_sum(layer: Any) -> None:
    """With an accumulator that rounds nothing, cutting the sum must not change it."""
    torch.manual_seed(0)
    x = torch.randn((5, 40) if isinstance(layer, nn.Linear) else (5, 8, 7, 7))
    grad = torch.randn_like(layer(x))
    expected = gradients(layer, x, grad)
    emulated = made("emulated:fp32", "precision_options.accumulator=fp32").convert(nn.Sequential(layer))[0]
    emulated.products = emulated.products.__class__(
        **{**emulated.products.__dict__, "accumulator": Accumulator(lambda total: total, 7)}
    )
    for found, reference in zip(gradients(emulated, x, grad), expected, strict=True):
        torch.testing.assert_close(found, reference, rtol=1e-4, atol=1e-5)


def test_that_stored_weights_are_in_their_format(record: Record) -> None:
    precision = made("emulated:fp32", "precision_options.updates=e5m2", "precision_options.keep_fp32=last")
    model = precision.convert(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
    optimizer = torch.optim.SGD(precision.weights(model), lr=0.1)
    for _ in range(2):
        model(torch.randn(4, 8)).sum().backward()
        precision.step(optimizer)
        for parameter in model[0].parameters():
            assert torch.equal(parameter, cast(parameter, ml_dtypes.float8_e5m2))
        assert not torch.equal(model[1].weight, cast(model[1].weight, ml_dtypes.float8_e5m2))


def test_that_stochastic_rounding_is_the_same_when_computed_again(record: Record) -> None:
    settings = ("precision=emulated:e4m3fn", "precision_options.rounding=stochastic", "train.max_steps=4")
    curves = [
        [(e.loss, e.grad_norm) for e in record(*settings, f"train.checkpointing={value}") if isinstance(e, StepDone)]
        for value in ("false", "false", "true")
    ]
    assert curves[0] == curves[1] == curves[2]


def test_that_what_is_left_in_fp32_is_told() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent, self.head = nn.LSTM(4, 4), nn.Linear(4, 2)

    precision = made("fp8")
    precision.convert(Mixed())
    assert any(note.startswith("products inside recurrent stay in FP32") for note in precision.notes)
    with pytest.raises(EngineError, match="no linear or convolutional layer"):
        made("fp8").convert(nn.LayerNorm(3))
