"""Folders of models that lie, lead elsewhere or are damaged: a sentence each, nothing executed, bounded memory."""

from __future__ import annotations

import json
import os
import pickle  # noqa: TID251  to write what must not be read
import re
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precgui.errors import SentenceError
from precgui.formats.checkpoints.contents import open_checkpoint
from tests import needs
from tests.formats.checkpoint_files import gguf, safetensors, sharded

GOOD = {"a": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}}
INDEX = "model.safetensors.index.json"


def header(entries: Any, length: int | None = None, data: bytes = bytes(64)) -> bytes:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(**changed: Any) -> bytes:
    return header({"a": GOOD["a"] | changed})


def with_index(folder: Path, document: Any, shard: bytes | None = None) -> Path:
    text = document if isinstance(document, str) else json.dumps(document)
    (folder / INDEX).write_text(text)
    if shard is not None:
        (folder / "m.safetensors").write_bytes(shard)
    return folder


def to(name: Any) -> dict[str, Any]:
    return {"weight_map": {"a": name}}


INDEXES: dict[str, tuple[Any, bytes | None, str]] = {
    "parent": (to("../m.safetensors"), None, "no .safetensors file beside it"),
    "absolute": (to("/etc/passwd"), None, "no .safetensors file beside it"),
    "backslash": (to("..\\m.safetensors"), None, "no .safetensors file beside it"),
    "drive": (to("C:m.safetensors"), None, "no .safetensors file beside it"),
    "other kind": (to("m.bin"), None, "no .safetensors file beside it"),
    "zero byte": (to("m\0.safetensors"), None, "no .safetensors file beside it"),
    "list": (to(["x"]), None, "no usable weight_map"),
    "no map": ({}, None, "no usable weight_map"),
    "empty map": ({"weight_map": {}}, None, "names 0 tensors"),
    "deep": ("[" * 100_000, None, "nested too deep"),
    "no JSON": ("{", None, "no readable index"),
    "missing shard": (to("m.safetensors"), None, "download is not complete"),
    "tensor not there": ({"weight_map": {"b": "m.safetensors"}}, header(GOOD), "which the index puts there"),
    "huge header": (to("m.safetensors"), header(GOOD, 1 << 60), "header would be"),
    "negative": (to("m.safetensors"), entry(shape=[-4, -4]), "does not fit into the file"),
    "overflow": (to("m.safetensors"), entry(shape=[1 << 62, 16]), "elements"),
    "overlap": (to("m.safetensors"), header(GOOD | {"b": GOOD["a"]}), "overlap"),
    "truth as a size": (to("m.safetensors"), entry(shape=[True, 16]), "no usable tensor"),
    "text as a size": (to("m.safetensors"), entry(shape="44"), "no usable tensor"),
    "float as a place": (to("m.safetensors"), entry(data_offsets=[0.0, 64.0]), "no usable tensor"),
    "beyond the end": (to("m.safetensors"), entry(data_offsets=[64, 128]), "does not fit into the file"),
    "unknown type": (to("m.safetensors"), entry(dtype="F7"), "of type F7"),
    "many axes": (to("m.safetensors"), entry(shape=[1] * 5000), "has 5000 dimensions; the most that is read is 32"),
    "long number": (to("m.safetensors"), header(b'{"a": ' + b"9" * 5000 + b"}"), "a number in it has too many digits"),
    "long size": (to("m.safetensors"), entry(shape=[10**4000, 10**4000]), "more than 1152921504606846976 elements"),
    "deep header": (to("m.safetensors"), header(b"[" * 100_000), "it is nested too deep"),
    "empty shard": (to("m.safetensors"), b"", "m.safetensors is empty; download it again"),
    "cut in its header": (to("m.safetensors"), header(GOOD, 90_000_000), "ends inside its header: it has"),
    "no JSON in the header": (to("m.safetensors"), header(b"{'a'}"), "its JSON is damaged at character 2"),
    "no text in the header": (to("m.safetensors"), header(b'{"\xff"}'), "byte 3 of its text is not UTF-8"),
    "empty index": ("", None, f"{INDEX} is empty"),
    "the same name twice": (to("m.safetensors"), header(b"{" + b", ".join([b'"a": {}'] * 2) + b"}"), "has 'a' twice"),
    "entry is a list": (to("m.safetensors"), header({"a": []}), "no usable tensor"),
    "header is a list": (to("m.safetensors"), header([]), "its header is no table"),
}  # fmt: skip


@pytest.mark.parametrize("case", INDEXES)
def test_that_a_hostile_folder_is_refused_in_a_sentence(tmp_path: Path, case: str) -> None:
    document, shard, words = INDEXES[case]
    with pytest.raises(SentenceError) as raised:
        open_checkpoint(with_index(tmp_path, document, shard))
    assert words in str(raised.value) and "\n" not in str(raised.value)


