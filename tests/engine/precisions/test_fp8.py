"""FP8: the emulation against torchao's and torch's casts, and the products on tensor cores against the emulation."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from precgui import config
from precgui.engine import accumulation, precisions
from precgui.engine.emulation import native_fp8
from precgui.engine.emulation.layers import EmulatedConv2d, EmulatedLinear
from precgui.engine.emulation.operands import AmaxScale, BatchSeed
from precgui.engine.errors import EngineError
from precgui.engine.precisions import low
from precgui.engine.precisions.base import Precision
from precgui.events import Facts, Incident, RunStarted
from tests.engine.conftest import Record
from tests.engine.matrix_unit import MatrixUnit
from tests.engine.precisions.layer_gradients import gradients

CPU = torch.device("cpu")
SHORT_SUMS = "sums keep 14 bits, truncated; after every 128 terms the partial sum is added in FP32"
TORCHAO = {"tensorwise": "TENSORWISE", "rowwise": "AXISWISE"}


def made(name: str, *settings: str) -> Precision:
    return precisions.make(config.load("digits-quick", [f"precision={name}", *settings]), CPU)


def fp8(tensor: Tensor, dtype: torch.dtype, axis: int | None = None) -> Tensor:
    """Scaled, saturated, rounded and scaled back with torch's own casts."""
    amax = tensor.abs().amax() if axis is None else tensor.abs().amax(axis, keepdim=True)
    scale = torch.finfo(dtype).max / amax
    return (tensor * scale).to(dtype).float() / scale


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(48, 32), nn.Tanh(), nn.Linear(32, 17))


def all_gradients(model: nn.Module, x: Tensor, grad: Tensor) -> dict[str, Tensor]:
    """The result, and what comes back to the input and to each parameter."""
    x = x.clone().requires_grad_()
    out = model(x)
    out.backward(grad)
    found = {"out": out.detach(), "x": x.grad, **{name: p.grad for name, p in model.named_parameters()}}
    return {name: value for name, value in found.items() if value is not None}


