"""GGUF files of quantised layers: every number comes back as it was measured, by precgui and by the library gguf."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from precgui.engine.errors import EngineError
from precgui.engine.ptq.layer_matrix import rows_of
from precgui.engine.ptq.methods import quantise_layers
from precgui.engine.ptq.model_files import left_as_they_are, write_model
from precgui.formats.checkpoints.comparison import compare_models
from precgui.formats.checkpoints.contents import open_checkpoint
from precgui.formats.checkpoints.gguf import gguf_parts
from precgui.formats.weight_formats import round_weights, weight_format
from tests.formats.checkpoint_files import gguf, safetensors

NAMES = ["gguf:q4_0", "gguf:q5_0", "gguf:q8_0", "gguf:mxfp4", "vllm:mxfp4", "fp16", "bf16"]
LLAMA = {"model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5}


def library() -> bool:
    try:
        import gguf  # noqa: F401
    except ImportError:
        return False
    return True


class Attention(nn.Module):
    """The names of one layer of LLaMA, and a head that shares the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(16, 64)
        layer, attention = nn.Module(), nn.Module()
        attention.q_proj, attention.k_proj = nn.Linear(64, 64, bias=False), nn.Linear(64, 32, bias=False)
        layer.self_attn, layer.input_layernorm = attention, nn.LayerNorm(64, bias=False)
        self.model.layers = nn.ModuleList([layer])
        self.lm_head = nn.Linear(64, 16, bias=False)
        self.lm_head.weight = self.model.embed_tokens.weight


def quantised(model: nn.Module, names: dict[str, str], method: str = "rtn"):
    layers = {name: model.get_submodule(name) for name in names}
    formats = {name: weight_format(each) for name, each in names.items()}

    def run() -> None:
        for layer in layers.values():
            layer(torch.randn(64, rows_of(layer).shape[1], generator=torch.Generator().manual_seed(1)))

    return layers, formats, quantise_layers(layers, formats, method, inputs=False, passes=[run])


@pytest.mark.parametrize("method", ["rtn", "gptq"])
def test_that_every_type_comes_back_bit_for_bit(method: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(96, 40) for _ in NAMES), nn.LayerNorm(8))
    layers, formats, low = quantised(model, {str(n): name for n, name in enumerate(NAMES)}, method)
    file = tmp_path / "m.gguf"
    paths, reader = write_model("gguf", file, model, layers, low, formats, {})
    assert paths == [file] and reader == ("gguf" if library() else "precgui")
    stored = {each.name: each for each in open_checkpoint(file).tensors}
    for name, each in low.items():
        tensor = stored[f"{name}.weight"]
        assert np.array_equal(tensor.read(0, tensor.size).reshape(40, 96), each.coded.values.numpy())
    assert [stored[f"{n}.weight"].stored_as for n in range(7)] == [
        "Q4_0",
        "Q5_0",
        "Q8_0",
        "MXFP4",
        "MXFP4",
        "F16",
        "BF16",
    ]
    assert stored["0.bias"].stored_as == "F32" and stored["7.weight"].stored_as == "BF16"
    with pytest.raises(EngineError, match="rows of 40 are no multiple of 32"):
        wide = nn.Sequential(nn.Linear(40, 8))
        layers, formats, low = quantised(wide, {"0": "mxfp4"})
        write_model("gguf", tmp_path / "n.gguf", wide, layers, low, formats, {})


def test_that_blocks_are_those_that_the_library_writes() -> None:
    quants = pytest.importorskip("gguf.quants", reason="gguf is not installed")
    from gguf import GGMLQuantizationType

    from precgui.engine.ptq.rounding import coded_rows
    from precgui.formats.checkpoints.gguf_write import blocks_of

    rows = np.random.default_rng(0).standard_normal((24, 64), np.float32)
    rows[3, :32] = 0
    for name, kind in (("gguf:q4_0", "Q4_0"), ("gguf:q5_0", "Q5_0"), ("gguf:q8_0", "Q8_0"), ("gguf:mxfp4", "MXFP4")):
        theirs = quants.quantize(rows, GGMLQuantizationType[kind])
        coded = coded_rows(torch.from_numpy(rows), weight_format(name))
        ours = blocks_of(kind, coded.codes.reshape(-1, 32).numpy(), coded.scales.reshape(-1).numpy())
        back = quants.dequantize(ours.reshape(theirs.shape), GGMLQuantizationType[kind])
        assert np.array_equal(back, quants.dequantize(theirs, GGMLQuantizationType[kind]))  # -0 and 0 have two codes
        assert np.array_equal(back, round_weights(rows, weight_format(name)))


