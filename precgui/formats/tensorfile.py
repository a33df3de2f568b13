"""Tensors from .npy, .safetensors and torch.save files: read as plain data, nothing in them is executed."""

from __future__ import annotations

import json
import lzma
import math
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from precgui.errors import SentenceError
from precgui.formats.arrays import Floats, decode_table
from precgui.formats.checkpoints.suffixes import TORCH_SUFFIXES
from precgui.formats.pieces import TensorReader
from precgui.formats.registry import get
from precgui.formats.torchfile import FP8, Place, StoredTensor, load_stored, place_of, read_stream
from precgui.safe_open import open_regular
from precgui.sanitize import one_line
from precgui.sentences import L_, Sentence, read_fault

MOST_ELEMENTS = 50_000_000  # at once in memory
MOST_IN_PIECES = 1 << 32
MOST_HEADER_BYTES = 100_000_000
# What the zip archives of torch.save raise when they are damaged, also from the libraries that unpack them.
_FAULTS = (OSError, EOFError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, ValueError, KeyError, RuntimeError,
           IndexError, TypeError, OverflowError, NotImplementedError, struct.error)  # fmt: skip
MOST_IN_A_FILE = 1 << 60
MOST_AXES = 32
_PLAIN = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U64": "<u8",
          "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?"}  # fmt: skip
_CODED = {"BF16": "bf16", "F8_E4M3": "e4m3fn", "F8_E5M2": "e5m2", "F8_E4M3FNUZ": "e4m3fnuz", "F8_E5M2FNUZ": "e5m2fnuz",
          "F8_E8M0": "e8m0"}  # fmt: skip
# Types of safetensors whose numbers are smaller than a byte, or pairs: their bits, and what is read of them.
_OTHER_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "C64": 64}


class TensorFileError(SentenceError, ValueError):
    """The file cannot be used; the message is one sentence."""


_WEB_PAGE = (b"<!", b"<html", b"<?xml", b"<head", b"<script")


def refuse_stand_in(path: Path, file: BinaryIO) -> None:
    """Raise TensorFileError if the file is empty, a Git LFS pointer or a web page; otherwise go back to its begin."""
    first = file.read(512)
    file.seek(0)
    if not first:
        raise TensorFileError(Sentence("{file} is empty; download it again, or save it again", file=path.name))
    if first.startswith(b"version https://"):
        raise TensorFileError(
            Sentence("{name} is a Git LFS pointer, not the file: download it again (git lfs pull)", name=path.name)
        )
    if first.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith(_WEB_PAGE):
        raise TensorFileError(Sentence("{name} is a web page, not the file: download it again", name=path.name))


def tensor_names(path: Path) -> list[str]:
    """The tensors in a file, by name; a .npy file has one, named after the file. Raises TensorFileError."""
    if path.suffix == ".npy":
        return [path.stem]
    if path.suffix in TORCH_SUFFIXES:
        return list(torch_entries(path))
    return [name for name in _header(path)[0] if name != "__metadata__"]


def metadata_of(path: Path) -> dict[str, str]:
    """The texts in the header of a .safetensors file. Raises TensorFileError."""
    texts = _header(path)[0].get("__metadata__")
    return {str(name): str(text) for name, text in texts.items()} if isinstance(texts, dict) else {}


