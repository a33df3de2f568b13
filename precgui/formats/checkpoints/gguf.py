"""GGUF files of llama.cpp: the header is read with limits, as data; see the specification in ggml's docs/gguf.md."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from precgui.formats.checkpoints.gguf_blocks import BLOCK_TYPES, BlockType
from precgui.formats.checkpoints.tensor import WHOLE, CheckpointError, CheckpointTensor, Singles, plain
from precgui.formats.tensorfile import read_words, refuse_stand_in
from precgui.formats.torchfile import Place
from precgui.safe_open import open_regular
from precgui.sentences import L_, Sentence, filled

MOST_HEADER_BYTES = 256 << 20
MOST_TENSORS = 1_000_000
MOST_ENTRIES = 100_000
MOST_STRING = 1 << 20
MOST_NAME = 1000
MOST_ARRAY = 1 << 24
MOST_AXES = 4
MOST_ALIGNMENT = 1 << 20
MOST_SIZE = 1 << 62
# Numbers without blocks: name, format of precgui, type of NumPy, code.
PLAIN_TYPES = {
    0: ("F32", "fp32", "<f4", None), 1: ("F16", "fp16", "<f2", None), 28: ("F64", "fp64", "<f8", None),
    30: ("BF16", "bf16", "<u2", "bf16"), 24: ("I8", "i8", "i1", None), 25: ("I16", "i16", "<i2", None),
    26: ("I32", "i32", "<i4", None), 27: ("I64", "i64", "<i8", None),
}  # fmt: skip
_VALUES = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_ENTRIES = 24  # bytes before the entries of a header
_LONG_TEXT = L_("it says {count} characters of a text; the most that is read here is {most}")
_LONG_ARRAY = L_("it says {count} elements of an array; the most that is read here is {most}")
_MANY_TENSORS = L_("it says {count} tensors; the most that is read here is {most}")
_MANY_ENTRIES = L_("it says {count} entries; the most that is read here is {most}")


class _Header:
    """Reads values one after the other, and never past its limit."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path, self._file, self._read = path, file, 0

    def fail(self, sentence: str) -> CheckpointError:
        return CheckpointError(
            Sentence("{file} is no readable GGUF file: {fault}", file=self._path.name, fault=sentence)
        )

    @property
    def position(self) -> int:
        return self._read

    def take(self, count: int) -> bytes:
        if count > MOST_HEADER_BYTES - self._read:
            raise self.fail(Sentence("its header is longer than {most} bytes", most=MOST_HEADER_BYTES))
        content = self._file.read(count)
        if len(content) < count:
            raise self.fail(L_("it ends inside its header"))
        self._read += count
        return content

    def number(self, layout: str) -> Any:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]

    def count(self, most: int, too_many: str) -> int:
        """A count. `too_many`: the sentence for one above `most`, with `{count}` and `{most}`."""
        counted: int = self.number("<Q")
        if counted > most:
            raise self.fail(filled(too_many, count=counted, most=most))
        return counted

    def text(self, most: int = MOST_STRING) -> str:
        return self.take(self.count(most, _LONG_TEXT)).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        """A value; an array is passed over and None."""
        if kind in _VALUES:
            return self.number(_VALUES[kind])
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            raise self.fail(Sentence("it holds a value of kind {kind}, which GGUF does not have", kind=kind))
        inner, length = self.number("<I"), self.count(MOST_ARRAY, _LONG_ARRAY)
        if inner in _VALUES:
            self.take(length * struct.calcsize(_VALUES[inner]))
        elif inner == _STRING:
            for _ in range(length):
                self.take(self.count(MOST_STRING, _LONG_TEXT))
        else:
            raise self.fail(Sentence("it holds an array of kind {kind}, which is not read here", kind=inner))
        return None


@dataclass(frozen=True)
class GgufParts:
    """A file in parts: its tensors, single values of its header; all entries as they stand there, and their count.

    places: of each tensor by name the number of its type and the byte at which it begins.
    """

    tensors: list[CheckpointTensor]
    values: dict[str, Any]
    entries: bytes
    count: int
    places: dict[str, tuple[int, int]]


def gguf_contents(path: Path) -> tuple[list[CheckpointTensor], dict[str, Any]]:
    """The tensors of a file and the single values of its header. Raises CheckpointError."""
    parts = gguf_parts(path)
    return parts.tensors, parts.values


