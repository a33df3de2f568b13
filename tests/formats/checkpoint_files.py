"""Writers of small checkpoints, by the specifications of their kinds, apart from the readers under test."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tensors = Mapping[str, tuple[str, NDArray[Any]]]


def safetensors(path: Path, tensors: Tensors) -> Path:
    """A .safetensors file of arrays with their types."""
    header, content = {}, b""
    for name, (kind, values) in tensors.items():
        raw = np.ascontiguousarray(values).tobytes()
        header[name] = {
            "dtype": kind,
            "shape": list(values.shape),
            "data_offsets": [len(content), len(content) + len(raw)],
        }
        content += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content)
    return path


def sharded(folder: Path, shards: Sequence[Tensors]) -> Path:
    """A folder with shards and their index."""
    placed = {}
    for number, tensors in enumerate(shards, 1):
        safetensors(folder / f"model-{number}.safetensors", tensors)
        placed |= dict.fromkeys(tensors, f"model-{number}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    return folder


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def gguf(path: Path, tensors: Mapping[str, tuple[tuple[int, ...], int, bytes]], alignment: int = 32) -> Path:
    """A GGUF file of version 3; each tensor is a shape in C order, the number of its type and its bytes."""
    entries = [("general.architecture", 8, _text("llama")), ("general.alignment", 4, struct.pack("<I", alignment)),
               ("words", 9, struct.pack("<IQ", 8, 2) + _text("a") + _text("bc"))]  # fmt: skip
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries))
    for key, kind, value in entries:
        head += _text(key) + struct.pack("<I", kind) + value
    content = b""
    for name, (shape, number, raw) in tensors.items():
        head += _text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in reversed(shape))
        head += struct.pack("<IQ", number, len(content))
        content += raw + bytes(-len(raw) % alignment)
    path.write_bytes(head + bytes(-len(head) % alignment) + content)
    return path