def by_torchao(model: nn.Module, scaling: str) -> nn.Module:
    """torchao's own emulation of its FP8 training, with gradients in E5M2 and scales that are no powers of two."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    from torchao.float8.config import CastConfig, ScalingGranularity

    def cast() -> CastConfig:
        return CastConfig(scaling_granularity=ScalingGranularity[TORCHAO[scaling]])

    wanted = Float8LinearConfig(
        cast_config_input=cast(), cast_config_weight=cast(), cast_config_grad_output=cast(), emulate=True
    )
    turned: nn.Module = convert_to_float8_training(copy.deepcopy(model), config=wanted)
    return turned


@pytest.mark.parametrize("scaling", ["tensorwise", "rowwise"])
@pytest.mark.parametrize("shape", [(24, 48), (3, 7, 48)])
def test_that_fp8_is_that_of_torchao(scaling: str, shape: tuple[int, ...]) -> None:
    model = network()
    ours = made("fp8", f"precision_options.fp8_scaling={scaling}").convert(copy.deepcopy(model))
    x, grad = torch.randn(shape) * torch.randn(shape).exp(), torch.randn(*shape[:-1], 17) * 1e-6
    found, reference = all_gradients(ours, x, grad), all_gradients(by_torchao(model, scaling), x, grad)
    assert found.keys() == reference.keys()
    for name, value in found.items():
        size = reference[name].abs().max().item()
        torch.testing.assert_close(value, reference[name], rtol=1e-5, atol=1e-6 * size, msg=name)


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
    clock = BatchSeed(0)
    scale = AmaxScale(448.0, clock, history=2)
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
    assert [type(layer) for layer in model] == [EmulatedConv2d, nn.Flatten, native_fp8.NativeLinear, EmulatedLinear]  # type: ignore[attr-defined]
    assert set(precision.labels) == {"0", "3"}
    assert precision.notes[0].startswith("FP8 is native in 1 layer (")
    assert precision.notes[1].startswith("e4m3fn (gradients e5m2) is emulated in 2 layers")


@pytest.mark.parametrize("setting", ["rounding=stochastic", "accumulator=fp16"])
def test_that_what_the_hardware_cannot_do_is_emulated(monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    _, model = fp8_network(monkeypatch, f"precision_options.{setting}")
    assert isinstance(model[2], EmulatedLinear)


@pytest.mark.usefixtures("fp8_products")
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
        torch.testing.assert_close(found, reference, rtol=1e-5, atol=1e-6 * reference.abs().max().item())


@pytest.mark.parametrize("scaling", ["tensorwise", "rowwise"])
def test_that_sums_as_on_hopper_are_near_those_in_fp32(scaling: str) -> None:
    """Within the bits that are kept: of 1024 terms forward, of 272 and of 32 backward."""
    found = []
    for settings in ((), ("precision_options.fp8_sums=hopper",)):
        torch.manual_seed(0)
        precision = made("fp8", f"precision_options.fp8_scaling={scaling}", *settings)
        layer = precision.convert(nn.Sequential(nn.Linear(1024, 32)))[0]
        x, grad = torch.randn(272, 1024), torch.randn(272, 32)
        found.append(gradients(layer, x, grad))
    apart = [float((ours - exact).norm() / exact.norm()) for exact, ours in zip(*found, strict=True)]
    assert 2e-4 < apart[0] < 1e-3, "forward, 1024 terms in 14 bits"
    assert max(apart[1:]) < 2e-4, "gradients, in parts of 128 terms"
    assert min(apart[1:]) > 1e-5


def test_that_sums_as_on_hopper_are_emulated_and_told() -> None:
    precision = made("fp8", "precision_options.fp8_sums=hopper")
    model = precision.convert(nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 10)))
    assert [type(layer) for layer in model.children()] == [native_fp8.NativeLinear, EmulatedLinear]
    assert precision.labels == {
        "0": "e4m3fn (gradients e5m2) summed as on Hopper",
        "1": "e4m3fn (gradients e5m2)",
    }
    assert (
        "sums keep 14 bits, truncated, and those of gradients are added in FP32 after every 128" in precision.notes[0]
    )
    assert precision.notes[1].startswith("e4m3fn (gradients e5m2) is emulated in 1 layer")


def test_that_a_model_without_a_layer_that_fits_is_told_so() -> None:
    precision = made("fp8", "precision_options.fp8_sums=hopper")
    precision.convert(nn.Sequential(nn.Linear(16, 10)))
    assert precision.notes[0].endswith("changes nothing here: no linear layer has sizes that are multiples of 16")
    assert not any("summed as on Hopper" in label for label in precision.labels.values())


def test_that_a_run_trains_with_sums_as_on_hopper_and_counts_them(record: Record) -> None:
    settings = ("precision=fp8", "precision_options.fp8_sums=hopper", "train.max_steps=1", "data.batch_size=4")
    events = record(*settings, recipe="gpt-quick")
    census = next(event.values["census"] for event in events if isinstance(event, Facts))
    assert census["formats"]["e4m3fn (gradients e5m2) summed as on Hopper (emulated)"] > 0


@pytest.mark.parametrize(
    ("planted", "told"),
    [
        (
            MatrixUnit(14, 32, 128),
            f"FP8 products forward: {SHORT_SUMS}; FP8 products of gradients: {SHORT_SUMS}",
        ),
        (MatrixUnit(24, 1, rounding="nearest_even"), None),
    ],
)
def test_that_native_layers_tell_how_their_products_are_added(
    monkeypatch: pytest.MonkeyPatch, planted: MatrixUnit, told: str | None
) -> None:
    monkeypatch.setattr(accumulation, "scaled_mm", planted.scaled_mm)
    monkeypatch.setattr(accumulation, "SIDE", 32)
    low.sums_notes.cache_clear()
    precision, _ = fp8_network(monkeypatch)
    low.sums_notes.cache_clear()
    assert precision.notes[0].startswith("FP8 is native in 1 layer (")
    assert (precision.notes[1] == told) if told else ("sums" not in precision.notes[1])


def test_that_sums_that_cannot_be_measured_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> Tensor:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(accumulation, "scaled_mm", refuse)
    low.sums_notes.cache_clear()
    precision, _ = fp8_network(monkeypatch)
    low.sums_notes.cache_clear()
    assert not any("sums" in note for note in precision.notes)


def test_that_delayed_rows_are_refused() -> None:
    with pytest.raises(EngineError, match="fp8_amax = delayed goes with fp8_scaling = tensorwise only"):
        made("fp8", "precision_options.fp8_amax=delayed", "precision_options.fp8_scaling=rowwise")


def test_that_emulation_is_labelled_in_the_run(record: Record) -> None:
    events = record("precision=fp8", "precision_options.fp8_amax=delayed", "train.max_steps=3")
    started = events[0]
    assert isinstance(started, RunStarted)
    assert "is emulated in 4 layers" in started.engine["notes"][0]
    assert next(e.kind for e in events if isinstance(e, Incident)) == "emulated"
