"""Products of rounded operands: against other implementations of the formats, and native FP8 against its emulation."""

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
from precgui.engine import native_fp8, precisions
from precgui.engine.accumulate import Accumulator
from precgui.engine.emulate import EmulatedConv2d, EmulatedLinear
from precgui.engine.errors import EngineError
from precgui.engine.precisions import Precision
from precgui.engine.precisions.low import largest
from precgui.engine.rounding import Clock, Scale
from precgui.events import Incident, RunStarted, StepDone
from tests.engine.conftest import Record

CPU = torch.device("cpu")


def made(name: str, *settings: str) -> Precision:
    return precisions.make(config.load("digits-quick", [f"precision={name}", *settings]), CPU)


def cast(tensor: Tensor, dtype: Any) -> Tensor:
    return torch.from_numpy(tensor.detach().numpy().astype(dtype).astype(np.float32))


def fp8(tensor: Tensor, dtype: torch.dtype, axis: int | None = None) -> Tensor:
    """Scaled, saturated, rounded and scaled back with torch's own casts."""
    amax = tensor.abs().amax() if axis is None else tensor.abs().amax(axis, keepdim=True)
    scale = torch.finfo(dtype).max / amax
    return (tensor * scale).to(dtype).float() / scale


def gradients(layer: nn.Module, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x = x.clone().requires_grad_()
    layer.zero_grad()
    out = layer(x)
    out.backward(grad)
    assert x.grad is not None
    assert layer.weight.grad is not None
    return out.detach(), x.grad, layer.weight.grad  # type: ignore[return-value]


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


@pytest.mark.parametrize("scaling", ["tensorwise", "rowwise"])
def test_that_fp8_scales_e4m3_forward_and_e5m2_backward(scaling: str) -> None:
    torch.manual_seed(0)
    precision = made("fp8", f"precision_options.fp8_scaling={scaling}")
    layer = precision.convert(nn.Sequential(nn.Linear(32, 16, bias=False)))[0]
    x, grad = torch.randn(48, 32) * 1e-3, torch.randn(48, 16) * 1e-9
    out, grad_x, grad_w = gradients(layer, x, grad)
    rows, columns = (1, 0) if scaling == "rowwise" else (None, None)
    e4m3, e5m2 = torch.float8_e4m3fn, torch.float8_e5m2
    weight = layer.weight.detach()
    torch.testing.assert_close(out, fp8(x, e4m3, rows) @ fp8(weight, e4m3, rows).t(), rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(grad_x, fp8(grad, e5m2, rows) @ fp8(weight, e4m3, columns), rtol=1e-4, atol=1e-14)
    torch.testing.assert_close(grad_w, fp8(grad, e5m2, columns).t() @ fp8(x, e4m3, columns), rtol=1e-4, atol=1e-16)
    assert (grad_w != 0).float().mean() > 0.99, "a cast of the gradient would flush it"


def test_that_delayed_scaling_uses_the_batches_before() -> None:
    clock = Clock(0)
    scale = Scale(448.0, clock, history=2)
    found = []
    for amax in (1.0, 4.0, 2.0, 0.5):
        clock.tick += 1
        found.append(scale(torch.tensor([-amax, 0.1]), 0).item())
        scale(torch.tensor([-amax, 0.1]), 0)  # computed again
    assert found == [448.0, 448.0, 112.0, 112.0]
    with torch.inference_mode():
        clock.tick += 1
        scale(torch.tensor([1000.0]), 0)
    clock.tick += 1
    assert scale(torch.tensor([1.0]), 0).item() == 224.0, "validation leaves no trace"


@pytest.mark.parametrize(("values", "expected"), [([0.0, 0.0], 1.0), ([1e-30, 0.0], None), ([float("nan"), 1.0], None)])
def test_that_a_scale_is_usable_at_the_edges(values: list[float], expected: float | None) -> None:
    factor = Scale(448.0, Clock(0))(torch.tensor(values), 0).item()
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


@pytest.mark.parametrize(
    ("capability", "device", "hip", "native"),
    [((8, 9), "cuda", None, True), ((9, 0), "cuda", None, True), ((8, 0), "cuda", None, False),
     ((9, 4), "cuda", "6.0", False), ((9, 0), "cpu", None, False)],
)  # fmt: skip
def test_that_native_fp8_is_used_where_the_hardware_has_it(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], device: str, hip: str | None, native: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.version, "hip", hip)
    assert native_fp8.available(torch.device(device)) is native


def fp8_network(monkeypatch: pytest.MonkeyPatch, *settings: str) -> tuple[Precision, nn.Module]:
    monkeypatch.setattr(native_fp8, "available", lambda _: True)
    precision = made("fp8", *settings)
    torch.manual_seed(0)
    return precision, precision.convert(
        nn.Sequential(nn.Conv2d(1, 4, 2), nn.Flatten(), nn.Linear(16, 32), nn.Linear(32, 10))
    )


def test_that_layers_that_do_not_fit_are_emulated_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    precision, model = fp8_network(monkeypatch)
    assert [type(layer) for layer in model] == [EmulatedConv2d, nn.Flatten, native_fp8.NativeLinear, EmulatedLinear]
    assert set(precision.labels) == {"0", "3"}
    assert precision.notes[0].startswith("FP8 is native in 1 layers")
    assert precision.notes[1].startswith("e4m3fn (gradients e5m2) is emulated in 2 layers")


@pytest.mark.parametrize("setting", ["rounding=stochastic", "accumulator=fp16"])
def test_that_what_the_hardware_cannot_do_is_emulated(monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    _, model = fp8_network(monkeypatch, f"precision_options.{setting}")
    assert isinstance(model[2], EmulatedLinear)


@pytest.mark.parametrize("scaling", ["tensorwise", "rowwise"])
def test_that_native_products_agree_with_emulated_ones(monkeypatch: pytest.MonkeyPatch, scaling: str) -> None:
    """torch's CPU has _scaled_mm, too, as a slow reference: the numbers can be compared without the hardware."""
    setting = f"precision_options.fp8_scaling={scaling}"
    _, native = fp8_network(monkeypatch, setting)
    monkeypatch.undo()
    emulated = made("fp8", setting).convert(nn.Sequential(nn.Linear(16, 32)))
    emulated.load_state_dict({"0.weight": native[2].weight, "0.bias": native[2].bias})
    x, grad = torch.randn(3, 7, 16), torch.randn(3, 7, 32)
    for found, reference in zip(gradients(native[2], x, grad), gradients(emulated[0], x, grad), strict=True):
        torch.testing.assert_close(found, reference, rtol=2**-7, atol=2**-7 * reference.abs().max().item())


def test_that_delayed_rows_are_refused() -> None:
    with pytest.raises(EngineError, match="fp8_amax = delayed goes with fp8_scaling = tensorwise only"):
        made("fp8", "precision_options.fp8_amax=delayed", "precision_options.fp8_scaling=rowwise")


def test_that_emulation_is_labelled_in_the_run(record: Record) -> None:
    events = record("precision=fp8", "precision_options.fp8_amax=delayed", "train.max_steps=3")
    started = events[0]
    assert isinstance(started, RunStarted)
    assert "is emulated in 4 layers" in started.engine["notes"][0]
    assert next(e.kind for e in events if isinstance(e, Incident)) == "emulated"
