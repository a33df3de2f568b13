"""Files of torchao: every number comes back as it was measured, by precgui and by the library."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from precgui.engine.ptq.methods import quantise_layers
from precgui.engine.ptq.model_files import write_model
from precgui.formats.checkpoints.contents import open_checkpoint
from precgui.formats.tensorfile import metadata_of
from precgui.formats.weight_formats import weight_format

INT4: torch.dtype = vars(torch)["int4"]  # which the stubs do not know
NAMES = ["int4/32", "torchao:int8", "int8/row", "e4m3fn/row", "int3/64"]


@pytest.mark.parametrize("method", ["rtn", "gptq"])
def test_that_a_mixed_model_comes_back_bit_for_bit(method: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in NAMES), nn.Linear(64, 8))
    layers = {str(n): model[n] for n in range(len(NAMES))}
    formats = {str(n): weight_format(name) for n, name in enumerate(NAMES)}
    inputs = torch.randn(64, 64)
    low = quantise_layers(layers, formats, method, inputs=False, passes=[lambda: model(inputs)])
    folder = tmp_path / "out"
    paths, reader = write_model("torchao", folder, model, layers, low, formats, {"model_type": "mine"})
    assert [path.name for path in paths] == ["model.safetensors", "config.json"]
    assert reader in ("torchao", "precgui")
    stored = {each.name: each for each in open_checkpoint(folder).tensors}
    for name, each in low.items():  # precgui's own reader, whatever library is installed
        tensor = stored[f"{name}.weight"]
        assert torch.equal(torch.from_numpy(tensor.read(0, tensor.size)).view(64, 64), each.coded.values)
        assert tensor.stored_as == "torchao, a byte a number"
    assert stored["0.bias"].dtype == "fp32" and len(stored) == 12


def test_that_the_library_writes_the_same_texts_and_reads_the_file(tmp_path: Path) -> None:
    quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    support = pytest.importorskip(
        "torchao.prototype.safetensors.safetensors_support", reason="this torchao writes no safetensors"
    )
    from torchao.core.config import config_from_dict
    from torchao.quantization.granularity import PerAxis, PerGroup

    model = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 32), nn.Linear(32, 8))
    names = {"0": "int4/32", "1": "e4m3fn/row", "2": "torchao:int8"}
    formats = {name: weight_format(each) for name, each in names.items()}
    layers = {name: model.get_submodule(name) for name in names}
    low = quantise_layers(layers, formats, "rtn", inputs=False, passes=[])
    folder = tmp_path / "out"
    _, reader = write_model("torchao", folder, model, layers, low, formats, {})
    assert reader == "torchao"
    intx, float8 = quantization.IntxWeightOnlyConfig, quantization.Float8WeightOnlyConfig
    config = quantization.FqnToConfig({"0": intx(weight_dtype=INT4, granularity=PerGroup(32)), "1": float8(),
                                       "2": intx(weight_dtype=torch.int8, granularity=PerAxis(0))})  # fmt: skip
    quantization.quantize_(model, config, filter_fn=None)
    state = {name: value.data for name, value in model.state_dict().items()}
    tensors, texts = support.flatten_tensor_state_dict(state)
    ours = metadata_of(folder / "model.safetensors")
    assert {name: json.loads(ours[name]) for name in texts if name != "tensor_names"} == {
        name: json.loads(text) for name, text in texts.items() if name != "tensor_names"
    }
    assert set(json.loads(ours["tensor_names"])) == set(json.loads(texts["tensor_names"]))
    written = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert written["quant_method"] == "torchao"
    read = config_from_dict(written["quant_type"]["default"])
    assert read.fqn_to_config == config.fqn_to_config
    assert tensors["0._weight_qdata"].shape == (32, 64)