@dataclass(frozen=True)
class StoredEntry:
    """A tensor in the header of a .safetensors file, checked: `offset` is the place of its first byte in the file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    @property
    def place(self) -> Place | None:
        """Where whole words lie, None for a type of other widths; codes of floats are words of their width."""
        words = _PLAIN.get(self.dtype) or {"BF16": "<u2"}.get(self.dtype, "u1")
        return None if self.dtype in _OTHER_BITS else Place(self.offset, words)

    @property
    def code(self) -> str | None:
        """The format of `formats` by which words are decoded, None where NumPy knows their type."""
        return _CODED.get(self.dtype)


def safetensors_contents(path: Path) -> tuple[dict[str, StoredEntry], list[str]]:
    """All tensors of a .safetensors file, and remarks on what the safetensors library refuses though it is harmless.

    No tensor lies outside of the file, and no two overlap. Raises TensorFileError.
    """
    header, start = _header(path)
    held = path.stat().st_size - start
    found = {name: _entry(path, name, header[name], start, held) for name in header if name != "__metadata__"}
    ordered = sorted((entry.offset, entry.nbytes, name) for name, entry in found.items() if entry.nbytes)
    for (offset, size, name), (following, _, other) in pairwise(ordered):
        if offset + size > following:
            raise TensorFileError(
                Sentence(
                    "{name} is damaged: {tensor!r} and {other!r} overlap", name=path.name, tensor=name, other=other
                )
            )
    return found, [
        Sentence(
            "The safetensors library refuses {file}: {fault}; save it again with that library.",
            file=path.name,
            fault=odd,
        )
        for odd in _oddities(header, [(offset - start, size) for offset, size, _ in ordered], held)
    ]


def _oddities(header: Mapping[str, Any], stretches: list[tuple[int, int]], held: int) -> Iterator[str]:
    """`stretches`: begin and bytes of each tensor within the data, ascending; `held`: bytes of the data."""
    texts = header.get("__metadata__")
    if texts is not None and not (isinstance(texts, dict) and all(isinstance(each, str) for each in texts.values())):
        yield L_("its metadata are not all texts")
    end = max((begin + size for begin, size in stretches), default=0)
    if gaps := end - sum(size for _, size in stretches):
        yield Sentence("{gaps} bytes before and between its tensors belong to none", gaps=gaps)
    if held > end:
        yield Sentence("{held} bytes follow its last tensor", held=held - end)


def _entry(path: Path, name: str, entry: Any, start: int, held: int, most: int = MOST_IN_A_FILE) -> StoredEntry:
    try:
        kind, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise TensorFileError(Sentence("{name} has no usable tensor {tensor!r}", name=path.name, tensor=name)) from None
    if any(type(n) is not int for n in (*shape, begin, end)) or not isinstance(kind, str):  # True counts as an int
        raise TensorFileError(Sentence("{name} has no usable tensor {tensor!r}", name=path.name, tensor=name))
    if kind not in _PLAIN and kind not in _CODED and kind not in _OTHER_BITS:
        raise TensorFileError(
            Sentence("{tensor!r} is of type {kind}, which is not read here", tensor=name, kind=kind[:40])
        )
    if len(shape) > MOST_AXES:
        raise TensorFileError(
            Sentence(
                "{tensor!r} in {file} has {count} dimensions; the most that is read is {most}",
                tensor=name,
                file=path.name,
                count=len(shape),
                most=MOST_AXES,
            )
        )
    _check_size(path, math.prod(shape), most)
    bits = _OTHER_BITS.get(kind) or 8 * np.dtype(_PLAIN.get(kind) or {"BF16": "<u2"}.get(kind, "u1")).itemsize
    fits = min(shape, default=0) >= 0 and 0 <= begin <= end <= held
    if not fits or (end - begin) * 8 != math.prod(shape) * bits:
        raise TensorFileError(
            Sentence("{name} is damaged: {tensor!r} does not fit into the file", name=path.name, tensor=name)
        )
    return StoredEntry(kind, shape, start + begin, end - begin)


def read_words(path: Path, place: Place, start: int, stop: int) -> NDArray[Any]:
    """Words `start` to `stop` of those that begin at a place, as they are stored. Raises TensorFileError.

    The file is not mapped, since it may be cut while it is read.
    """
    words = np.dtype(place.words)
    try:
        with open_regular(path) as file:
            file.seek(place.offset + start * words.itemsize)
            raw: NDArray[Any] = np.fromfile(file, words, stop - start)
    except OSError as error:
        raise TensorFileError(
            Sentence("{name} cannot be read any more: {fault}", name=path.name, fault=read_fault(error))
        ) from None
    if raw.size < stop - start:
        raise TensorFileError(Sentence("{name} has become shorter while it was read", name=path.name))
    return raw


def load_tensor(path: Path, name: str) -> Floats:
    """One tensor as doubles, in its shape. Raises TensorFileError."""
    opened = open_tensor(path, name, MOST_ELEMENTS)
    return opened.read(0, opened.size).reshape(opened.shape)


def open_tensor(path: Path, name: str, most: int = MOST_IN_PIECES) -> TensorReader:
    """One tensor, to be read in pieces; `read` raises TensorFileError, too, for a file that has changed meanwhile."""
    if path.suffix in TORCH_SUFFIXES:
        return _open_torch(path, name, most)
    return _open_npy(path, most) if path.suffix == ".npy" else _open_safetensors(path, name, most)


def torch_entries(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a file of torch.save, by name. Raises TensorFileError."""
    return torch_contents(path)[0]


