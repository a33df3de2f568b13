"""Checkpoints of every kind are read as data: contents, numbers, packed weights as one tensor."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from precgui.cli.main import main
from precgui.formats.checkpoints.contents import StoredModel, open_checkpoint
from precgui.formats.checkpoints.gguf_blocks import BLOCK_TYPES
from precgui.formats.checkpoints.tensor import CheckpointError, CheckpointTensor, line_length
from precgui.formats.tensorfile import open_tensor
from precgui.sanitize import visible_name
from tests.formats.checkpoint_files import gguf, safetensors, sharded

RNG = np.random.default_rng(0)
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def numbers(tensor: CheckpointTensor) -> NDArray[np.float32]:
    """All numbers, read in two pieces."""
    cut = tensor.size // tensor.unit // 2 * tensor.unit
    return np.concatenate([tensor.read(0, cut), tensor.read(cut, tensor.size)]).reshape(tensor.shape)


def by_name(checkpoint: StoredModel) -> dict[str, CheckpointTensor]:
    return {tensor.name: tensor for tensor in checkpoint.tensors}


def one(folder: Path, tensors: Mapping[str, tuple[str, Any]]) -> CheckpointTensor:
    """The only tensor that a file with these parts holds."""
    safetensors(folder / "model.safetensors", tensors)
    (tensor,) = open_checkpoint(folder).tensors
    return tensor


def test_that_a_sharded_folder_is_one_model(tmp_path: Path) -> None:
    a, b = (RNG.standard_normal((4, 6)).astype(np.float32) for _ in range(2))
    sharded(tmp_path, [{"a": ("F32", a)}, {"b": ("BF16", b.astype(ml_dtypes.bfloat16)), "n": ("I64", np.arange(3))}])
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "auto_map": {"AutoModel": "x.Y"}}')
    (tmp_path / "other.safetensors").write_bytes(b"nonsense")
    checkpoint = open_checkpoint(tmp_path)
    assert [file.name for file in checkpoint.files] == ["model-1.safetensors", "model-2.safetensors"]
    assert (checkpoint.architecture, checkpoint.parameters, checkpoint.nbytes) == ("LlamaForCausalLM", 48, 168)
    assert "auto_map" in checkpoint.notes[0]
    tensors = by_name(checkpoint)
    assert np.array_equal(numbers(tensors["a"]), a)
    assert np.array_equal(numbers(tensors["b"]), b.astype(ml_dtypes.bfloat16).astype(np.float32))
    words = tensors["b"].words
    assert (
        words is not None and words(3, 5).tolist() == b.astype(ml_dtypes.bfloat16).view(np.uint16).ravel()[3:5].tolist()
    )
    assert tensors["n"].why_not.startswith("whole numbers")


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("F64", RNG.standard_normal(9)),
        ("F16", RNG.standard_normal(9).astype(np.float16)),
        ("F8_E4M3", RNG.standard_normal(9).astype(ml_dtypes.float8_e4m3fn)),
        ("F8_E5M2", RNG.standard_normal(9).astype(ml_dtypes.float8_e5m2)),
        ("F8_E4M3FNUZ", RNG.standard_normal(9).astype(ml_dtypes.float8_e4m3fnuz)),
        ("F8_E5M2FNUZ", RNG.standard_normal(9).astype(ml_dtypes.float8_e5m2fnuz)),
        ("F8_E8M0", np.exp2(np.arange(-4.0, 5.0)).astype(ml_dtypes.float8_e8m0fnu)),
    ],
)
def test_that_every_float_type_of_safetensors_is_read(tmp_path: Path, kind: str, values: NDArray[Any]) -> None:
    tensor = one(tmp_path, {"w": (kind, values)})
    assert np.array_equal(numbers(tensor), values.astype(np.float32))
    assert np.array_equal(open_tensor(tmp_path / "model.safetensors", "w").read(0, 9), values.astype(np.float64))


@pytest.mark.parametrize("kind", ["U16", "U32", "U64", "I16", "BOOL"])
def test_that_whole_numbers_are_listed(tmp_path: Path, kind: str) -> None:
    dtype = {"BOOL": np.bool_, "I16": np.int16}.get(kind, np.dtype(f"<u{int(kind[1:]) // 8 if kind != 'BOOL' else 1}"))
    tensor = one(tmp_path, {"n": (kind, np.ones(4, dtype))})
    assert tensor.why_not and tensor.stored_as == kind
    assert open_tensor(tmp_path / "model.safetensors", "n").read(0, 4).tolist() == [1.0] * 4


def test_that_fp4_without_scales_is_read_low_half_first(tmp_path: Path) -> None:
    header = {"w": {"dtype": "F4", "shape": [2, 2], "data_offsets": [0, 2]},
              "c": {"dtype": "C64", "shape": [1], "data_offsets": [2, 10]}}  # fmt: skip
    text = json.dumps(header).encode()
    (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"\x71\xf2" + bytes(8))
    tensors = by_name(open_checkpoint(tmp_path / "m.safetensors"))
    assert tensors["w"].read(0, 4).tolist() == [0.5, 6.0, 1.0, -6.0]
    assert tensors["c"].why_not == "complex numbers"


@pytest.mark.parametrize("name", ["pytorch_model.bin", "last.ckpt", "model.pth"])
def test_that_torch_files_are_read_without_torch(tmp_path: Path, name: str) -> None:
    import torch

    w = torch.randn(3, 4)
    state = {"w": w, "tied": w, "half": w.bfloat16(), "turned": w.T, "steps": torch.arange(3)}
    torch.save({"state_dict": state}, tmp_path / name)
    checkpoint = open_checkpoint(tmp_path)
    tensors = by_name(checkpoint)
    assert np.array_equal(numbers(tensors["state_dict.w"]), w.numpy())
    assert np.array_equal(numbers(tensors["state_dict.turned"]), w.T.numpy())
    assert np.array_equal(numbers(tensors["state_dict.half"]), w.bfloat16().float().numpy())
    assert tensors["state_dict.half"].words is not None and tensors["state_dict.steps"].why_not
    assert checkpoint.notes == ("state_dict.w, state_dict.tied are one tensor.",)


def test_that_an_old_torch_file_is_refused_in_a_sentence(tmp_path: Path) -> None:
    import torch

    torch.save({"w": torch.ones(2)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(ValueError, match=r"old\.pt is no whole zip archive .* save it"):
        open_checkpoint(tmp_path / "old.pt")


def slow_gguf(name: str, block: bytes) -> list[float]:
    """Blocks by the plain loops of ggml-quants.c."""
    half = lambda at: float(np.frombuffer(block[at : at + 2], "<f2")[0])  # noqa: E731
    low = lambda at, n: [block[at + i] & 15 for i in range(n)] + [block[at + i] >> 4 for i in range(n)]  # noqa: E731
    if name == "Q8_0":
        return [half(0) * int(np.int8(np.uint8(b))) for b in block[2:]]
    if name == "Q4_0":
        return [half(0) * (q - 8) for q in low(2, 16)]
    if name == "Q4_1":
        return [half(0) * q + half(2) for q in low(4, 16)]
    if name == "Q5_0":
        bits = int.from_bytes(block[2:6], "little")
        return [half(0) * ((q | (bits >> i & 1) << 4) - 16) for i, q in enumerate(low(6, 16))]
    if name == "MXFP4":
        return [2.0 ** (block[0] - 127) * float(FP4[q]) for q in low(1, 16)]
    if name == "Q6_K":
        result = [0.0] * 256
        for n in range(2):
            ql, qh, sc = 64 * n, 128 + 32 * n, 192 + 8 * n
            for i in range(32):
                high = block[qh + i]
                codes = (block[ql + i] & 15 | (high & 3) << 4, block[ql + i + 32] & 15 | (high >> 2 & 3) << 4,
                         block[ql + i] >> 4 | (high >> 4 & 3) << 4,
                         block[ql + i + 32] >> 4 | high >> 6 << 4)  # fmt: skip
                for k, code in enumerate(codes):
                    scale = int(np.int8(np.uint8(block[sc + i // 16 + 2 * k])))
                    result[128 * n + 32 * k + i] = half(208) * scale * (code - 32)
        return result
    assert name == "Q4_K"
    result = []
    for group in range(8):
        s = block[4:16]
        if group < 4:
            scale, offset = s[group] & 63, s[group + 4] & 63
        else:
            scale = s[group + 4] & 15 | (s[group - 4] >> 6) << 4
            offset = s[group + 4] >> 4 | (s[group] >> 6) << 4
        codes = [block[16 + 32 * (group // 2) + i] >> 4 * (group % 2) & 15 for i in range(32)]
        result += [half(0) * scale * q - half(2) * offset for q in codes]
    return result


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "MXFP4", "Q4_K", "Q6_K"])
def test_that_blocks_of_gguf_are_decoded_as_ggml_does(tmp_path: Path, name: str) -> None:
    number, kind = next((n, each) for n, each in BLOCK_TYPES.items() if each.name == name)
    raw = RNG.integers(0, 256, (4, kind.nbytes), np.uint8)
    for at in {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q4_K": [0, 2], "Q6_K": [208]}.get(name, []):
        raw[:, at : at + 2] = RNG.standard_normal(4).astype("<f2").view(np.uint8).reshape(4, 2)
    if name == "MXFP4":
        raw[:, 0] = (1, 120, 127, 140)
    gguf(tmp_path / "m.gguf", {"w": ((4, kind.numbers), number, raw.tobytes())})
    (tensor,) = open_checkpoint(tmp_path / "m.gguf").tensors
    expected = np.array([slow_gguf(name, bytes(block)) for block in raw])
    assert tensor.stored_as == name and tensor.nbytes == raw.size
    assert np.allclose(numbers(tensor), expected, rtol=3e-7, atol=1e-7 * np.abs(expected).max())


def test_that_every_read_block_type_has_numbers_for_its_bytes() -> None:
    for kind in BLOCK_TYPES.values():
        if kind.decode is not None:
            assert kind.decode(np.ones((3, kind.nbytes), np.uint8)).shape == (3, kind.numbers)


def test_that_a_split_gguf_is_one_model_and_two_models_are_told(tmp_path: Path) -> None:
    for part in (1, 2):
        gguf(tmp_path / f"m-0000{part}-of-00002.gguf", {f"w{part}": ((2,), 0, np.ones(2, "<f4").tobytes())})
    assert [each.name for each in open_checkpoint(tmp_path).tensors] == ["w1", "w2"]
    gguf(tmp_path / "z.gguf", {"w": ((2,), 0, bytes(8))})
    with pytest.raises(CheckpointError, match="several models"):
        open_checkpoint(tmp_path)
    (tmp_path / "m-00002-of-00002.gguf").unlink()
    with pytest.raises(CheckpointError, match="missing"):
        open_checkpoint(tmp_path / "m-00001-of-00002.gguf")


def packed_words(codes: NDArray[Any], bits: int) -> NDArray[np.int32]:
    """Rows of codes as dense 32-bit words, the first code in the lowest bits."""
    rows = []
    for row in codes.tolist():
        whole = sum((code + (1 << (bits - 1))) << (bits * place) for place, code in enumerate(row))
        count = -(-len(row) * bits // 32)
        rows.append([whole >> (32 * word) & 0xFFFFFFFF for word in range(count)])
    return np.array(rows, np.uint32).view(np.int32)


@pytest.mark.parametrize(("bits", "columns"), [(4, 64), (8, 64), (3, 64), (4, 40)])
def test_that_weights_of_compressed_tensors_are_one_tensor(tmp_path: Path, bits: int, columns: int) -> None:
    codes = RNG.integers(-(1 << (bits - 1)), 1 << (bits - 1), (5, columns))
    scale = RNG.random((5, columns // 8)).astype(np.float32)
    zero = RNG.integers(-(1 << (bits - 1)), 1 << (bits - 1), (5, columns // 8))
    parts = {"l.weight_packed": ("I32", packed_words(codes, bits)), "l.weight_scale": ("F32", scale),
             "l.weight_shape": ("I64", np.array([5, columns])),
             "l.weight_zero_point": ("I32", packed_words(zero.T, bits).T.copy())}  # fmt: skip
    tensor = one(tmp_path, parts)
    expected = (codes.reshape(5, -1, 8) - zero[..., None]).astype(np.float32) * scale[..., None]
    assert (tensor.name, tensor.shape, tensor.dtype) == ("l.weight", (5, columns), f"int{bits}")
    assert np.array_equal(numbers(tensor), expected.reshape(5, columns))


def fp4_parts() -> tuple[NDArray[np.uint8], NDArray[Any], NDArray[np.float32]]:
    """Packed FP4, E4M3 scales of 16, and the numbers without the factor of the tensor."""
    packed = RNG.integers(0, 256, (4, 16), np.uint8)
    scale = (RNG.random((4, 2)) * 100).astype(ml_dtypes.float8_e4m3fn)
    codes = np.stack([packed & 15, packed >> 4], -1).reshape(4, 2, 16)
    return packed, scale, FP4[codes] * scale.astype(np.float32)[..., None]


def test_that_nvfp4_of_both_makers_is_one_tensor(tmp_path: Path) -> None:
    packed, scale, plain = fp4_parts()
    tensor = one(tmp_path, {"l.weight": ("U8", packed), "l.weight_scale": ("F8_E4M3", scale),
                            "l.weight_scale_2": ("F32", np.array(0.25, np.float32))})  # fmt: skip
    assert tensor.stored_as == "ModelOpt, NVFP4" and tensor.nbytes == 64 + 8 + 4
    assert np.array_equal(numbers(tensor), (plain * np.float32(0.25)).reshape(4, 32))
    tensor = one(tmp_path, {"l.weight_packed": ("U8", packed), "l.weight_scale": ("F8_E4M3", scale),
                            "l.weight_global_scale": ("F32", np.array([8], np.float32))})  # fmt: skip
    assert np.allclose(numbers(tensor), (plain / 8).reshape(4, 32), rtol=2e-7)


def test_that_blocks_of_gpt_oss_are_one_tensor(tmp_path: Path) -> None:
    blocks, scales = RNG.integers(0, 256, (2, 3, 2, 16), np.uint8), RNG.integers(120, 130, (2, 3, 2), np.uint8)
    tensor = one(tmp_path, {"e.down_blocks": ("U8", blocks), "e.down_scales": ("U8", scales)})
    codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(2, 3, 2, 32)
    expected = FP4[codes] * np.exp2(scales.astype(np.float32) - 127)[..., None]
    assert (tensor.name, tensor.shape) == ("e.down", (2, 3, 64))
    assert np.array_equal(numbers(tensor), expected.reshape(2, 3, 64))


@pytest.mark.parametrize("form", [(), (1,), (6,), (6, 1)])
def test_that_fp8_is_multiplied_by_its_scales(tmp_path: Path, form: tuple[int, ...]) -> None:
    codes = RNG.standard_normal((6, 8)).astype(ml_dtypes.float8_e4m3fn)
    scale = np.asarray(RNG.random(form), np.float32)
    tensor = one(tmp_path, {"l.weight": ("F8_E4M3", codes), "l.weight_scale": ("F32", scale)})
    assert np.array_equal(
        numbers(tensor), codes.astype(np.float32) * (scale.reshape(-1, 1) if scale.size > 1 else scale)
    )


def test_that_squares_of_fp8_have_their_scales(tmp_path: Path) -> None:
    codes, scale = (
        RNG.standard_normal((200, 130)).astype(ml_dtypes.float8_e4m3fn),
        RNG.random((2, 2)).astype(np.float32),
    )
    tensor = one(tmp_path, {"l.weight": ("F8_E4M3", codes), "l.weight_scale_inv": ("F32", scale)})
    wide = scale.repeat(128, 0)[:200].repeat(128, 1)[:, :130]
    assert np.array_equal(numbers(tensor), codes.astype(np.float32) * wide)


@pytest.mark.parametrize("nested", [False, True])
def test_that_nf4_of_bitsandbytes_is_one_tensor(tmp_path: Path, nested: bool) -> None:
    table, packed = RNG.standard_normal(16).astype(np.float32), RNG.integers(0, 256, (48, 1), np.uint8)
    state = {"quant_type": "nf4", "blocksize": 16, "shape": [6, 16], "dtype": "bfloat16"}
    absmax: NDArray[Any] = RNG.random(6).astype(np.float32)
    parts: dict[str, tuple[str, Any]] = {"l.weight": ("U8", packed), "l.weight.quant_map": ("F32", table)}
    scales = absmax
    if nested:
        state |= {"nested_blocksize": 4, "nested_offset": 0.5, "nested_dtype": "float32"}
        book, outer = RNG.standard_normal(256).astype(np.float32), RNG.random(2).astype(np.float32)
        absmax = RNG.integers(0, 256, 6, np.uint8)
        scales = book[absmax] * outer.repeat(4)[:6] + np.float32(0.5)
        parts |= {"l.weight.nested_absmax": ("F32", outer), "l.weight.nested_quant_map": ("F32", book)}
    text = np.frombuffer(json.dumps(state).encode(), np.uint8)
    parts |= {
        "l.weight.absmax": ("U8" if nested else "F32", absmax),
        "l.weight.quant_state.bitsandbytes__nf4": ("U8", text),
    }
    tensor = one(tmp_path, parts)
    codes = np.concatenate([packed >> 4, packed & 15], 1).reshape(6, 16)
    assert tensor.dtype == "nf4" and np.array_equal(numbers(tensor), table[codes] * scales[:, None])


def test_that_int8_of_bitsandbytes_is_one_tensor(tmp_path: Path) -> None:
    codes, scale = RNG.integers(-127, 128, (4, 8), np.int8), RNG.random(4).astype(np.float32)
    tensor = one(tmp_path, {"l.weight": ("I8", codes), "l.SCB": ("F32", scale)})
    assert np.array_equal(numbers(tensor), codes * (scale / np.float32(127))[:, None])


def test_that_gptq_is_named_and_not_read(tmp_path: Path) -> None:
    words = np.zeros((4, 6), np.int32)
    tensor = one(tmp_path, {"l.qweight": ("I32", words), "l.scales": ("F16", np.ones((1, 6), np.float16)),
                            "l.qzeros": ("I32", np.zeros((1, 1), np.int32))})  # fmt: skip
    assert (tensor.name, tensor.shape, tensor.why_not) == ("l.weight", (6, 32), "the layout of GPTQ")


def test_that_parts_that_do_not_fit_are_told(tmp_path: Path) -> None:
    packed, scale, _ = fp4_parts()
    with pytest.raises(CheckpointError, match="do not fit together"):
        one(tmp_path, {"l.weight_packed": ("U8", packed), "l.weight_scale": ("F8_E4M3", scale[:3])})


@pytest.mark.parametrize(("shape", "line"), [((8,), 8), ((4, 6), 6), ((2, 4, 32), 32), ((4, 3, 3, 3), 27), ((), 1)])
def test_that_lines_run_along_the_inputs(shape: tuple[int, ...], line: int) -> None:
    assert line_length(shape) == line


def test_that_the_command_lists_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sharded(tmp_path, [{"a\x1b[31m": ("F32", np.ones((2, 3), np.float32))}, {"n": ("I64", np.arange(3))}])
    assert main(["model", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["parameters"] == 6 and document["skipped"] == [{"name": "n", "why": "whole numbers, no weights"}]
    assert document["tensors"][1] == {"name": "n", "shape": [3], "dtype": "i64", "stored_as": "I64", "bytes": 24}
    assert main(["model", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "2 x 3" in shown and "\x1b[31m" not in shown
    assert main(["model", str(tmp_path / "nothing")]) == 2
    assert capsys.readouterr().err.startswith("precgui: there is no ")


def test_that_no_two_names_look_alike_in_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = "layer." * 60
    names = ["a\x1bb", "a\\x1bb", "a\nb", "a b", "a  b", " a b", "a\u00a0b", "a\u200bb", "a\ud800", "a", "a\r",
             "\uff41", "\u00e9", "e\u0301", f"{long}1", f"{long}2"]  # fmt: skip
    safetensors(tmp_path / "m.safetensors", {name: ("F32", np.ones(2, np.float32)) for name in names})
    assert main(["model", str(tmp_path)]) == 0
    rows = capsys.readouterr().out.split("Remark")[1].splitlines()[2:]
    assert sum("fp32" in row for row in rows) == len(names)
    shown = "\n".join(row[: row.index("fp32") if "fp32" in row else None] for row in rows)
    cells = [cell.rsplit("2", 1)[0].strip() for cell in shown.split("\n") if cell.strip()]
    assert "…" not in shown and r"a\x1bb" in cells and r"a\\x1bb" in cells and r"a\nb" in cells and r"a\ud800" in cells
    assert len({visible_name(name) for name in names}) == len(names)
    assert all(visible_name(name).isprintable() for name in names) and visible_name("Größe.层") == "Größe.层"
