"""Writes GGUF files: blocks of ggml from codes and their scales, and the header; read again by `gguf.gguf_contents`."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precgui.formats.checkpoints.gguf import PLAIN_TYPES
from precgui.formats.checkpoints.gguf_blocks import BLOCK_TYPES, Bytes
from precgui.formats.checkpoints.tensor import Singles, code_values
from precgui.safe_open import replaced

_VERSION = 3
_TEXT, _WHOLE, _NUMBER = 8, 4, 6
_NUMBERS = {name: number for number, (name, *_) in PLAIN_TYPES.items()} | {
    block.name: number for number, block in BLOCK_TYPES.items()
}
ROW = 32  # numbers of a block of each type that is written


@dataclass(frozen=True)
class WrittenTensor:
    """A tensor to write. `kind` is the name of its type in ggml; `content` gives its bytes when they are needed."""

    name: str
    shape: tuple[int, ...]
    kind: str
    content: Callable[[], bytes]

    @property
    def nbytes(self) -> int:
        count, number = math.prod(self.shape), _NUMBERS[self.kind]
        if number in BLOCK_TYPES:
            return count // BLOCK_TYPES[number].numbers * BLOCK_TYPES[number].nbytes
        return count * np.dtype(PLAIN_TYPES[number][2]).itemsize


def packed_entries(entries: Mapping[str, str | int | float]) -> bytes:
    """Entries of a header: texts, whole numbers and numbers."""
    packed = b""
    for key, value in entries.items():
        packed += _text(key)
        if isinstance(value, str):
            packed += struct.pack("<I", _TEXT) + _text(value)
        else:
            kind, layout = (_WHOLE, "<I") if isinstance(value, int) else (_NUMBER, "<f")
            packed += struct.pack("<I", kind) + struct.pack(layout, value)
    return packed


def write_gguf(path: Path, tensors: Sequence[WrittenTensor], entries: bytes, count: int, alignment: int = 32) -> None:
    """Write a file of version 3 in full or not at all; `entries` are `count` packed ones. Raises OSError."""
    parts, offset = [b"GGUF" + struct.pack("<IQQ", _VERSION, len(tensors), count), entries], 0
    for each in tensors:
        axes = each.shape or (1,)
        parts.append(_text(each.name) + struct.pack(f"<I{len(axes)}Q", len(axes), *reversed(axes)))
        parts.append(struct.pack("<IQ", _NUMBERS[each.kind], offset))
        offset += -(-each.nbytes // alignment) * alignment
    head = b"".join(parts)
    with replaced(path) as file:
        file.write(head + bytes(-len(head) % alignment))
        for each in tensors:
            content = each.content()
            file.write(content + bytes(-len(content) % alignment))


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def blocks_of(kind: str, codes: Singles, scales: Singles) -> Bytes:
    """Blocks of a type, [blocks, bytes]: the values of their codes [blocks, ROW], scales [blocks].

    Codes of Q4_0, Q5_0 and Q8_0 are whole numbers and scales numbers of FP16; those of MXFP4 are E2M1 values and powers
    of two.
    """
    return _BLOCKS[kind](codes, scales)


def _halves(codes: NDArray[np.uint8]) -> Bytes:
    """Codes of 4 bits, two a byte: the first half of a block low, the second high."""
    low, high = codes[:, : ROW // 2], codes[:, ROW // 2 :]
    return low | (high << np.uint8(4))


def _half(scales: Singles) -> Bytes:
    return scales.astype("<f2").reshape(-1, 1).view(np.uint8)


def _q4_0(codes: Singles, scales: Singles) -> Bytes:
    return np.concatenate([_half(scales), _halves((codes + 8).astype(np.uint8))], 1)


def _q5_0(codes: Singles, scales: Singles) -> Bytes:
    shifted = (codes + 16).astype(np.uint8)
    return np.concatenate(
        [
            _half(scales),
            np.packbits(shifted >> np.uint8(4), axis=1, bitorder="little"),
            _halves(shifted & np.uint8(15)),
        ],
        1,
    )


def _q8_0(codes: Singles, scales: Singles) -> Bytes:
    return np.concatenate([_half(scales), codes.astype(np.int8).view(np.uint8)], 1)


def _mxfp4(codes: Singles, scales: Singles) -> Bytes:
    found = np.searchsorted(code_values("e2m1")[:8], np.abs(codes)) + 8 * np.signbit(codes)
    exponents = (np.frexp(scales)[1] - 1 + 127).astype(np.uint8)
    return np.concatenate([exponents[:, None], _halves(found.astype(np.uint8))], 1)


_BLOCKS: dict[str, Callable[[Any, Any], Bytes]] = {"Q4_0": _q4_0, "Q5_0": _q5_0, "Q8_0": _q8_0, "MXFP4": _mxfp4}
