"""Scales of AWQ and SmoothQuant in files: folded into the layer before, or beside the weight, as they were measured."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from precgui.engine.errors import EngineError
from precgui.engine.models.transformer import Gpt
from precgui.engine.ptq.compressed_tensors import keeps_absorbed
from precgui.engine.ptq.layer_matrix import matrix_layers
from precgui.engine.ptq.methods import quantise_layers
from precgui.engine.ptq.model_files import write_model
from precgui.engine.ptq.quantised_layers import QuantisedLayer, applied
from precgui.engine.ptq.recipes import llm_compressor_recipe, torchao_recipe
from precgui.engine.ptq.scale_folds import ScaleFold, ScalePlaces, scale_folds
from precgui.formats.checkpoints.contents import open_checkpoint
from precgui.formats.checkpoints.target_forms import keeps_input_scale
from precgui.formats.weight_formats import weight_format

WIDTH, WIDE = 64, 96


class Block(nn.Module):
    """One block of LLaMA: attention and a gated perceptron, each after a norm."""

    def __init__(self, heads: int = 4, values: int = 4, bias: bool = False) -> None:
        super().__init__()
        self.heads, self.values = heads, values
        head = WIDTH // heads
        self.first, self.second = nn.RMSNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q_proj, self.o_proj = nn.Linear(WIDTH, WIDTH, bias=bias), nn.Linear(WIDTH, WIDTH, bias=bias)
        self.k_proj, self.v_proj = (nn.Linear(WIDTH, values * head, bias=bias) for _ in range(2))
        self.gate_proj, self.up_proj = (nn.Linear(WIDTH, WIDE, bias=bias) for _ in range(2))
        self.down_proj = nn.Linear(WIDE, WIDTH, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        inputs = self.first(x)
        q, k, v = (
            layer(inputs).view(batch, length, count, -1).transpose(1, 2)
            for layer, count in ((self.q_proj, self.heads), (self.k_proj, self.values), (self.v_proj, self.values))
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.values < self.heads)
        x = x + self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))
        inputs = self.second(x)
        return x + self.down_proj(functional.silu(self.gate_proj(inputs)) * self.up_proj(inputs))


def planted(bias: bool = False) -> tuple[nn.Sequential, Tensor]:
    """Two blocks and a head; three channels after each norm are far wider, the columns behind as much narrower."""
    torch.manual_seed(0)
    model = nn.Sequential(Block(bias=bias), Block(bias=bias), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)).eval()
    wide = torch.tensor([3, 17, 40])
    with torch.no_grad():
        for block in list(model)[:2]:
            for norm, behind in ((block.first, (block.q_proj, block.k_proj, block.v_proj)),
                                 (block.second, (block.gate_proj, block.up_proj))):  # fmt: skip
                norm.weight[wide] *= 30
                for layer in behind:
                    layer.weight[:, wide] /= 30
    return model, torch.randn(4, 12, WIDTH)


def found(model: nn.Module, inputs: Tensor) -> dict[str, tuple[str, ...]]:
    return {fold.source: fold.layers for fold in scale_folds(model, matrix_layers(model), lambda: model(inputs))}


def quantised(model: nn.Module, inputs: Tensor, method: str, formats: str, target: str) -> dict[str, QuantisedLayer]:
    layers = matrix_layers(model)
    folds = scale_folds(model, layers, lambda: model(inputs[:1]))
    places = ScalePlaces(model, tuple(folds), partial(keeps_input_scale, target))
    chosen = dict.fromkeys(layers, weight_format(formats))
    return quantise_layers(layers, chosen, method, inputs=False, passes=[lambda: model(inputs)], places=places)


def test_that_norms_and_linear_layers_before_others_are_found() -> None:
    model, inputs = planted()
    exact = model(inputs).detach()
    blocks = {
        f"{n}.{source}": tuple(f"{n}.{name}_proj" for name in names)
        for n in range(2)
        for source, names in (("first", "qkv"), ("v_proj", "o"), ("second", ("gate", "up")), ("up_proj", ("down",)))
    }
    assert found(model, inputs) == {**blocks, "2": ("3",)}
    assert torch.equal(model(inputs), exact)  # as it was


class Other(nn.Module):
    """What must not be folded, by `kind`."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.norm, self.embedding = kind, nn.LayerNorm(WIDTH), nn.Embedding(20, WIDTH)
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 20, bias=False)
        if kind == "tied":
            self.b.weight = self.embedding.weight
        if kind == "one more":
            self.norm = OneMore()

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        if self.kind == "residual":
            return self.b(functional.gelu(self.a(y))) + y[..., :20]
        if self.kind == "part":
            return self.b(functional.gelu(self.a(y[:, -1:])))
        if self.kind == "half":
            return self.b(functional.gelu(self.a(torch.cat([y[..., :32], y[..., 32:]], -1))))
        if self.kind == "twice":
            return self.b(functional.gelu(self.a(functional.gelu(self.a(y)))))
        if self.kind == "square":
            return self.b(functional.gelu(self.a(y * y)))
        if self.kind == "tied":
            return self.b(y)
        return self.b(functional.gelu(self.a(y)))


