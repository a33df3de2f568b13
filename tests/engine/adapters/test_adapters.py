"""Frozen bases in packed formats and the adapters beside them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from precgui import config, paths
from precgui.config import ConfigError
from precgui.config.adapters import AdapterConfig, BaseConfig
from precgui.engine.adapters.adapt import add_adapters, merged_model
from precgui.engine.adapters.base import kept_base
from precgui.engine.adapters.frozen_linear import PackedLinear, choose_backend, freeze
from precgui.engine.adapters.packed_weight import PackedWeight, code_table
from precgui.engine.adapters.weights_file import load_weights, tensors_of, write_weights
from precgui.engine.errors import EngineError
from precgui.engine.journal import Journal
from precgui.engine.loop import Loop
from precgui.engine.profile.predict import predicted_ledger
from precgui.engine.train import make_loop
from precgui.events import Evaluated, Event, Facts, Incident, StepDone
from precgui.formats.arrays import decode_table
from precgui.formats.blocks import code_book_blocks, quantize_blocks_array
from precgui.formats.registry import blocks, get

CPU = torch.device("cpu")
TINY = (
    "device=cpu", "threads=1", "record.tensors=false", "train.max_steps=6", "data.batch_size=4",
    "data.sequence_length=32", "base.train_steps=0",
)  # fmt: skip


def training(*settings: str) -> tuple[Loop, list[Event]]:
    events: list[Event] = []
    run = make_loop(config.load("gpt-qlora", [*TINY, *settings]), Journal(events.append), lambda: False)
    return run, events


@pytest.mark.parametrize("name", ["nf4", "int8", "int4", "int2", "int1", "e4m3fn", "e5m2", "e3m2", "e2m3", "e2m1",
                                  "e4m3fnuz", "e2m2"])  # fmt: skip
def test_that_every_code_comes_back_as_formats_decodes_it(name: str) -> None:
    table, values = code_table(name), decode_table(get(name))
    finite = np.flatnonzero(np.isfinite(values) & ~(np.signbit(values) & (values == 0)))
    codes = torch.from_numpy(np.resize(finite, 8 * -(-len(finite) // 8)).astype(np.uint8))
    unpacked = table.unpack(table.pack(codes), table.lookup)
    np.testing.assert_array_equal(unpacked.numpy(), values[codes.numpy()])
    assert torch.equal(table.encode(unpacked), codes)


@pytest.mark.parametrize("name", ["nf4", "int4", "int8", "e4m3fn", "e3m2", "e2m1"])
def test_that_a_packed_weight_is_what_formats_makes_of_its_blocks(name: str) -> None:
    weight = torch.randn(24, 40) * 0.1
    packed = PackedWeight(weight, name, 32, double_quant=False)
    scales = weight.view(-1, 32).abs().amax(1) / code_table(name).largest
    from precgui.engine.quantize.elements import quantize

    expected = quantize(weight.view(-1, 32) / scales[:, None], name, saturate=True) * scales[:, None]
    assert torch.equal(packed.unpack(), expected.view(24, 40))
    if name == "nf4":
        book = code_book_blocks(weight.view(-1, 32).numpy(), get("nf4"), 32)
        np.testing.assert_allclose(packed.unpack().view(-1, 32).numpy(), book.values, atol=1e-6)


@pytest.mark.parametrize("name", list(blocks()))
def test_that_block_formats_keep_their_own_scales(name: str) -> None:
    weight = torch.randn(16, 64)
    packed = PackedWeight(weight, name, 64, double_quant=False)
    expected = quantize_blocks_array(weight.numpy(), name).values.astype(np.float32)
    np.testing.assert_allclose(packed.unpack().numpy(), expected, rtol=1e-6)
    element = get(blocks()[name].element).bits
    per_tensor = 32 / weight.numel() if blocks()[name].two_level else 0
    assert packed.bits_per_weight == element + 8 / blocks()[name].block + per_tensor


def test_that_bits_a_weight_are_exact() -> None:
    weight = torch.randn(256, 1024)
    assert PackedWeight(weight, "nf4", 64, double_quant=False).bits_per_weight == 4.5
    assert PackedWeight(weight, "int8", 64, double_quant=False).bits_per_weight == 8.5
    assert PackedWeight(weight, "e3m2", 32, double_quant=False).bits_per_weight == 7.0
    twice = PackedWeight(weight, "nf4", 64, double_quant=True)
    assert twice.bits_per_weight == 4 + 8 / 64 + 32 / (64 * 256) + 32 / weight.numel()
    assert round(twice.bits_per_weight, 2) == 4.13
    once = PackedWeight(weight, "nf4", 64, double_quant=False)
    assert (twice.unpack() - once.unpack()).abs().max() < 0.02


ROWS_OF_ZEROS = ("e4m3fn", "int8", "int4", "nf4", "e2m1", "int2")


@pytest.mark.parametrize("name", ROWS_OF_ZEROS)
def test_that_a_block_of_zeros_takes_nothing_from_the_scales_of_its_group(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(256, 64, generator=generator) * 0.05
    holed = weight.clone()
    holed[10] = 0
    holed[100:103] = 0
    kept = holed.abs().sum(1) > 0

    def error(matrix: torch.Tensor) -> float:
        unpacked = PackedWeight(matrix, name, 64, double_quant=True).unpack()
        return float((unpacked - matrix)[kept].norm() / matrix[kept].norm())

    assert error(holed) == pytest.approx(error(weight), rel=0.02)
    unpacked = PackedWeight(holed, name, 64, double_quant=True).unpack()
    assert not unpacked[~kept].any()
    assert not PackedWeight(holed, name, 64, double_quant=False).unpack()[~kept].any()
    assert not PackedWeight(torch.zeros(8, 64), name, 64, double_quant=True).unpack().any()


def test_that_scales_in_8_bits_are_no_worse_than_those_of_bitsandbytes() -> None:
    functional = pytest.importorskip("bitsandbytes").functional
    weight = torch.randn(256, 64, generator=torch.Generator().manual_seed(0)) * 0.05
    weight[10] = 0
    codes, state = functional.quantize_4bit(weight, blocksize=64, compress_statistics=True, quant_type="nf4")
    theirs = functional.dequantize_4bit(codes, state)
    ours = PackedWeight(weight, "nf4", 64, double_quant=True).unpack()
    assert (ours - weight).norm() < 1.01 * (theirs - weight).norm()


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("name", ["nf4", "e2m1", "bf16", "mxfp4"])
def test_that_the_gradient_of_the_input_is_that_of_the_dequantised_matrix(name: str, keep: bool) -> None:
    layer = nn.Linear(64, 48)
    frozen: Any = freeze(layer, BaseConfig(format=name), "own", keep=keep)
    x = torch.randn(2, 5, 64, requires_grad=True)
    out = torch.randn(2, 5, 48)
    (frozen(x) * out).sum().backward()
    own, x.grad = x.grad, None
    reference = nn.functional.linear(x, frozen.dequantised(), layer.bias)
    torch.testing.assert_close(frozen(x), reference)
    (reference * out).sum().backward()
    torch.testing.assert_close(own, x.grad)


@pytest.mark.parametrize("precision", ["fp32", "bf16-amp"])
def test_that_the_base_stays_frozen_and_only_adapters_train(precision: str) -> None:
    run, _ = training(f"precision={precision}")
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    run.train()
    after = run.model.state_dict()
    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert changed and all(name.endswith(("lora_a", "lora_b")) for name in changed)
    assert {name for name, p in run.model.named_parameters() if p.requires_grad} == changed


@pytest.mark.parametrize("settings", [(), ("base.format=bf16",), ("base.keep_unpacked=never",)])
def test_that_adapters_go_with_checkpoints(settings: tuple[str, ...]) -> None:
    losses = []
    for setting in ("false", "true"):
        run, events = training(*settings, f"train.checkpointing={setting}")
        run.train()
        losses.append([event.loss for event in events if isinstance(event, StepDone)])
    assert losses[0] == losses[1]


def test_that_the_merged_model_says_what_the_adapted_one_does() -> None:
    run, events = training()
    run.train()
    facts = {key: value for event in events if isinstance(event, Facts) for key, value in event.values.items()}
    assert facts["adapters"]["merged"]["largest_difference"] < 1e-5
    assert facts["adapters"]["bits_per_weight"] == pytest.approx(4.127, abs=0.02)
    merged = merged_model(run.model)
    assert not [name for name in merged.state_dict() if "lora" in name or "packed" in name]
    notes = [event.message for event in events if isinstance(event, Incident)]
    assert any("held in nf4, back end own" in note for note in notes)
    assert "the scales of the base are held in 8 bits" in notes


def test_that_a_first_step_gives_what_the_base_gives() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    x = torch.randn(3, 64)
    expected = model(x)
    settings = config.build({"adapter": {"kind": "lora", "targets": ["*"]}, "base": {"format": "fp32"}})
    notes = add_adapters(model, settings, CPU)
    torch.testing.assert_close(model(x), expected)
    assert "beside a frozen base: 2 layers, 4608 weights, held in fp32" in notes[0]


@pytest.mark.parametrize("backend", ["torchao", "bitsandbytes"])
def test_that_other_back_ends_hold_the_same_weights(backend: str) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    layer = nn.Linear(256, 64)
    base = BaseConfig(format="nf4", double_quant=True, backend=backend)
    assert choose_backend(base, CPU) == backend
    other: Any = freeze(layer, base, backend, keep=False)
    own: Any = freeze(layer, base, "own", keep=False)
    apart = (other.dequantised() - own.dequantised()).abs() > 0.01 * layer.weight.abs().max()
    assert apart.float().mean() < 0.01, "but for values between two codes, which scales in 8 bits move"
    x = torch.randn(4, 256, requires_grad=True)
    other(x).sum().backward()
    torch.testing.assert_close(x.grad, other.dequantised().sum(0).expand(4, -1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("settings", "sentence"), [
    (("precision=mxfp4",), "base.format holds"), (("train.compile=true",), "not compiled"),
    (("adapter.targets=nowhere",), "matches no module"), (("adapter.targets=norm",), "no linear layer in norm"),
    (("base.backend=torchao", "base.format=int4"), "holds nf4 only"),
    (("base.backend=torchao", "base.double_quant=false"), "in 8 bits always"),
    (("base.weights=/nowhere/x.safetensors",), "base.weights"), (("base.weights=x.pt",), "does not end in"),
    (("adapter.save_to=/nowhere/x.safetensors",), "not a folder"),
])  # fmt: skip
def test_that_what_does_not_go_together_is_one_sentence(settings: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(EngineError, match=sentence):
        training(*settings)


def test_that_a_wide_format_holds_no_base() -> None:
    with pytest.raises(ConfigError, match="19 bits"):
        config.build({"base": {"format": "tf32"}})


def test_that_weights_are_written_and_read_as_plain_data(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    path = tmp_path / "base.safetensors"
    write_weights(dict(model.named_parameters()), path)
    other = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    load_weights(other, str(path))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    with pytest.raises(EngineError, match="of another model"):
        load_weights(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2), nn.Linear(2, 2)), str(path))
    with pytest.raises(EngineError, match="in the model"):
        load_weights(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 5)), str(path))
    path.write_bytes(b"\x80\x04pickle")
    with pytest.raises(EngineError, match=r"base\.weights"):
        load_weights(other, str(path))


def test_that_a_base_is_trained_once_and_adapters_are_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "state_dir", lambda: tmp_path)
    first, events = training("base.train_steps=3", f"adapter.save_to={tmp_path / 'out.safetensors'}")
    assert any("training the base first" in e.message for e in events if isinstance(e, Incident))
    second, again = training("base.train_steps=3", "base.format=e4m3fn", "seed=5")
    assert not any("training the base first" in e.message for e in again if isinstance(e, Incident))
    assert kept_base(first.config) == kept_base(second.config)
    first.train()
    merged = nn.Module.state_dict(merged_model(first.model))
    from precgui.formats.tensorfile import tensor_names

    assert set(tensor_names(tmp_path / "out.safetensors")) == set(merged)


def plain_tensors(path: Path) -> dict[str, torch.Tensor]:
    """A .safetensors file by its published layout, without precgui."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    dtypes = {"F32": np.float32, "I64": np.int64}
    return {
        name: torch.from_numpy(
            np.frombuffer(data[start + entry["data_offsets"][0] : start + entry["data_offsets"][1]],
                          dtypes[entry["dtype"]]).copy().reshape(entry["shape"]))
        for name, entry in header.items() if name != "__metadata__"
    }  # fmt: skip


