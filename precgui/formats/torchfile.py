"""Tensors from files of torch.save, without torch: the stream inside is read as data and never executed.

A .pt file is a zip archive: `data.pkl` says in the opcodes of a stack machine which tensors there are, `data/0`,
`data/1` ... hold the numbers. The few opcodes that tensors need are followed here on plain values; a global name in the
stream stays a name and is never imported, and what is no tensor stays an opaque mark.
"""

from __future__ import annotations

import math
import pickletools
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precgui.safe_open import open_regular
from precgui.sentences import L_, Sentence

MOST_OPCODES = 5_000_000
MOST_STREAM_BYTES = 100_000_000
MOST_NODES = 200_000
MOST_DEPTH = 64
MOST_NAME = 1000  # characters
_LOCAL_HEADER = 30  # bytes of the fixed part that stands before the name of an entry
_WORDS = {
    "DoubleStorage": "<f8", "FloatStorage": "<f4", "HalfStorage": "<f2", "BFloat16Storage": "<u2", "LongStorage": "<i8",
    "IntStorage": "<i4", "ShortStorage": "<i2", "CharStorage": "i1", "ByteStorage": "u1", "BoolStorage": "?",
    "uint16": "<u2", "uint32": "<u4", "uint64": "<u8",
}  # fmt: skip
# dtypes that have no storage type of their own: the storage of their tensors is of bytes, and the dtype stands beside.
FP8 = {"float8_e4m3fn": "e4m3fn", "float8_e5m2": "e5m2", "float8_e4m3fnuz": "e4m3fnuz", "float8_e5m2fnuz": "e5m2fnuz",
       "float8_e8m0fnu": "e8m0"}  # fmt: skip
_WIDE_DTYPES = {"uint16": 2, "uint32": 4, "uint64": 8, "complex32": 4, "bits16": 2}  # bytes; the others have one
_WORDS |= dict.fromkeys(FP8, "u1")
_NAMES = {"torch._utils _rebuild_tensor_v2": "tensor", "torch._utils _rebuild_tensor_v3": "typed tensor",
          "torch._utils _rebuild_qtensor": "tensor", "torch._utils _rebuild_parameter": "parameter",
          "collections OrderedDict": "dict"}  # fmt: skip
MOST_AXES = 64
MOST_SIZE = 1 << 60


class StreamError(ValueError):
    """The stream is none that torch.save writes for tensors."""


@dataclass(frozen=True)
class Storage:
    """Numbers in the archive: their storage type or, without one, their dtype; the name of their entry; how many."""

    kind: str
    key: str
    count: int


@dataclass(frozen=True)
class StoredTensor:
    """A view of a storage."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class _Name:
    text: str


@dataclass(frozen=True)
class _Object:
    """An instance of a class with this name, which is never built."""

    name: str


@dataclass(frozen=True)
class TorchStream:
    """The tensors in the containers of a file; how many others are within objects; the class of the outermost one."""

    tensors: dict[str, StoredTensor]
    hidden: int
    pickled: str


_MARK = object()
_OPAQUE = _Name("")


def read_stream(path: Path) -> TorchStream:
    """The tensors of a file by their keys, nested ones with dots. Raises StreamError, OSError, BadZipFile."""
    with open_regular(path) as file, zipfile.ZipFile(file) as archive:
        root = _root(archive)
        entry = archive.getinfo(f"{root}data.pkl")
        if entry.file_size > MOST_STREAM_BYTES:
            raise StreamError(
                Sentence("its list of tensors would be {file_size} bytes long", file_size=entry.file_size)
            )
        with archive.open(entry) as stream:  # the size in the directory may be a lie
            machine = _Machine()
            tensors = dict(_walk(machine.run(stream.read(MOST_STREAM_BYTES))))
    return TorchStream(tensors, len(machine.tensors - set(tensors.values())), machine.pickled)


@dataclass(frozen=True)
class Place:
    """Where numbers lie in a file: from which byte on, and as which NumPy type."""

    offset: int
    words: str


def place_of(path: Path, tensor: StoredTensor) -> Place | None:
    """Where a tensor lies in the file, None if it is compressed or its elements do not follow each other.

    Raises StreamError for one that does not fit into its storage.
    """
    words, reach = _checked(tensor)
    with open_regular(path) as file, zipfile.ZipFile(file) as archive:
        entry = _entry(archive, tensor.storage, words)
        file.seek(entry.header_offset)
        header = file.read(_LOCAL_HEADER)
    if entry.compress_type != zipfile.ZIP_STORED or reach != tensor.offset + math.prod(tensor.shape):
        return None
    if list(_dense(tensor.shape)) != [step for n, step in zip(tensor.shape, tensor.strides, strict=True) if n > 1]:
        return None
    name, extra = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
    start = entry.header_offset + _LOCAL_HEADER + name + extra
    return Place(start + tensor.offset * words.itemsize, _WORDS[tensor.storage.kind])


def _dense(shape: tuple[int, ...]) -> Iterator[int]:
    """The strides of the axes with more than one element when all follow each other."""
    return (math.prod(shape[axis + 1 :]) for axis, n in enumerate(shape) if n > 1)


def load_stored(path: Path, tensor: StoredTensor, most: int) -> NDArray[Any]:
    """The numbers of a tensor as they are stored, BF16 as its codes. Raises StreamError as `place_of` does."""
    words = _checked(tensor)[0]
    if max(tensor.storage.count, math.prod(tensor.shape)) > most:
        raise StreamError(
            Sentence(
                "{max} elements are more than the {most} read",
                max=max(tensor.storage.count, math.prod(tensor.shape)),
                most=most,
            )
        )
    with open_regular(path) as file, zipfile.ZipFile(file) as archive:
        entry = _entry(archive, tensor.storage, words)
        with archive.open(entry) as stream:
            content = stream.read(entry.file_size)
    if len(content) < entry.file_size:
        raise StreamError(L_("the file is damaged: a storage is shorter than it says"))
    flat: NDArray[Any] = np.frombuffer(content, words)
    if 0 in tensor.shape:
        return np.zeros(tensor.shape, words)
    steps = tuple(step * words.itemsize for step in tensor.strides)
    return np.lib.stride_tricks.as_strided(flat[tensor.offset :], tensor.shape, steps, writeable=False)


def _checked(tensor: StoredTensor) -> tuple[np.dtype[Any], int]:
    """The type of a tensor's numbers, and how many of its storage it reaches over."""
    storage = tensor.storage
    if storage.kind not in _WORDS or len(tensor.shape) != len(tensor.strides):
        raise StreamError(Sentence("a tensor of {kind} is not read here", kind=storage.kind or L_("unknown type")))
    reach = tensor.offset + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.strides, strict=True)) + 1
    if 0 not in tensor.shape and reach > storage.count:
        raise StreamError(L_("the file is damaged: a tensor reaches past its storage"))
    return np.dtype(_WORDS[storage.kind]), reach