def torch_contents(path: Path) -> tuple[dict[str, StoredTensor], list[str]]:
    """The tensors of a file of torch.save, by name, and a remark if objects in it hold others. Raises TensorFileError.

    Raises it also for a file all whose tensors are within objects, such as a whole module: nothing is unpickled.
    """
    try:
        with open_regular(path) as file:
            refuse_stand_in(path, file)
        stream = read_stream(path)
    except TensorFileError:
        raise
    except zipfile.BadZipFile as error:
        raise TensorFileError(
            Sentence(
                "{file} is no whole zip archive of torch.save ({fault}); load an older file with torch and save it",
                file=path.name,
                fault=error,
            )
        ) from None
    except _FAULTS as error:
        raise TensorFileError(
            Sentence("{name} is no readable file of torch.save: {fault}", name=path.name, fault=read_fault(error))
        ) from None
    if not stream.hidden:
        return stream.tensors, []
    kind = one_line(stream.pickled.rpartition(" ")[2] or "object", 60)
    if not stream.tensors:
        raise TensorFileError(
            Sentence(
                "{file} holds a pickled module ({kind}) with {count} tensors, and nothing is unpickled "
                "here; save model.state_dict() instead of the model",
                file=path.name,
                kind=kind,
                count=stream.hidden,
            )
        )
    return stream.tensors, [
        Sentence(
            "{hidden} more tensors of {name} are in a pickled module ({kind}), and nothing is unpickled here: "
            "save its state_dict() instead.",
            hidden=stream.hidden,
            name=path.name,
            kind=kind,
        )
    ]


def _open_torch(path: Path, name: str, most: int) -> TensorReader:
    tensors = torch_entries(path)
    if name not in tensors:
        raise TensorFileError(Sentence("{name} has no tensor {tensor!r}", name=path.name, tensor=name))
    tensor = tensors[name]
    _check_size(path, math.prod(tensor.shape), most)
    coded = {"BFloat16Storage": "bf16", **FP8}.get(tensor.storage.kind)
    try:
        place = place_of(path, tensor)
        if place is None:
            return _of_array(load_stored(path, tensor, MOST_ELEMENTS), coded)
    except _FAULTS as error:
        raise TensorFileError(
            Sentence(
                "{tensor!r} in {name} cannot be read: {fault}",
                tensor=name,
                name=path.name,
                fault=read_fault(error),
            )
        ) from None
    return _of_file(path, place, tensor.shape, coded)


# What NumPy raises for a header that is damaged: it is read as a literal of Python, and its type by other rules.
_NPY_FAULTS = (OSError, ValueError, EOFError, TokenError, SyntaxError, TypeError, RecursionError, MemoryError)


def _open_npy(path: Path, most: int) -> TensorReader:
    try:
        with open_regular(path) as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, kind = read(file)
            start = file.tell()
            held = path.stat().st_size - start
    except _NPY_FAULTS as error:
        raise TensorFileError(
            Sentence("{name} is no readable .npy file of plain numbers: {error}", name=path.name, error=error)
        ) from None
    if kind.kind not in "fiub":
        raise TensorFileError(Sentence("{name} holds {kind}, not real numbers", name=path.name, kind=kind))
    if any(type(n) is not int for n in shape):  # True counts as an int
        raise TensorFileError(Sentence("{name} is damaged: its shape is {shape}", name=path.name, shape=shape))
    size = math.prod(shape)
    _check_size(path, size, most)
    if min(shape, default=0) < 0 or held < size * kind.itemsize:
        raise TensorFileError(
            Sentence(
                "{name} is damaged: it says {size} numbers and holds {held}",
                name=path.name,
                size=size,
                held=held // kind.itemsize,
            )
        )
    if not fortran:
        return _of_file(path, Place(start, kind.str), shape)
    _check_size(path, size, MOST_ELEMENTS)
    return _of_array(np.fromfile(path, kind, size, offset=start).reshape(shape, order="F"))