class _WithNorms(nn.Module):
    """Batch norm, a shared weight and a buffer that is not kept."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.head.weight = self.first.weight
        self.register_buffer("passing", torch.ones(2), persistent=False)


def test_that_weights_are_written_with_their_buffers_and_load_in_plain_torch(tmp_path: Path) -> None:
    model, path = _WithNorms(), tmp_path / "all.safetensors"
    model.norm(torch.randn(50, 4) * 3 + 5)
    write_weights(tensors_of(model), path)
    plain = _WithNorms()
    plain.load_state_dict(plain_tensors(path), strict=True)
    own = _WithNorms()
    load_weights(own, str(path))
    for other in (plain, own):
        assert all(torch.equal(value, other.state_dict()[name]) for name, value in model.state_dict().items())
    without_alias = {name: value for name, value in tensors_of(model).items() if name != "head.weight"}
    write_weights(without_alias, path)
    load_weights(_WithNorms(), str(path))


def test_that_a_file_without_the_buffers_of_a_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "parameters.safetensors"
    write_weights(dict(_WithNorms().named_parameters()), path)
    with pytest.raises(EngineError, match=r"has no norm\.running_mean, a buffer of the model; save all of"):
        load_weights(_WithNorms(), str(path))


def test_that_weights_beyond_what_is_shown_at_once_are_read_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("precgui.formats.tensorfile.MOST_ELEMENTS", 100)
    monkeypatch.setattr("precgui.engine.adapters.weights_file._PIECE", 64)
    model, path = nn.Linear(30, 11).to(torch.bfloat16), tmp_path / "large.safetensors"
    write_weights(tensors_of(model), path)
    other = nn.Linear(30, 11)
    load_weights(other, str(path))
    assert torch.equal(other.weight, model.weight.float())


DIGITS = (
    "device=cpu", "threads=1", "record.tensors=false", "model.name=resnet", "adapter.kind=lora", "adapter.targets=head",
    "base.format=fp32", "data.batch_size=32", "data.epoch_steps=8", "train.epochs=1",
)  # fmt: skip


def test_that_a_merged_model_with_batch_norm_validates_alike_when_it_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "state_dir", lambda: tmp_path)
    path = tmp_path / "merged.safetensors"

    def validation(*settings: str) -> Evaluated:
        events: list[Event] = []
        make_loop(config.load("digits-quick", [*DIGITS, *settings]), Journal(events.append), lambda: False).train()
        return next(event for event in events if isinstance(event, Evaluated))

    before = validation("base.train_steps=8", "adapter.merge_at_end=true", f"adapter.save_to={path}")
    after = validation(f"base.weights={path}", "train.max_steps=1", "optimizer.lr=1e-9")
    assert after.loss == pytest.approx(before.loss, rel=0.05), "one more batch moves the running statistics a little"


def test_that_adapters_alone_are_saved_with_the_statistics_that_their_training_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "state_dir", lambda: tmp_path)
    path = tmp_path / "adapters.safetensors"
    settings = [*DIGITS, "base.train_steps=2", "train.max_steps=2", f"adapter.save_to={path}", "base.format=int8"]
    run = make_loop(config.load("digits-quick", settings), Journal(lambda event: None), lambda: False)
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    run.train()
    changed = {name for name, value in run.model.state_dict().items() if not torch.equal(value, before[name])}
    assert set(plain_tensors(path)) == changed
    assert any(name.endswith("running_mean") for name in changed)


def test_that_the_ledger_shows_base_scales_adapters_and_copies() -> None:
    run, _ = training()
    adapted = predicted_ledger(run.config)
    packed = [m.packed for m in run.model.modules() if isinstance(m, PackedLinear)]
    assert adapted.parts["base"] == sum(each.codes.numel() for each in packed)
    assert 0 < adapted.parts["base_scales"] < adapted.parts["base"]
    assert adapted.parts["adapters"] == sum(4 * p.numel() for p in run.model.parameters() if p.requires_grad)
    kept = sum(4 * each.shape[0] * each.shape[1] for each in packed)
    assert adapted.parts["unpacked"] >= 0.5 * kept
    fresh = predicted_ledger(config.change(run.config, ["base.keep_unpacked=never"]))
    assert fresh.parts["unpacked"] < 0.5 * kept


def test_that_activations_off_loaded_change_no_number() -> None:
    losses = []
    for setting in ("false", "true"):
        run, events = training(f"train.offload_activations={setting}")
        run.train()
        losses.append([event.loss for event in events if hasattr(event, "grad_norm")])
    assert losses[0] == losses[1]


def test_that_a_model_of_transformers_takes_adapters() -> None:
    transformers = pytest.importorskip("transformers")
    shape = transformers.LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
    )
    model = transformers.LlamaForCausalLM(shape)
    settings = config.build({"adapter": {"kind": "lora", "targets": ["*q_proj", "*v_proj"]}})
    add_adapters(model, settings, CPU)
    tokens = torch.randint(64, (2, 8))
    model(input_ids=tokens, labels=tokens).loss.backward()
    gradients = {name for name, p in model.named_parameters() if p.grad is not None}
    assert len(gradients) == 4 and all("lora" in name for name in gradients)
    assert AdapterConfig().kind == "none"