def gguf_parts(path: Path) -> GgufParts:
    """A file in parts. Raises CheckpointError."""
    try:
        with open_regular(path) as file:
            refuse_stand_in(path, file)
            header = _Header(path, file)
            tensors, values, end = _header(header)
            file.seek(0)
            head, entries = file.read(_ENTRIES), file.read(end - _ENTRIES)
            size = path.stat().st_size
    except OSError as error:
        raise CheckpointError(
            Sentence("{file} cannot be read: {why}", file=path.name, why=error.strerror or error)
        ) from None
    alignment = values.get("general.alignment", 32)
    if type(alignment) is not int or not 1 <= alignment <= MOST_ALIGNMENT or alignment & (alignment - 1):
        raise header.fail(
            Sentence(
                "its alignment of {alignment} is no power of two up to {most}", alignment=alignment, most=MOST_ALIGNMENT
            )
        )
    start = -(-header.position // alignment) * alignment
    placed = _placed(path, header, tensors, start, size, alignment)
    count = struct.unpack("<Q", head[16:24])[0]
    return GgufParts(placed, values, entries, count, {name: (kind, start + at) for name, _, kind, at in tensors})


def _header(header: _Header) -> tuple[list[tuple[str, tuple[int, ...], int, int]], dict[str, Any], int]:
    """The tensors, the single values, and where the entries end."""
    if header.take(4) != b"GGUF":
        raise header.fail(L_("it does not begin with GGUF"))
    version = header.number("<I")
    if version % (1 << 16) == 0 < version:
        raise header.fail(
            L_("its numbers are big-endian; convert it to little-endian with gguf-convert-endian of gguf-py")
        )
    if version not in (2, 3):
        raise header.fail(Sentence("it is of version {version}; 2 and 3 are read", version=version))
    count, entries = header.count(MOST_TENSORS, _MANY_TENSORS), header.count(MOST_ENTRIES, _MANY_ENTRIES)
    values = {}
    for _ in range(entries):
        key = header.text()
        values[key] = header.value(header.number("<I"))
    end, tensors = header.position, []
    for _ in range(count):
        name, axes = header.text(MOST_NAME), header.number("<I")
        if axes > MOST_AXES:
            raise header.fail(
                Sentence(
                    "{tensor!r} has {axes} dimensions; the most of GGUF is {most}",
                    tensor=name,
                    axes=axes,
                    most=MOST_AXES,
                )
            )
        shape = tuple(header.number("<Q") for _ in range(axes))[::-1]
        tensors.append((name, shape, header.number("<I"), header.number("<Q")))
    return tensors, values, end


def _placed(
    path: Path, header: _Header, tensors: list[tuple[str, tuple[int, ...], int, int]], start: int, size: int,
    alignment: int,
) -> list[CheckpointTensor]:  # fmt: skip
    placed, names, stretches = [], set(), []
    for name, shape, kind, offset in tensors:
        if name in names:
            raise header.fail(Sentence("it has two tensors {tensor!r}", tensor=name))
        names.add(name)
        if math.prod(shape) > MOST_SIZE:
            raise header.fail(
                Sentence(
                    "{tensor!r} has the shape {shape}, more numbers than any file holds", tensor=name, shape=list(shape)
                )
            )
        if offset % alignment:
            raise header.fail(
                Sentence(
                    "{tensor!r} begins at byte {place}, which is no multiple of the alignment of {alignment}",
                    tensor=name,
                    place=offset,
                    alignment=alignment,
                )
            )
        tensor = _tensor(path, header, name, shape, kind, start + offset)
        if start + offset + tensor.nbytes > size:
            raise header.fail(
                Sentence("{tensor!r} does not fit into the file; the download is perhaps not complete", tensor=name)
            )
        if tensor.nbytes:
            stretches.append((offset, tensor.nbytes, name))
        placed.append(tensor)
    stretches.sort()
    for (offset, nbytes, name), (following, _, other) in pairwise(stretches):
        if offset + nbytes > following:
            raise header.fail(Sentence("{tensor!r} and {other_tensor!r} overlap", tensor=name, other_tensor=other))
    return placed


def _tensor(path: Path, header: _Header, name: str, shape: tuple[int, ...], kind: int, offset: int) -> CheckpointTensor:
    count = math.prod(shape)
    if kind in PLAIN_TYPES:
        stored, dtype, words, code = PLAIN_TYPES[kind]
        facts = name, shape, dtype, stored, count * np.dtype(words).itemsize, (path.name,)
        if stored[0] == "I":
            return CheckpointTensor(*facts, why_not=WHOLE)
        return CheckpointTensor(*facts, **plain(path, Place(offset, words), code))
    if kind not in BLOCK_TYPES:
        raise header.fail(Sentence("{tensor!r} is of type {type}, which is not known here", tensor=name, type=kind))
    block = BLOCK_TYPES[kind]
    if not shape or shape[-1] % block.numbers:
        raise header.fail(
            Sentence(
                "{tensor!r} has rows of {width}, no multiple of {multiple}",
                tensor=name,
                width=shape[-1] if shape else 1,
                multiple=block.numbers,
            )
        )
    facts = name, shape, block.name.lower(), block.name, count // block.numbers * block.nbytes, (path.name,)
    if block.decode is None:
        return CheckpointTensor(*facts, why_not=Sentence("the type {type}", type=block.name))
    return CheckpointTensor(*facts, unit=block.numbers, read=_blocks(path, offset, block, block.decode))


def _blocks(
    path: Path, offset: int, block: BlockType, decode: Callable[[Any], Singles]
) -> Callable[[int, int], Singles]:
    def read(start: int, stop: int) -> Singles:
        if start == stop:
            return np.zeros(0, np.float32)
        first, last = (at // block.numbers * block.nbytes for at in (start, stop))
        with np.errstate(over="ignore", invalid="ignore"):
            rows = read_words(path, Place(offset, "u1"), first, last).reshape(-1, block.nbytes)
            return np.ascontiguousarray(decode(rows).reshape(-1))

    return read