def test_that_a_model_of_transformers_gets_the_names_and_the_order_of_llama_cpp(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, file = Attention(), tmp_path / "m.gguf"
    names = {f"model.layers.0.self_attn.{part}_proj": "gguf:q8_0" for part in "qk"} | {"lm_head": "gguf:q8_0"}
    layers, formats, low = quantised(model, names)
    assert list(left_as_they_are("vllm", model, layers)) == ["lm_head"] and not left_as_they_are("gguf", model, layers)
    with pytest.raises(EngineError, match="no layer of the model can be quantised in a file for gguf: 0 is a conv"):
        left_as_they_are("gguf", nn.Sequential(nn.Conv1d(2, 3, 3)), {"0": nn.Conv1d(2, 3, 3)})
    _, reader = write_model("gguf", file, model, layers, low, formats, LLAMA)
    assert reader
    parts = gguf_parts(file)
    stored = {each.name: each for each in parts.tensors}
    assert list(stored) == ["token_embd.weight", "blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_norm.weight"]
    assert parts.values["llama.attention.head_count_kv"] == 2 and parts.values["general.architecture"] == "llama"
    rows = low["model.layers.0.self_attn.k_proj"].coded.values.numpy()
    turned = rows.reshape(2, 2, 8, 64).swapaxes(1, 2).reshape(32, 64)  # as convert_hf_to_gguf.py permutes them
    assert np.array_equal(stored["blk.0.attn_k.weight"].read(0, 32 * 64).reshape(32, 64), turned)

    from precgui.engine.adapters.weights_file import tensors_of, write_weights

    plain = tmp_path / "model.safetensors"
    write_weights({name: each for name, each in tensors_of(model).items() if "lm_head" not in name}, plain)
    found = compare_models(open_checkpoint(plain), open_checkpoint(file), lambda _: None)
    assert {each.name for each in found.changes} == tensors_of(model).keys() - {"lm_head.weight"}
    assert not found.only_source and not found.only_other
    assert all(each.sqnr_db > 40 for each in found.changes)  # without the order of rows it would be about 0 dB
    back = compare_models(open_checkpoint(file), open_checkpoint(plain), lambda _: None)
    assert len(back.changes) == 4 and all(each.sqnr_db > 40 for each in back.changes)


def test_that_matrices_which_gpt2_keeps_transposed_are_not_compared(tmp_path: Path) -> None:
    square, norm = np.eye(32, dtype=np.float32), np.ones(32, np.float32)
    name = "transformer.h.0.attn.c_proj.weight"
    old = safetensors(tmp_path / "m.safetensors", {name: ("F32", square), "transformer.ln_f.weight": ("F32", norm)})
    new = gguf(tmp_path / "m.gguf", {"blk.0.attn_output.weight": ((32, 32), 0, square.tobytes()),
                                     "output_norm.weight": ((32,), 0, norm.tobytes())})  # fmt: skip
    found = compare_models(open_checkpoint(old), open_checkpoint(new), lambda _: None)
    assert [each.name for each in found.changes] == ["transformer.ln_f.weight"] and found.unchanged == 1
    assert [each for each, _ in found.skipped] == [name] and not found.only_source


def test_that_a_converted_file_keeps_its_header_and_its_other_tensors(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, raw = Attention(), np.ones(64, np.float32).tobytes()
    old = gguf(tmp_path / "f16.gguf", {
        "blk.0.attn_norm.weight": ((64,), 0, raw), "blk.0.attn_q.weight": ((64, 64), 1, bytes(64 * 64 * 2)),
        "blk.0.attn_k.weight": ((32, 64), 1, bytes(32 * 64 * 2)), "rope_freqs.weight": ((64,), 0, raw),
    }, alignment=64)  # fmt: skip
    names = {"model.layers.0.self_attn.q_proj": "gguf:q4_0"}
    layers, formats, low = quantised(model, names)
    file = tmp_path / "m.gguf"
    _, reader = write_model("gguf", file, model, layers, low, formats, LLAMA, str(old))
    new, before = gguf_parts(file), gguf_parts(old)
    assert reader and new.entries == before.entries and [each.name for each in new.tensors] == list(before.places)
    assert [each.stored_as for each in new.tensors] == ["F32", "Q4_0", "F16", "F32"]
    assert new.tensors[3].read(0, 64).tobytes() == raw
    other = gguf(tmp_path / "other.gguf", {"blk.0.attn_q.weight": ((32, 64), 1, bytes(32 * 64 * 2))})
    with pytest.raises(
        EngineError, match=r"other model: blk.0.attn_q.weight is \[64, 64\] here, and it has \[32, 64\]"
    ):
        write_model("gguf", tmp_path / "n.gguf", model, layers, low, formats, LLAMA, str(other))
