"""GPTQ, AWQ and SmoothQuant beside libraries, where these are installed: the same layer, inputs and groups."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from precgui.engine.ptq import channel_scales
from precgui.engine.ptq.channel_scales import awq_scale, smooth_scale
from precgui.engine.ptq.methods import DAMPING, gptq
from precgui.formats.checkpoints.target_forms import compressed_layout
from precgui.formats.weight_formats import weight_format
from tests.engine.ptq.test_methods import correlated


def outliers(count: int, line: int) -> Tensor:
    inputs = torch.randn(count, line, generator=torch.Generator().manual_seed(0))
    inputs[:, [3, 40, line - 9]] *= 25
    return inputs


@pytest.mark.parametrize("bits", [8, 4])
def test_that_awq_chooses_the_scale_of_torchao(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    core = pytest.importorskip("torchao.prototype.awq.core", reason="torchao is not installed")
    from torchao.quantization import IntxWeightOnlyConfig
    from torchao.quantization.granularity import PerGroup
    from torchao.quantization.transform_module import _QUANTIZE_CONFIG_HANDLER
    from torchao.utils import DummyModule

    rows, inputs = torch.randn(32, 128, generator=torch.Generator().manual_seed(1)), outliers(128, 128)
    config = IntxWeightOnlyConfig(weight_dtype=vars(torch)[f"int{bits}"], granularity=PerGroup(32))
    observer = core.AWQObserver(rows, None, config, 20)
    observer(inputs, None)
    theirs = observer.calculate_qparams()

    def rounded(weights: Tensor) -> Tensor:
        result: Tensor = _QUANTIZE_CONFIG_HANDLER[type(config)](DummyModule(weights), config).weight.dequantize()
        return result

    monkeypatch.setattr(channel_scales, "EXPONENTS", tuple(n / 20 for n in range(20)))  # those of torchao
    ours = awq_scale([(rows, rounded)], inputs.abs().mean(0), inputs, lambda scale: scale)
    assert torch.allclose(ours, theirs, rtol=1e-6) and float(ours.max() / ours.min()) > 2


def test_that_smoothquant_has_the_scale_of_torchao_but_for_a_factor() -> None:
    core = pytest.importorskip("torchao.prototype.smoothquant.core", reason="torchao is not installed")
    rows, inputs = torch.randn(32, 128, generator=torch.Generator().manual_seed(1)), outliers(128, 128)
    observer = core.SmoothQuantObserver(rows, channel_scales.SMOOTH_EXPONENT)
    observer(inputs)
    ratio = smooth_scale(inputs.abs().amax(0), rows.abs().amax(0)) / observer.calculate_qparams()[0]
    assert float(ratio.max() / ratio.min()) == pytest.approx(1, abs=1e-5)  # ours has 1 midway between its ends


@pytest.mark.parametrize(("name", "equal", "worse"), [("vllm:w8a8", 0.995, 1.01), ("vllm:w4a16", 0.85, 1.1)])
def test_that_gptq_has_the_codes_of_llm_compressor(name: str, equal: float, worse: float) -> None:
    library = pytest.importorskip(
        "llmcompressor.modifiers.gptq.gptq_quantize", reason="llm-compressor is not installed", exc_type=ImportError
    )
    observers = pytest.importorskip("llmcompressor.observers", exc_type=ImportError)
    from compressed_tensors.quantization import QuantizationArgs

    rows, inputs = torch.randn(64, 256, generator=torch.Generator().manual_seed(1)), correlated(600, 256)
    hessian, fmt = (inputs.T @ inputs).double() / len(inputs), weight_format(name)
    layout = compressed_layout(fmt)
    assert layout is not None
    arguments = QuantizationArgs(**layout.arguments)
    observer = observers.Observer.load_from_registry("memoryless_minmax", base_name="weight", args=arguments)
    observer(rows)
    known = observer.get_qparams()
    found = library.quantize_weight(
        weights=rows[None].clone(), hessians=hessian.float()[None].clone(), scale=known["scale"][None],
        zero_point=known["zero_point"][None], global_scale=None, quant_args=arguments, percdamp=DAMPING,
    )[0]  # fmt: skip
    theirs = (found["weight"] if isinstance(found, dict) else found).reshape(rows.shape)
    ours = gptq(rows, hessian, fmt)
    codes = torch.round(theirs / known["scale"].repeat_interleave(256 // known["scale"].shape[1], 1))
    # groups: the library has their scales before the first column, the paper when their first column comes
    assert float((codes == ours.codes).double().mean()) > equal

    def error(weights: Tensor) -> float:
        return float((inputs.double() @ (weights - rows).double().T).square().mean())

    assert error(ours.values) < worse * error(theirs)
