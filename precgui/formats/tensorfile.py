"""Tensors from .npy, .safetensors and torch.save files: read as plain data, nothing in them is executed."""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from precgui.formats.arrays import Floats, decode_table
from precgui.formats.registry import get
from precgui.formats.torchfile import StoredTensor, StreamError, load_stored, stored_tensors

MOST_ELEMENTS = 50_000_000
MOST_HEADER_BYTES = 100_000_000
TORCH_SUFFIXES = (".pt", ".pth")
_PLAIN = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1",
          "BOOL": "?"}  # fmt: skip
_CODED = {"BF16": "bf16", "F8_E4M3": "e4m3fn", "F8_E5M2": "e5m2"}


class TensorFileError(ValueError):
    """The file cannot be used; the message is one sentence."""


def tensor_names(path: Path) -> list[str]:
    """The tensors in a file, by name; a .npy file has one, named after the file. Raises TensorFileError."""
    if path.suffix == ".npy":
        return [path.stem]
    if path.suffix in TORCH_SUFFIXES:
        return list(_stored(path))
    return [name for name in _header(path)[0] if name != "__metadata__"]


def load_tensor(path: Path, name: str) -> Floats:
    """One tensor as doubles, in its shape. Raises TensorFileError."""
    if path.suffix in TORCH_SUFFIXES:
        return _load_torch(path, name)
    return _load_npy(path) if path.suffix == ".npy" else _load_safetensors(path, name)


def _stored(path: Path) -> dict[str, StoredTensor]:
    try:
        return stored_tensors(path)
    except (OSError, zipfile.BadZipFile, ValueError, KeyError) as error:
        raise TensorFileError(f"{path.name} is no readable file of torch.save: {error}") from None


def _load_torch(path: Path, name: str) -> Floats:
    tensors = _stored(path)
    if name not in tensors:
        raise TensorFileError(f"{path.name} has no tensor {name!r}")
    try:
        return load_stored(path, tensors[name], MOST_ELEMENTS)
    except (OSError, zipfile.BadZipFile, StreamError, KeyError) as error:
        raise TensorFileError(f"{name!r} in {path.name} cannot be read: {error}") from None


def _load_npy(path: Path) -> Floats:
    try:
        array = np.load(path, allow_pickle=False, mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise TensorFileError(f"{path.name} is no readable .npy file of plain numbers: {error}") from None
    if array.dtype.kind not in "fiub":
        raise TensorFileError(f"{path.name} holds {array.dtype}, not real numbers")
    _check_size(path, array.size)
    return np.asarray(array, dtype=np.float64)


def _check_size(path: Path, size: int) -> None:
    if size > MOST_ELEMENTS:
        raise TensorFileError(f"{path.name} has {size} elements; the most that is shown is {MOST_ELEMENTS}")


def _header(path: Path) -> tuple[Mapping[str, Any], int]:
    """The table of contents of a .safetensors file and where its data begin."""
    if path.suffix != ".safetensors":
        raise TensorFileError(f"{path.name} is of an unknown kind; .npy, .safetensors, .pt and .pth are read")
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(MOST_HEADER_BYTES, path.stat().st_size):
                raise TensorFileError(f"{path.name} is no .safetensors file: its header would be {length} bytes long")
            header = json.loads(file.read(length))
    except (OSError, ValueError) as error:
        if isinstance(error, TensorFileError):
            raise
        raise TensorFileError(f"{path.name} is no readable .safetensors file: {error}") from None
    if not isinstance(header, dict):
        raise TensorFileError(f"{path.name} is no .safetensors file: its header is no table")
    return header, 8 + length


def _load_safetensors(path: Path, name: str) -> Floats:
    header, start = _header(path)
    try:
        entry = header[name]
        kind, shape = str(entry["dtype"]), tuple(int(n) for n in entry["shape"])
        begin, end = (int(n) for n in entry["data_offsets"])
    except (KeyError, TypeError, ValueError):
        raise TensorFileError(f"{path.name} has no usable tensor {name!r}") from None
    _check_size(path, math.prod(shape))
    words = _PLAIN.get(kind) or {"BF16": "<u2"}.get(kind, "u1")
    if kind not in _PLAIN and kind not in _CODED:
        raise TensorFileError(f"{name!r} is of type {kind}, which is not read here")
    if (
        not 0 <= begin <= end <= path.stat().st_size - start
        or end - begin != math.prod(shape) * np.dtype(words).itemsize
    ):
        raise TensorFileError(f"{path.name} is damaged: {name!r} does not fit into the file")
    raw = np.fromfile(path, dtype=words, count=math.prod(shape), offset=start + begin).reshape(shape)
    if kind in _CODED:
        coded: Floats = decode_table(get(_CODED[kind]))[raw]
        return coded
    return raw.astype(np.float64)