@needs.named_pipes
@pytest.mark.parametrize("name", ["m.safetensors", "m.gguf", "m.pt", INDEX])
def test_that_a_pipe_is_never_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(SentenceError, match=r"regular file|cannot be read") as raised:
        open_checkpoint(tmp_path)
    assert "Errno" not in str(raised.value)


STAND_INS = {
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "is a Git LFS pointer"),
    "page": (b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>", "is a web page"),
    "page after a mark": (b"\xef\xbb\xbf\r\n<HTML>" + bytes(80), "is a web page"),
    "nothing": (b"", "is empty"),
}


@pytest.mark.parametrize("case", STAND_INS)
@pytest.mark.parametrize("name", ["m.safetensors", "m.gguf", "m.pt", "m.bin", INDEX])
def test_that_a_file_that_stands_for_another_is_told(tmp_path: Path, name: str, case: str) -> None:
    content, words = STAND_INS[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SentenceError, match=f"^{re.escape(name)} {words}.*download it again"):
        open_checkpoint(tmp_path)


ODD = {
    "gap": ({"a": GOOD["a"], "b": GOOD["a"] | {"data_offsets": [72, 136]}}, 136, "8 bytes before and between"),
    "late begin": ({"a": GOOD["a"] | {"data_offsets": [8, 72]}}, 72, "8 bytes before and between"),
    "more at the end": (GOOD, 65, "1 bytes follow its last tensor"),
    "number in the metadata": (GOOD | {"__metadata__": {"epoch": 3}}, 64, "its metadata are not all texts"),
    "list as metadata": (GOOD | {"__metadata__": []}, 64, "its metadata are not all texts"),
}


@pytest.mark.parametrize("case", ODD)
def test_that_what_the_library_refuses_is_a_remark(tmp_path: Path, case: str) -> None:
    entries, held, words = ODD[case]
    (tmp_path / "m.safetensors").write_bytes(header(entries, data=bytes(held)))
    (note,) = open_checkpoint(tmp_path / "m.safetensors").notes
    assert note.startswith("The safetensors library refuses m.safetensors: ") and words in note


def test_that_a_sound_file_has_no_remarks(tmp_path: Path) -> None:
    entries = {"__metadata__": {"format": "pt"}, "b": GOOD["a"] | {"data_offsets": [64, 128]}} | GOOD
    entries["empty"] = {"dtype": "F32", "shape": [0], "data_offsets": [64, 64]}
    (tmp_path / "m.safetensors").write_bytes(header(entries, data=bytes(128)))
    assert open_checkpoint(tmp_path / "m.safetensors").notes == ()


def test_that_an_empty_tensor_of_great_shape_is_no_harm(tmp_path: Path) -> None:
    shard = header({"a": {"dtype": "F32", "shape": [0, 1 << 60], "data_offsets": [0, 0]}}, data=b"")
    (tensor,) = open_checkpoint(with_index(tmp_path, to("m.safetensors"), shard)).tensors
    assert tensor.size == 0 and tensor.read(0, 0).size == 0


def test_that_a_link_as_in_the_cache_of_the_hub_is_followed(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "hash").write_bytes(header(GOOD))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "m.safetensors").symlink_to(tmp_path / "blobs" / "hash")
    assert len(open_checkpoint(with_index(tmp_path / "model", to("m.safetensors"))).tensors) == 1


def test_that_the_same_name_in_two_files_is_told(tmp_path: Path) -> None:
    for name in ("x", "y"):
        safetensors(tmp_path / f"{name}.safetensors", {"w": ("F32", np.ones(2, np.float32))})
    with pytest.raises(SentenceError, match=r"'w' is in x\.safetensors and in y\.safetensors"):
        open_checkpoint(tmp_path)


class _Executed:
    def __reduce__(self) -> Any:
        return os.mkdir, ("executed",)


@pytest.mark.parametrize("name", ["m.bin", "m.ckpt", "m.pt"])
def test_that_no_pickle_is_executed(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    import zipfile

    with zipfile.ZipFile(tmp_path / name, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"a": _Executed()}, 2))
    with pytest.raises(SentenceError, match="holds no tensors"):
        open_checkpoint(tmp_path / name)
    assert not (tmp_path / "executed").exists()


def gguf_head(tensors: int = 1, entries: int = 0, version: int = 3, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, entries) + rest


def text(word: str, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(word) if length is None else length) + word.encode()


def gguf_tensor(shape: tuple[int, ...], kind: int = 0, offset: int = 0, axes: int | None = None) -> bytes:
    sizes = b"".join(struct.pack("<Q", n) for n in shape)
    counted = len(shape) if axes is None else axes
    return text("a") + struct.pack("<I", counted) + sizes + struct.pack("<IQ", kind, offset) + bytes(256)