def _entry(archive: zipfile.ZipFile, storage: Storage, words: np.dtype[Any]) -> zipfile.ZipInfo:
    entry = archive.getinfo(f"{_root(archive)}data/{storage.key}")
    if entry.file_size != storage.count * words.itemsize:
        raise StreamError(L_("the file is damaged: a storage has the wrong size"))
    return entry


def _root(archive: zipfile.ZipFile) -> str:
    for name in archive.namelist():
        if name.endswith("data.pkl"):
            return name.removesuffix("data.pkl")
    raise StreamError(L_("there is no data.pkl in the archive"))


def _walk(tree: object) -> Iterator[tuple[str, StoredTensor]]:
    """The tensors of nested containers with their dotted keys.

    Raises StreamError beyond `MOST_NODES` containers and values: shared ones are met once for each way to them, and a
    kilobyte of lists in lists may have more ways than atoms. Also beyond `MOST_DEPTH`.
    """
    left = [("", tree, 0)]
    for _ in range(MOST_NODES):
        if not left:
            return
        prefix, node, depth = left.pop()
        if isinstance(node, StoredTensor):
            yield prefix.rstrip(".") or "tensor", node
            continue
        if depth > MOST_DEPTH or len(prefix) > MOST_NAME:
            raise StreamError(
                Sentence(
                    "its containers are nested more than {most_depth} deep, or a name is too long",
                    most_depth=MOST_DEPTH,
                )
            )
        pairs: list[tuple[object, object]] = []
        if isinstance(node, Mapping):
            pairs = list(node.items())
        elif isinstance(node, list | tuple):
            pairs = list(enumerate(node))
        if len(left) + len(pairs) > MOST_NODES:
            break
        left += [(f"{prefix}{_key(key)}.", value, depth + 1) for key, value in reversed(pairs)]
    raise StreamError(Sentence("its containers hold more than {most_nodes} values", most_nodes=MOST_NODES))


def _key(key: object) -> str:
    """A key as a part of a name: containers are not spelled out."""
    return str(key)[: MOST_NAME + 1] if isinstance(key, str | int | float) else type(key).__name__