class OneMore(nn.Module):
    """The norm of Gemma: its weight is one less than its factor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.1 * torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, (WIDTH,)) * (1 + self.weight)


@pytest.mark.parametrize("kind", ["residual", "half", "twice", "square", "tied", "one more"])
def test_that_outputs_with_another_use_are_not_scaled(kind: str) -> None:
    torch.manual_seed(0)
    assert found(Other(kind), torch.randn(3, 5, WIDTH)) == {}
    for plain in ("plain", "part"):
        assert found(Other(plain), torch.randn(3, 5, WIDTH)) == {"norm": ("a",)}  # nothing goes through GELU


def test_that_shared_heads_relu_and_fused_layers_are_told_apart() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(3, 5, WIDTH)
    assert "v_proj" not in found(Block(values=2), inputs)  # two heads share its values
    relu = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Dropout(), nn.Linear(32, 8)).eval()
    assert found(relu, inputs) == {"0": ("3",)}
    gpt = Gpt("small", 16)
    behind = {f"blocks.{n}.{norm}": (f"blocks.{n}.{layer}",) for n in range(2)
              for norm, layer in (("norm1", "attention.qkv"), ("norm2", "up"))}  # fmt: skip
    assert found(gpt, torch.randint(0, 256, (2, 16))) == {**behind, "norm": ("head",)}


@pytest.mark.parametrize("method", ["awq", "smooth"])
@pytest.mark.parametrize("target", ["vllm", "gguf"])
def test_that_a_folded_plan_is_what_its_file_gives(method: str, target: str, tmp_path: Path) -> None:
    model, inputs = planted(bias=True)
    layers, fmt = matrix_layers(model), "gguf:q4_0" if target == "gguf" else "vllm:w4a16"
    fmt = "int4/32" if target == "vllm" else fmt
    exact = model(inputs).detach()
    low = quantised(model, inputs, method, fmt, target)
    assert all(each.channel_scale is None and each.is_scaled for each in low.values())
    plain = quantise_layers(layers, dict.fromkeys(layers, weight_format(fmt)), "rtn", inputs=False, passes=[])
    with applied(layers, low), torch.no_grad():
        measured = model(inputs)
    with applied(layers, plain), torch.no_grad():
        nearest = model(inputs)
    assert torch.equal(model(inputs), exact)
    assert float((measured - exact).square().mean()) < 0.8 * float((nearest - exact).square().mean())
    place = tmp_path / ("m.gguf" if target == "gguf" else "out")
    formats = dict.fromkeys(layers, weight_format(fmt))
    _, reader = write_model(target, place, model, layers, low, formats, {})
    assert reader
    again, _ = planted(bias=True)
    stored = {each.name: each for each in open_checkpoint(place).tensors}
    with torch.no_grad():
        for name, value in again.state_dict().items():
            value.copy_(torch.from_numpy(stored[name].read(0, value.numel())).view(value.shape))
        assert torch.equal(again(inputs), measured)
    if target == "vllm":
        assert keeps_absorbed(place, model, low)
        parameter, values = low["0.q_proj"].absorbed[0]
        changed = low | {"0.q_proj": QuantisedLayer(low["0.q_proj"].coded, absorbed=((parameter, 2 * values),))}
        assert not keeps_absorbed(place, model, changed)


def test_that_a_norm_keeps_its_type_and_the_columns_make_good_its_rounding(tmp_path: Path) -> None:
    model, inputs = planted()
    with torch.no_grad():
        for each in model.parameters():
            if each.dim() == 1:
                each.copy_(each.bfloat16().float())
    layers = matrix_layers(model)
    low = quantised(model, inputs, "smooth", "int8/row", "vllm")
    write_model("vllm", tmp_path / "o", model, layers, low, dict.fromkeys(layers, weight_format("int8/row")), {})
    stored = {each.name: each for each in open_checkpoint(tmp_path / "o").tensors}
    assert stored["0.first.weight"].dtype == stored["1.second.bias"].dtype == "bf16"
    exact = model(inputs).detach()
    with applied(layers, low), torch.no_grad():
        assert float((model(inputs) - exact).norm()) < 0.02 * float(exact.norm())


def test_that_torchao_keeps_scales_beside_whole_numbers(tmp_path: Path) -> None:
    model, inputs = planted()
    layers = matrix_layers(model)
    names = dict.fromkeys(layers, "int4/32") | {"0.q_proj": "int8/row", "3": "e4m3fn/row", "1.q_proj": "e4m3fn/row"}
    formats = {name: weight_format(each) for name, each in names.items()}
    folds = scale_folds(model, layers, lambda: model(inputs[:1]))
    places = ScalePlaces(model, tuple(folds), partial(keeps_input_scale, "torchao"))
    low = quantise_layers(layers, formats, "smooth", inputs=False, passes=[lambda: model(inputs)], places=places)
    folded = {"3", "1.q_proj", "1.k_proj", "1.v_proj"}  # FP8 has no such place: it shares the fold of its norm
    assert {name for name, each in low.items() if each.channel_scale is None} == folded
    paths, reader = write_model("torchao", tmp_path / "o", model, layers, low, formats, {})
    assert reader in ("torchao", "precgui") and len(paths) == 2
    stored = {each.name: each for each in open_checkpoint(tmp_path / "o").tensors}
    for name, each in low.items():
        factor = 1 if each.channel_scale is None else 1 / each.channel_scale
        tensor = stored[f"{name}.weight"]
        assert torch.equal(torch.from_numpy(tensor.read(0, tensor.size)).view_as(each.coded.values),
                           each.coded.values * factor)  # fmt: skip
    assert "0.q_proj._weight_act_pre_scale" not in stored
    config = json.loads((tmp_path / "o" / "config.json").read_text())["quantization_config"]["quant_type"]["default"]
    assert config["_data"]["fqn_to_config"]["0.q_proj"]["_type"] == "Int8WeightOnlyConfig"


def test_that_torchao_writes_the_same_texts_and_computes_what_was_measured(tmp_path: Path) -> None:
    quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    support = pytest.importorskip(
        "torchao.prototype.safetensors.safetensors_support", reason="this torchao writes no safetensors"
    )
    from torchao.core.config import config_from_dict

    from precgui.engine.snapshot.file import read_tensors
    from precgui.formats.tensorfile import metadata_of

    torch.manual_seed(0)
    model, inputs = nn.Sequential(nn.Linear(64, 32)), torch.randn(16, 64)
    low = quantised(model, inputs, "smooth", "int8/row", "torchao")
    layers = matrix_layers(model)
    _, reader = write_model("torchao", tmp_path / "o", model, layers, low, {"0": weight_format("int8/row")}, {})
    assert reader == "torchao"
    file = tmp_path / "o" / "model.safetensors"
    read, _ = support.unflatten_tensor_state_dict(read_tensors(file, "weights")[0], metadata_of(file))
    with applied(layers, low), torch.no_grad():
        measured = model(inputs)
    assert torch.allclose(functional.linear(inputs, read["0.weight"], model[0].bias), measured, atol=1e-5)
    scope = {"model": model, "calibration": [inputs]}
    exec(torchao_recipe({"0": weight_format("int8/row")}, "smooth"), scope)
    _, texts = support.flatten_tensor_state_dict({"0.weight": model[0].weight.data})
    ours, theirs = json.loads(metadata_of(file)["0.weight"]), json.loads(texts["0.weight"])
    assert ours["_type"] == theirs["_type"] and ours["_data"] == theirs["_data"]
    assert set(ours["_tensor_data_names"]) == set(theirs["_tensor_data_names"])
    written = json.loads((tmp_path / "o" / "config.json").read_text())["quantization_config"]["quant_type"]["default"]
    assert config_from_dict(written).fqn_to_config == {"0": quantization.Int8WeightOnlyConfig()}


def test_that_a_scale_without_a_place_is_told(tmp_path: Path) -> None:
    model, inputs = planted()
    layers, formats = matrix_layers(model), dict.fromkeys(matrix_layers(model), weight_format("int8/row"))
    low = quantise_layers(layers, formats, "smooth", inputs=False, passes=[lambda: model(inputs)])
    with pytest.raises(EngineError, match=r"no place for the scale of the inputs of 0.q_proj in int8/row"):
        write_model("vllm", tmp_path / "o", model, layers, low, formats, {})


def test_that_recipes_name_the_layers_that_take_scales() -> None:
    formats, folds = {"q": weight_format("int8/row"), "f": weight_format("e4m3fn/row")}, [ScaleFold("n", ("q",), False)]
    text = llm_compressor_recipe(formats, [], "awq", [*folds, ScaleFold("m", ("head",), False)])
    assert 'mappings: [{"smooth_layer": "n", "balance_layers": ["q"]}]' in text and "head" not in text
    assert text.index("AWQModifier") < text.index("QuantizationModifier")
    assert 'mappings: [[["q"], "n"]]' in llm_compressor_recipe(formats, [], "smooth", folds)
    code = torchao_recipe(formats, "awq")
    compile(code, "recipe", "exec")
    assert "'q': Int8WeightOnlyConfig(granularity=PerRow())" in code and "'f': Float8WeightOnlyConfig()" in code
    assert "rounds to nearest" in torchao_recipe(formats, "gptq")