GGUFS = {
    "other magic": (b"GGML" + bytes(40), "does not begin with GGUF"),
    "version": (gguf_head(version=1, rest=bytes(64)), "of version 1"),
    "big-endian": (gguf_head(version=3 << 24, rest=bytes(64)), "its numbers are big-endian"),
    "tensors": (gguf_head(tensors=1 << 60), "says 1152921504606846976 tensors"),
    "entries": (gguf_head(entries=1 << 60), "entries"),
    "axes": (gguf_head(rest=gguf_tensor((1,), axes=1 << 31)), "dimensions; the most of GGUF is 4"),
    "long text": (gguf_head(entries=1, rest=text("a", 1 << 50)), "characters of a text"),
    "long array": (gguf_head(entries=1, rest=text("a") + struct.pack("<IIQ", 9, 0, 1 << 50)), "elements of an array"),
    "array of arrays": (gguf_head(entries=1, rest=text("a") + struct.pack("<IIQ", 9, 9, 1)), "array of kind 9"),
    "kind of value": (gguf_head(entries=1, rest=text("a") + struct.pack("<I", 77)), "value of kind 77"),
    "alignment": (gguf_head(0, 1, rest=text("general.alignment") + struct.pack("<II", 4, 3)), "no power of two"),
    "wrapping product": (gguf_head(rest=gguf_tensor((1 << 32, 1 << 32))), "more numbers than any file holds"),
    "beyond the end": (gguf_head(rest=gguf_tensor((1 << 20,))), "does not fit into the file"),
    "offset": (gguf_head(rest=gguf_tensor((1,), offset=7)), "begins at byte 7, which is no multiple of"),
    "type": (gguf_head(rest=gguf_tensor((32,), kind=4)), "of type 4"),
    "half a block": (gguf_head(rest=gguf_tensor((33,), kind=2)), "no multiple of 32"),
    "cut": (gguf_head()[:20], "ends inside its header"),
    "twice": (gguf_head(2, rest=2 * gguf_tensor((1,))[:-256] + bytes(64)), "two tensors"),
}


@pytest.mark.parametrize("case", GGUFS)
def test_that_a_hostile_gguf_is_refused_in_a_sentence(tmp_path: Path, case: str) -> None:
    content, words = GGUFS[case]
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(SentenceError) as raised:
        open_checkpoint(tmp_path)
    assert words in str(raised.value) and "\n" not in str(raised.value)


def _sharded(folder: Path) -> list[Path]:
    ones = np.ones((4, 4), np.int32)
    parts: dict[str, Any] = {
        "l.weight_packed": ("I32", ones),
        "l.weight_scale": ("F32", np.ones((4, 2), "f4")),
        "l.weight_shape": ("I64", np.array([4, 32])),
        "b": ("BF16", np.ones(8, "<u2")),
    }
    sharded(
        folder,
        [parts, {"f.weight": ("F8_E4M3", np.ones((4, 8), "u1")), "f.weight_scale": ("F32", np.ones((4, 1), "f4"))}],
    )
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "auto_map": {}}))
    return sorted(folder.iterdir())


def _gguf(folder: Path) -> list[Path]:
    return [gguf(folder / "m.gguf", {"a": ((2, 32), 2, bytes(36)), "b": ((4,), 0, bytes(16))})]


@pytest.mark.parametrize("make", [_sharded, _gguf])
def test_that_damaged_bytes_give_a_sentence_or_a_model(tmp_path: Path, make: Callable[[Path], list[Path]]) -> None:
    files = make(tmp_path)
    rng = np.random.default_rng(int(os.environ.get("PRECGUI_SEED", "0")))
    for _ in range(int(os.environ.get("PRECGUI_MUTATIONS", "150"))):
        file = files[rng.integers(len(files))]
        whole = file.read_bytes()
        damaged = bytearray(whole)
        for place in rng.integers(0, min(len(damaged), 600), rng.integers(1, 4)):
            damaged[place] = rng.choice([0, 1, 34, 44, 45, 48, 57, 91, 123, 127, 128, 255, rng.integers(256)])
        file.write_bytes(damaged[: rng.integers(len(damaged)) if rng.random() < 0.1 else None])
        try:
            for tensor in open_checkpoint(tmp_path).tensors:
                if not tensor.why_not and tensor.size < 1 << 16:
                    assert tensor.read(0, tensor.size).size == tensor.size
        except SentenceError as error:
            assert "\n" not in str(error)
        file.write_bytes(whole)


def test_that_contents_of_a_sparse_file_need_little_memory(tmp_path: Path) -> None:
    size = 60 << 30
    shape = [size // 8192, 4096]
    entries = {"a": {"dtype": "BF16", "shape": shape, "data_offsets": [0, size]}}
    (tmp_path / "m.safetensors").write_bytes(header(entries, data=b""))
    os.truncate(tmp_path / "m.safetensors", (tmp_path / "m.safetensors").stat().st_size + size)
    tracemalloc.start()
    (tensor,) = open_checkpoint(tmp_path).tensors
    assert not tensor.read(tensor.size - 4096, tensor.size).any()
    assert tracemalloc.get_traced_memory()[1] < 2 << 20
    tracemalloc.stop()
