"""Tensor files that are no files, damaged, or larger inside than any memory: a sentence each."""

from __future__ import annotations

import json
import os
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from precgui.formats import torchfile
from precgui.formats.tensorfile import TensorFileError, load_tensor, tensor_names
from tests import needs


def torch_file(path: Path, stream: bytes, compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("archive/data.pkl", stream)
    return path


def nested(levels: int, width: int) -> bytes:
    """A list of `width` times the same list of ... `levels` deep, in protocol 2: a few bytes a level."""
    stream = b"\x80\x02]q\x00"
    for level in range(levels):
        stream += b"]q" + bytes([level + 1]) + b"(" + (b"h" + bytes([level])) * width + b"e"
    return stream + b"."


@needs.named_pipes
@pytest.mark.parametrize("name", ["x.npy", "x.pt", "x.safetensors"])
def test_that_a_pipe_is_never_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(TensorFileError, match="regular file"):
        for tensor in tensor_names(tmp_path / name):
            load_tensor(tmp_path / name, tensor)


@pytest.mark.parametrize("levels", [6, 25])
def test_that_shared_lists_are_not_counted_to_the_end(tmp_path: Path, levels: int) -> None:
    path = torch_file(tmp_path / "laughs.pt", nested(levels, 10))
    assert path.stat().st_size < 2000
    with pytest.raises(TensorFileError, match=f"more than {torchfile.MOST_NODES} values"):
        tensor_names(path)


def test_that_depth_has_a_limit(tmp_path: Path) -> None:
    path = torch_file(tmp_path / "deep.pt", nested(100, 1))
    with pytest.raises(TensorFileError, match="nested more than 64 deep"):
        tensor_names(path)


def test_that_a_list_that_holds_itself_is_told(tmp_path: Path) -> None:
    path = torch_file(tmp_path / "loop.pt", b"\x80\x02]q\x00(h\x00e.")
    with pytest.raises(TensorFileError, match="nested more than 64 deep"):
        tensor_names(path)


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '<f4', 'shape': (2,",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (True,)}",
        b"{'descr': '<,f4', 'fortran_order': False, 'shape': (2,)}",  # a SyntaxError of NumPy
        b"{'descr': '<f4',b'fortran_order': False, 'shape': (2,)}",  # a TypeError
    ],
)
def test_that_a_damaged_header_of_npy_is_told(tmp_path: Path, header: bytes) -> None:
    padded = header.ljust(117) + b"\n"
    path = tmp_path / "x.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded + np.zeros(2, "<f4").tobytes())
    with pytest.raises(TensorFileError):
        load_tensor(path, "x")


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [float("inf")], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2], "data_offsets": [0, float("inf")]},
        {"dtype": "F32", "shape": [2], "data_offsets": [float("nan"), 8]},
    ],
)
def test_that_an_infinite_size_in_safetensors_is_told(tmp_path: Path, entry: dict[str, object]) -> None:
    header = json.dumps({"w": entry}).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    with pytest.raises(TensorFileError, match="no usable tensor"):
        load_tensor(path, "w")


@pytest.mark.parametrize("compression", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2, zipfile.ZIP_DEFLATED])
def test_that_a_damaged_archive_is_told(tmp_path: Path, compression: int) -> None:
    path = torch_file(tmp_path / "x.pt", nested(3, 3) * 40, compression)
    content = bytearray(path.read_bytes())
    for at in range(46, 90, 3):
        damaged = bytearray(content)
        damaged[at] ^= 0xFF
        path.write_bytes(damaged)
        try:
            tensor_names(path)
        except TensorFileError as error:
            assert "\n" not in str(error)
