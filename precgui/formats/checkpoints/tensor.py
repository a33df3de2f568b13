"""A tensor of a checkpoint, of whichever kind of file: its facts, and its numbers a piece at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precgui.formats.arrays import decode_table
from precgui.formats.registry import get
from precgui.formats.tensorfile import StoredEntry, TensorFileError, read_words
from precgui.formats.torchfile import Place
from precgui.sentences import L_, Sentence

Singles = NDArray[np.float32]
Doubles = NDArray[np.float64]
Words = NDArray[Any]
ReadSingles = Callable[[int, int], Singles]
ReadWords = Callable[[int, int], Words]
WHOLE = L_("whole numbers, no weights")
COMPLEX = L_("complex numbers")
_FLOATS = {"F64": "fp64", "F32": "fp32", "F16": "fp16", "BF16": "bf16", "F4": "e2m1", "F8_E4M3": "e4m3fn",
           "F8_E5M2": "e5m2", "F8_E4M3FNUZ": "e4m3fnuz", "F8_E5M2FNUZ": "e5m2fnuz", "F8_E8M0": "e8m0",
           "C64": "complex64"}  # fmt: skip


class CheckpointError(TensorFileError):
    """The checkpoint cannot be used; the message is one sentence."""


def _unreadable(start: int, stop: int) -> Singles:
    raise CheckpointError(L_("the numbers of this tensor are not read here"))


@dataclass(frozen=True)
class CheckpointTensor:
    """Facts of a tensor; `why_not` says in a few words why its numbers are not read, empty where they are.

    dtype: the format of its numbers as precgui names it. stored_as: the file's own word for it. files: names of the
    files that it lies in. nbytes: bytes in them, scales included. `read(start, stop)` gives numbers in C order as FP32;
    both ends are multiples of `unit`, or the size. `words` gives those of a 16-bit tensor as its codes. `doubles` gives
    those of an FP64 tensor as they are.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    stored_as: str
    nbytes: int
    files: tuple[str, ...]
    unit: int = 1
    read: ReadSingles = _unreadable
    words: ReadWords | None = None
    doubles: Callable[[int, int], Doubles] | None = None
    why_not: str = ""

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def line_length(shape: tuple[int, ...]) -> int:
    """How many numbers share a scale for each row, and along which blocks run: the last axis of a matrix.

    A short last axis of more than two, as in convolutions, is taken together with those before it, but for the first.
    """
    if len(shape) < 2:
        return max(math.prod(shape), 1)
    if len(shape) > 2 and shape[-1] < 16:
        return max(math.prod(shape[1:]), 1)
    return max(shape[-1], 1)


def of_entry(path: Path, name: str, entry: StoredEntry) -> CheckpointTensor:
    """A tensor of a .safetensors file as it stands there."""
    facts = name, entry.shape, _FLOATS.get(entry.dtype, entry.dtype.lower()), entry.dtype, entry.nbytes, (path.name,)
    if entry.dtype == "F4":
        place = Place(entry.offset, "u1")

        def read(start: int, stop: int) -> Singles:
            return code_values("e2m1")[nibbles(read_words(path, place, start // 2, -(-stop // 2)))][: stop - start]

        return CheckpointTensor(*facts, unit=2, read=read)
    if entry.dtype not in _FLOATS or entry.place is None:
        other = COMPLEX if entry.dtype == "C64" else Sentence("the type {type}", type=entry.dtype)
        return CheckpointTensor(*facts, why_not=WHOLE if entry.place else other)
    return CheckpointTensor(*facts, **plain(path, entry.place, entry.code))


def plain(path: Path, place: Place, code: str | None) -> dict[str, Any]:
    """How numbers are read that stand in a file one after the other, as fields of a CheckpointTensor."""

    def words(start: int, stop: int) -> Words:
        return read_words(path, place, start, stop)

    def read(start: int, stop: int) -> Singles:
        return singles(words(start, stop), code)

    return {"read": read, "words": as_codes(words) if code == "bf16" or place.words == "<f2" else None,
            "doubles": words if place.words == "<f8" and code is None else None}  # fmt: skip


def as_codes(words: ReadWords) -> ReadWords:
    """The same words of 16 bits as codes, where they are read as FP16 numbers."""
    return lambda start, stop: words(start, stop).view("<u2")


def singles(words: Words, code: str | None) -> Singles:
    """Words as FP32 numbers; `code` names the format of those that are codes."""
    if code == "bf16":
        return (words.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if code is not None:
        return code_values(code)[words]
    with np.errstate(over="ignore", invalid="ignore"):
        return words.astype(np.float32)


@cache
def code_values(code: str) -> Singles:
    """The value of each code of a format as FP32."""
    codes = np.arange(1 << 16, dtype="<u2")  # their decode_table would take a second
    if code in ("bf16", "fp16"):
        values = singles(codes if code == "bf16" else codes.view("<f2"), code if code == "bf16" else None)
        return np.where(np.isnan(values), np.float32(np.nan), values)  # a signalling NaN warns in each cast
    with np.errstate(over="ignore", under="ignore"):
        return decode_table(get(code)).astype(np.float32)


def nibbles(packed: Words) -> Words:
    """Codes of 4 bits along the last axis, the low half of each byte first."""
    codes = np.empty((*packed.shape, 2), np.uint8)
    codes[..., 0] = packed & 0x0F
    codes[..., 1] = packed >> 4
    return codes.reshape(*packed.shape[:-1], -1)