def _of_array(array: NDArray[Any], coded: str | None = None) -> TensorReader:
    """The pieces of an array that stays in memory as it was stored; elements may lie in any order."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return TensorReader(array.shape, lambda start, stop: _doubles(flat[start:stop], coded))


def _of_file(path: Path, place: Place, shape: tuple[int, ...], coded: str | None = None) -> TensorReader:
    """The pieces of numbers that follow each other in a file."""
    return TensorReader(shape, lambda start, stop: _doubles(read_words(path, place, start, stop), coded))


def _doubles(raw: NDArray[Any], coded: str | None) -> Floats:
    if coded is None:
        with np.errstate(invalid="ignore"):  # a signalling NaN on its way to double
            return raw.astype(np.float64)
    decoded: Floats = _table(coded)[raw]
    return decoded


@cache
def _table(coded: str) -> Floats:
    return decode_table(get(coded))


def _check_size(path: Path, size: int, most: int) -> None:
    if size > most:
        counted = (
            size if size < MOST_IN_A_FILE else Sentence("more than {most_in_a_file}", most_in_a_file=MOST_IN_A_FILE)
        )  # Python refuses to print 4300 digits
        raise TensorFileError(
            Sentence(
                "{file} has {count} elements; the most that is shown here is {most}",
                file=path.name,
                count=counted,
                most=most,
            )
        )


def _header(path: Path) -> tuple[Mapping[str, Any], int]:
    """The table of contents of a .safetensors file and where its data begin."""
    if path.suffix != ".safetensors":
        raise TensorFileError(
            Sentence(
                "{file} is of an unknown kind; .npy, .safetensors, .pt, .pth, .bin and .ckpt are read", file=path.name
            )
        )
    try:
        with open_regular(path) as file:
            refuse_stand_in(path, file)
            length, held = int.from_bytes(file.read(8), "little"), path.stat().st_size
            if length > MOST_HEADER_BYTES:
                raise TensorFileError(
                    Sentence(
                        "{name} is no .safetensors file: its header would be {length} bytes long",
                        name=path.name,
                        length=length,
                    )
                )
            if 8 + length > held:
                raise TensorFileError(
                    Sentence(
                        "{file} ends inside its header: it has {held} bytes of at least {least}; download it again",
                        file=path.name,
                        held=held,
                        least=8 + length,
                    )
                )
            header = json.loads(file.read(length), object_pairs_hook=partial(_unique, path))
    except TensorFileError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise TensorFileError(
            Sentence("{name} is no readable .safetensors file: {fault}", name=path.name, fault=read_fault(error))
        ) from None
    if not isinstance(header, dict):
        raise TensorFileError(Sentence("{name} is no .safetensors file: its header is no table", name=path.name))
    return header, 8 + length


def _unique(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A table of JSON; of two entries with one name, programs differ in which they take."""
    table = dict(pairs)
    if len(table) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise TensorFileError(
            Sentence(
                "{file} is damaged: its header has {tensor!r} twice; save it again",
                file=path.name,
                tensor=one_line(twice, 80),
            )
        )
    return table


def _open_safetensors(path: Path, name: str, most: int) -> TensorReader:
    header, start = _header(path)
    if name not in header:
        raise TensorFileError(Sentence("{name} has no usable tensor {tensor!r}", name=path.name, tensor=name))
    entry = _entry(path, name, header[name], start, path.stat().st_size - start, most)
    if entry.place is None:
        raise TensorFileError(
            Sentence("{tensor!r} is of type {dtype}, which is not read here", tensor=name, dtype=entry.dtype)
        )
    return _of_file(path, entry.place, entry.shape, entry.code)