class _Machine:
    """The stack machine, reduced to what makes containers, plain values and tensors."""

    def __init__(self) -> None:
        self.tensors: set[StoredTensor] = set()
        self.pickled = ""
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self, stream: bytes) -> object:
        """The value that the stream builds. Raises StreamError for an opcode that tensors do not need."""
        try:
            for count, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
                if opcode.name == "STOP":
                    return self._stack[-1]
                if count > MOST_OPCODES:
                    raise StreamError(L_("the stream is too long"))
                self._step(opcode.name, argument)
        except (IndexError, KeyError, TypeError, AttributeError) as error:
            raise StreamError(Sentence("the stream is damaged: {error}", error=error)) from None
        raise StreamError(L_("the stream has no end"))

    def _step(self, name: str, argument: Any) -> None:
        if name in _PLAIN:
            self._stack.append(argument)
        elif name in _CONSTANT:
            self._stack.append(_CONSTANT[name]())
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            self._memo[int(argument)] = self._stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = self._stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            self._stack.append(self._memo[int(argument)])
        elif name == "GLOBAL":
            self._stack.append(_Name(str(argument)))
        elif name.startswith("TUPLE") and name != "TUPLE":
            size = int(name[-1])
            self._stack[-size:] = [tuple(self._stack[-size:])]
        elif name not in ("PROTO", "FRAME"):
            self._build(name)

    def _build(self, name: str) -> None:
        stack = self._stack
        match name:
            case "TUPLE":
                stack.append(tuple(self._since_mark()))
            case "STACK_GLOBAL":
                last, module = stack.pop(), stack.pop()
                stack.append(_Name(f"{module} {last}"))
            case "BINPERSID":
                stack.append(_storage(stack.pop()))
            case "REDUCE" | "NEWOBJ":
                arguments, function = stack.pop(), stack.pop()
                stack.append(built := _called(function, arguments))
                if isinstance(built, StoredTensor):
                    self.tensors.add(built)
            case "BUILD":
                stack.pop()  # the attributes of an object
                if isinstance(stack[-1], _Object):
                    self.pickled = stack[-1].name
            case "SETITEM" | "APPEND":
                self._fill([stack.pop(-2), stack.pop()] if name == "SETITEM" else [stack.pop()])
            case "SETITEMS" | "APPENDS":
                self._fill(self._since_mark())
            case _:
                raise StreamError(Sentence("the stream uses {name}, which files of tensors do not need", name=name))

    def _fill(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if isinstance(target, dict):
            target.update(zip(items[::2], items[1::2], strict=True))
        elif isinstance(target, list):
            target.extend(items)

    def _since_mark(self) -> list[Any]:
        place = len(self._stack) - 1
        while self._stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise StreamError(L_("the stream is damaged: a mark is missing"))
        items = self._stack[place + 1 :]
        del self._stack[place:]
        return items


_PLAIN = {"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT",
          "BINBYTES", "SHORT_BINBYTES", "BINSTRING", "SHORT_BINSTRING", "INT", "LONG", "FLOAT", "UNICODE"}  # fmt: skip
_CONSTANT: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False, "EMPTY_DICT": dict, "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple, "MARK": lambda: _MARK,
}  # fmt: skip


def _storage(identity: Any) -> object:
    """('storage', type, key, device, count) as torch.save writes it."""
    if isinstance(identity, tuple) and len(identity) >= 5 and isinstance(identity[1], _Name):
        return Storage(identity[1].text.rpartition(" ")[2], str(identity[2]), int(identity[4]))
    return _OPAQUE


def _called(function: Any, arguments: Any) -> object:
    kind = _NAMES.get(function.text) if isinstance(function, _Name) else None
    if kind == "dict":
        return {}
    if kind == "parameter":
        return arguments[0]
    if kind in ("tensor", "typed tensor") and isinstance(arguments[0], Storage):
        storage, offset, shape, strides = arguments[:4]
        if kind == "typed tensor" and isinstance(arguments[6], _Name):
            dtype = arguments[6].text.rpartition(" ")[2]
            storage = replace(storage, kind=dtype, count=storage.count // _WIDE_DTYPES.get(dtype, 1))
        return _bounded(StoredTensor(storage, int(offset), tuple(map(int, shape)), tuple(map(int, strides))))
    return _Object(function.text) if isinstance(function, _Name) else _OPAQUE


def _bounded(tensor: StoredTensor) -> StoredTensor:
    """The tensor, if its sizes can be counted with. Raises StreamError."""
    if len(tensor.shape) > MOST_AXES:
        raise StreamError(
            Sentence(
                "a tensor has {count} dimensions; the most that is read is {most}",
                count=len(tensor.shape),
                most=MOST_AXES,
            )
        )
    numbers = (*tensor.shape, *tensor.strides, tensor.offset, tensor.storage.count)
    if min(numbers) < 0 or max(numbers) > MOST_SIZE or math.prod(tensor.shape) > MOST_SIZE:
        raise StreamError(Sentence("the file is damaged: a size is below 0 or beyond {most_size}", most_size=MOST_SIZE))
    return tensor


def item_bytes(path: Path, tensor: StoredTensor) -> float:
    """The bytes of one number of a tensor of any type, by the size of its storage. Raises as `place_of` does."""
    with open_regular(path) as file, zipfile.ZipFile(file) as archive:
        entry = archive.getinfo(f"{_root(archive)}data/{tensor.storage.key}")
    return entry.file_size / max(tensor.storage.count, 1)
