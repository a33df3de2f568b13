"""Files of compressed-tensors: every number comes back as it was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from precgui.engine.errors import EngineError
from precgui.engine.ptq.compressed_tensors import comes_back, write_compressed
from precgui.engine.ptq.layer_matrix import mark_turned
from precgui.engine.ptq.methods import quantise_layers
from precgui.engine.ptq.rounding import coded_rows
from precgui.formats.checkpoints.contents import open_checkpoint
from precgui.formats.checkpoints.target_forms import compressed_layout
from precgui.formats.weight_formats import weight_format


def installed() -> bool:
    try:
        import compressed_tensors.quantization  # noqa: F401
    except ImportError:
        return False
    return True


NAMES = ["int4/128", "vllm:w4a16", "int8/row", "vllm:w8a8", "e4m3fn/row", "vllm:mxfp4", "mxfp4", "vllm:nvfp4"]


@pytest.mark.parametrize("method", ["rtn", "gptq"])
def test_that_a_mixed_model_comes_back_bit_for_bit(method: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(128, 128) for _ in NAMES), nn.Linear(128, 8), nn.LayerNorm(8))
    layers = {str(n): model[n] for n in range(len(NAMES))}
    formats = {str(n): weight_format(name) for n, name in enumerate(NAMES)}
    inputs = torch.randn(64, 128)
    low = quantise_layers(layers, formats, method, inputs=False, passes=[lambda: model(inputs)])
    folder = tmp_path / "out"
    written = write_compressed(folder, model, layers, low, formats, {"model_type": "mine"})
    assert [path.name for path in written] == ["model.safetensors", "config.json"]
    assert comes_back(folder, low, formats) == ("compressed-tensors" if installed() else "precgui")
    stored = {each.name: each for each in open_checkpoint(folder).tensors}
    for name, each in low.items():  # precgui's own reader, whatever library is installed
        tensor = stored[f"{name}.weight"]
        assert torch.equal(torch.from_numpy(tensor.read(0, tensor.size)).view(128, 128), each.coded.values)
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "mine" and config["quantization_config"]["format"] == "mixed-precision"
    assert config["quantization_config"]["ignore"] == ["8"] and stored["8.weight"].dtype == "fp32"
    assert stored["9.weight"].dtype == "bf16"  # ones, which BF16 holds
    changed = low | {"0": low["1"]}
    assert comes_back(folder, changed, formats) == ""
    with pytest.raises(FileExistsError):
        write_compressed(folder, model, layers, low, formats, {})


def test_that_what_has_no_place_in_the_file_is_told(tmp_path: Path) -> None:
    layer, inputs = nn.Linear(32, 8), torch.randn(16, 32)

    def write(name: str, method: str, made: nn.Module = layer) -> None:
        fmt = {"a": weight_format(name)}
        low = quantise_layers({"a": made}, fmt, method, inputs=False, passes=[lambda: made(inputs)])
        write_compressed(tmp_path / "o", made, {"a": made}, low, fmt, {})

    with pytest.raises(EngineError, match="no place for the scale of the inputs of a in int8/row"):
        write("int8/row", "smooth")
    with pytest.raises(EngineError, match="no form for nvfp4"):
        write("nvfp4", "rtn")
    with pytest.raises(EngineError, match="a is a convolution"):
        write("int8/row", "rtn", nn.Conv1d(2, 3, 3))
    with pytest.raises(EngineError, match="no form for gguf:q8_0"):
        write("gguf:q8_0", "rtn")
    mark_turned(layer)
    with pytest.raises(EngineError, match=r"stored as \[inputs, outputs\]"):
        write("int8/row", "rtn")
    assert not (tmp_path / "o").exists()


def test_that_nvfp4_is_rounded_as_compressed_tensors_rounds_it() -> None:
    helpers = pytest.importorskip(
        "compressed_tensors.quantization.utils.helpers", reason="compressed-tensors is not installed"
    )
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize

    torch.manual_seed(0)
    rows = torch.randn(64, 256) * torch.randn(64, 256).exp()
    rows[3], rows[5] = 0, rows[5] * 1e-7
    fmt, groups = weight_format("vllm:nvfp4"), rows.view(64, 16, 16)
    layout = compressed_layout(fmt)
    assert layout is not None
    arguments = QuantizationArgs(**layout.arguments)
    factor = helpers.generate_gparam(rows.min(), rows.max())
    scales, _ = helpers.calculate_qparams(groups.amin(-1), groups.amax(-1), arguments, factor)
    theirs = fake_quantize(rows, scales.float(), None, arguments, global_scale=factor)
    assert torch.equal(coded_rows(rows, fmt).values, theirs)
