"""The table of contents of a checkpoint: a file or a folder with one model, in any of the kinds that are read."""

from __future__ import annotations

import json
import math
import re
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from precgui.formats.checkpoints.gguf import gguf_contents
from precgui.formats.checkpoints.gguf_names import heads_of
from precgui.formats.checkpoints.packed import Parts, StoredPart, joined
from precgui.formats.checkpoints.suffixes import SUFFIXES
from precgui.formats.checkpoints.tensor import (
    COMPLEX,
    WHOLE,
    CheckpointError,
    CheckpointTensor,
    Singles,
    Words,
    as_codes,
    of_entry,
    singles,
)
from precgui.formats.tensorfile import (
    MOST_ELEMENTS,
    TensorFileError,
    read_words,
    refuse_stand_in,
    safetensors_contents,
    tensor_names,
    torch_contents,
)
from precgui.formats.torchfile import FP8, Place, StoredTensor, StreamError, item_bytes, load_stored, place_of
from precgui.safe_open import open_regular, read_text
from precgui.sanitize import one_line, visible_name
from precgui.sentences import L_, Sentence, read_fault

MOST_INDEX_BYTES = 64 << 20
MOST_CONFIG_BYTES = 4 << 20
MOST_TENSORS = 1_000_000
MOST_SHARDS = 10_000
INDEXES = {".safetensors": "*.safetensors.index.json", ".bin": "*.bin.index.json"}
_SPLIT = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_TORCH = {
    "Double": ("F64", "fp64", 8), "Float": ("F32", "fp32", 4), "Half": ("F16", "fp16", 2),
    "BFloat16": ("BF16", "bf16", 2),
    "Long": ("I64", "i64", 8), "Int": ("I32", "i32", 4), "Short": ("I16", "i16", 2), "Char": ("I8", "i8", 1),
    "uint64": ("U64", "u64", 8), "uint32": ("U32", "u32", 4), "uint16": ("U16", "u16", 2), "Byte": ("U8", "u8", 1),
    "Bool": ("BOOL", "bool", 1),
    "ComplexDouble": ("C128", "complex128", 16), "ComplexFloat": ("C64", "complex64", 8),
    "complex32": ("C32", "complex32", 4), "ComplexHalf": ("C32", "complex32", 4),
    **{dtype: (dtype.upper().replace("FLOAT", "F").removesuffix("FN").replace("E8M0FNU", "E8M0"), name, 1)
       for dtype, name in FP8.items()},
}  # fmt: skip


_TORCH_FAULTS = (StreamError, OSError, KeyError, ValueError, zipfile.BadZipFile, zlib.error)
Listed = tuple[list[CheckpointTensor], str, list[str], dict[str, int]]


@dataclass(frozen=True)
class CheckpointFile:
    """A file of a checkpoint."""

    name: str
    nbytes: int


@dataclass(frozen=True)
class StoredModel:
    """A model as it is stored. `architecture` is the name in its config, empty where none is given.

    `notes` are sentences on what is odd, such as code that the config asks for, which is never loaded here. `heads`: of
    each tensor whose rows GGUF keeps in an order of its own, how many heads they belong to.
    """

    source: Path
    files: tuple[CheckpointFile, ...]
    tensors: tuple[CheckpointTensor, ...]
    architecture: str
    notes: tuple[str, ...]
    heads: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_gguf(self) -> bool:
        return self.files[0].name.endswith(".gguf") if self.files else False

    @property
    def parameters(self) -> int:
        """Numbers of all tensors but those of whole numbers."""
        return sum(tensor.size for tensor in self.tensors if tensor.why_not != WHOLE)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)


def open_checkpoint(path: Path) -> StoredModel:
    """Read what a checkpoint holds; numbers are read later. Raises CheckpointError or TensorFileError, one sentence."""
    try:
        folder = path if path.is_dir() else path.parent
        files, wanted = _files(path)
        architecture, notes = _config(folder) if path.is_dir() or wanted is not None else ("", [])
        tensors, told, tied, heads = _tensors(files, wanted)
        notes += tied
        sizes = tuple(CheckpointFile(each.name, each.stat().st_size) for each in files)
    except OSError as error:
        raise CheckpointError(
            Sentence("{file} cannot be read: {why}", file=path, why=error.strerror or error)
        ) from None
    except RecursionError:
        raise CheckpointError(Sentence("{file} cannot be read: its texts are nested too deep", file=path)) from None
    if not tensors:
        raise CheckpointError(Sentence("{file} holds no tensors", file=path))
    if len(tensors) > MOST_TENSORS:
        raise CheckpointError(
            Sentence(
                "{file} holds {count} tensors; the most that is read is {most}",
                file=path,
                count=len(tensors),
                most=MOST_TENSORS,
            )
        )
    return StoredModel(path, sizes, tuple(tensors), architecture or told, tuple(notes), heads)


def safetensors_places(path: Path) -> dict[str, Path]:
    """The file of each tensor of a model: a .safetensors file, a folder with one or several, or the index of several.

    Raises CheckpointError or TensorFileError, one sentence, for what is no such model or whose index does not hold.
    """
    files, wanted = _files(path)
    if others := [file.name for file in files if file.suffix != ".safetensors"]:
        raise CheckpointError(Sentence("{file} is no .safetensors file; save the model as such", file=others[0]))
    places: dict[str, Path] = {}
    for file in files:
        held = set(tensor_names(file))
        for name in held if wanted is None else [name for name, where in wanted.items() if where == file.name]:
            if name not in held:
                raise CheckpointError(
                    Sentence(
                        "{file} has no {tensor!r}, which the index puts there",
                        file=file.name,
                        tensor=one_line(name, 80),
                    )
                )
            if name in places:
                raise CheckpointError(
                    Sentence(
                        "{tensor!r} is in {file} and in {other_file}; name one",
                        tensor=one_line(name, 80),
                        file=places[name].name,
                        other_file=file.name,
                    )
                )
            places[name] = file
    return places


def _files(path: Path) -> tuple[list[Path], Mapping[str, str] | None]:
    """The files of a checkpoint, and which of them holds which tensor where an index says so."""
    if not path.exists():
        raise CheckpointError(Sentence("there is no {path}; give a file or a folder with a model", path=path))
    if not path.is_dir():
        if path.name.endswith(".index.json"):
            return _indexed(path)
        if path.suffix not in SUFFIXES:
            kinds = ", ".join(SUFFIXES)
            raise CheckpointError(
                Sentence(
                    "{file} is of an unknown kind; a model is a folder, or ends in {kinds}", file=path.name, kinds=kinds
                )
            )
        return _parts_of_gguf(path), None
    for pattern in INDEXES.values():
        if index := sorted(path.glob(pattern)):
            return _indexed(index[0])
    for suffix in SUFFIXES:
        if found := sorted(each for each in path.glob(f"*{suffix}") if not each.name.startswith("training_args")):
            return (_single_gguf(found) if suffix == ".gguf" else found)[: MOST_SHARDS + 1], None
    raise CheckpointError(
        Sentence("{folder} holds no model: no file in it ends in {kinds}", folder=path, kinds=", ".join(SUFFIXES))
    )


def _indexed(index: Path) -> tuple[list[Path], Mapping[str, str]]:
    try:
        with open_regular(index) as file:
            refuse_stand_in(index, file)
        document = json.loads(read_text(index, MOST_INDEX_BYTES))
    except TensorFileError:
        raise
    except ValueError as error:
        raise CheckpointError(
            Sentence("{file} is no readable index: {fault}", file=index.name, fault=read_fault(error))
        ) from None
    placed = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(placed, dict) or not all(isinstance(name, str) for name in placed.values()):
        raise CheckpointError(Sentence("{file} has no usable weight_map", file=index.name))
    if not placed or len(placed) > MOST_TENSORS or len(set(placed.values())) > MOST_SHARDS:
        raise CheckpointError(
            Sentence(
                "{file} names {count} tensors in {files} files",
                file=index.name,
                count=len(placed),
                files=len(set(placed.values())),
            )
        )
    suffix = next(suffix for suffix in INDEXES if index.name.endswith(f"{suffix}.index.json") or suffix == ".bin")
    files = []
    for name in sorted(set(placed.values())):
        # A bare name beside the index; the file itself may be a link, as all are in the cache of the hub.
        if name in ("", ".", "..") or re.search(r"[/\\:\0]", name) or not name.endswith(suffix):
            raise CheckpointError(
                Sentence(
                    "{file} names {name!r}, which is no {suffix} file beside it",
                    file=index.name,
                    name=one_line(name, 60),
                    suffix=suffix,
                )
            )
        if not (index.parent / name).exists():
            raise CheckpointError(
                Sentence(
                    "{file} is missing beside {other_file}; the download is not complete",
                    file=name,
                    other_file=index.name,
                )
            )
        files.append(index.parent / name)
    return files, placed


def _parts_of_gguf(path: Path) -> list[Path]:
    """All files of a model that was split; the others of one kind stand for themselves."""
    match = _SPLIT.fullmatch(path.name) if path.suffix == ".gguf" else None
    if match is None:
        return [path]
    count = int(match[3])
    if not 1 <= count <= MOST_SHARDS:
        raise CheckpointError(Sentence("{file} says that there are {count} files", file=path.name, count=count))
    files = [path.with_name(f"{match[1]}-{part:05d}-of-{match[3]}.gguf") for part in range(1, count + 1)]
    for each in files:
        if not each.exists():
            raise CheckpointError(
                Sentence(
                    "{file} is missing beside {other_file}; the download is not complete",
                    file=each.name,
                    other_file=path.name,
                )
            )
    return files


def _single_gguf(found: list[Path]) -> list[Path]:
    files = _parts_of_gguf(found[0])
    if others := [each.name for each in found if each not in files]:
        raise CheckpointError(
            Sentence(
                "{folder} holds several models; name one, such as {file} or {other_file}",
                folder=found[0].parent,
                file=found[0].name,
                other_file=others[0],
            )
        )
    return files


def _config(folder: Path) -> tuple[str, list[str]]:
    """The architecture that the config names, as a text, and what it asks for that is not done here."""
    try:
        config = json.loads(read_text(folder / "config.json", MOST_CONFIG_BYTES))
    except FileNotFoundError:
        return "", []
    except (OSError, ValueError, RecursionError):
        return "", [L_("config.json is not readable and was left aside.")]
    if not isinstance(config, dict):
        return "", [L_("config.json is no table and was left aside.")]
    named = config.get("architectures")
    first = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else config.get("model_type")
    notes = []
    if config.get("auto_map"):
        notes.append(L_("config.json names code of its own (auto_map), which precgui never loads."))
    return one_line(first, 80) if isinstance(first, str) else "", notes


def _tensors(files: list[Path], wanted: Mapping[str, str] | None) -> Listed:
    """The tensors of all files in their order, packed ones joined; the architecture of a GGUF file; notes; heads."""
    if len(files) > MOST_SHARDS:
        raise CheckpointError(
            Sentence("{folder} holds more than {most} files", folder=files[0].parent, most=MOST_SHARDS)
        )
    if files[0].suffix == ".gguf":
        return _of_gguf(files)
    notes: list[str] = []
    parts: Parts = {}
    for file in files:
        held, remarks = _stored_parts(file)
        notes += remarks
        names = held if wanted is None else [name for name, where in wanted.items() if where == file.name]
        for name in names:
            if name not in held:
                raise CheckpointError(
                    Sentence(
                        "{file} has no {tensor!r}, which the index puts there",
                        file=file.name,
                        tensor=one_line(name, 80),
                    )
                )
            if name in parts:
                raise CheckpointError(
                    Sentence(
                        "{tensor!r} is in {file} and in {other_file}; name one file",
                        tensor=name,
                        file=parts[name].tensor.files[0],
                        other_file=file.name,
                    )
                )
            parts[name] = held[name]
        if len(parts) > MOST_TENSORS:
            raise CheckpointError(Sentence("there are more than {most} tensors", most=MOST_TENSORS))
    return joined(parts), "", notes, {}


def _of_gguf(files: list[Path]) -> Listed:
    tensors: dict[str, CheckpointTensor] = {}
    told, known = "", dict[str, Any]()
    for file in files:
        held, values = gguf_contents(file)
        known = values | known
        named = values.get("general.architecture")
        told = told or (one_line(named, 80) if isinstance(named, str) else "")
        for tensor in held:
            if tensor.name in tensors:
                raise CheckpointError(
                    Sentence(
                        "{tensor!r} is in {file} and in {other_file}",
                        tensor=tensor.name,
                        file=tensors[tensor.name].files[0],
                        other_file=file.name,
                    )
                )
            tensors[tensor.name] = tensor
    heads = {name: count for name in tensors if (count := heads_of(name, known))}
    return list(tensors.values()), told, [], heads


def _stored_parts(file: Path) -> tuple[Parts, list[str]]:
    """The tensors of one file, and remarks on it."""
    if file.suffix != ".safetensors":
        entries, remarks = torch_contents(file)
        found = {name: _of_torch(file, name, stored) for name, stored in entries.items()}
        return found, [*remarks, *_tied(entries)]
    parts: Parts = {}
    stored, remarks = safetensors_contents(file)
    for name, entry in stored.items():
        place = entry.place or Place(entry.offset, "u1")
        parts[name] = StoredPart(of_entry(file, name, entry), partial(read_words, file, place))
    return parts, remarks


def _of_torch(file: Path, name: str, stored: StoredTensor) -> StoredPart:
    """A tensor of a torch.save file; its place is looked for when its first number is asked for."""
    kind = stored.storage.kind.removesuffix("Storage")
    stored_as, dtype, nbytes = _TORCH.get(kind) or (kind, kind.lower(), _item_bytes(file, name, stored))
    read_codes = partial(_torch_words, file, name, stored)
    code = dtype if dtype == "bf16" or kind in FP8 else None

    def read(start: int, stop: int) -> Singles:
        return singles(read_codes(start, stop), code)

    facts = name, stored.shape, dtype, stored_as, math.ceil(math.prod(stored.shape) * nbytes), (file.name,)
    if why_not := _why_not(kind, dtype):
        return StoredPart(CheckpointTensor(*facts, why_not=why_not), read_codes)
    return StoredPart(
        CheckpointTensor(*facts, read=read, words=as_codes(read_codes) if nbytes == 2 else None), read_codes
    )


def _why_not(kind: str, dtype: str) -> str:
    if kind not in _TORCH:
        return Sentence("the type {type}", type=one_line(kind, 60))
    if dtype.startswith("complex"):
        return COMPLEX
    return WHOLE if dtype.startswith(("i", "u", "bool")) else ""


def _item_bytes(file: Path, name: str, stored: StoredTensor) -> float:
    try:
        return item_bytes(file, stored)
    except _TORCH_FAULTS as error:
        raise CheckpointError(
            Sentence(
                "{tensor!r} in {file} cannot be read: {fault}", tensor=name, file=file.name, fault=read_fault(error)
            )
        ) from None


def _torch_words(file: Path, name: str, stored: StoredTensor, start: int, stop: int) -> Words:
    try:
        if (place := _place(file, stored)) is not None:
            return read_words(file, place, start, stop)
        return _unpacked(file, stored)[start:stop]
    except TensorFileError:
        raise
    except _TORCH_FAULTS as error:
        raise CheckpointError(
            Sentence(
                "{tensor!r} in {file} cannot be read: {fault}", tensor=name, file=file.name, fault=read_fault(error)
            )
        ) from None


@lru_cache(maxsize=1 << 12)
def _place(file: Path, stored: StoredTensor) -> Place | None:
    return place_of(file, stored)


@lru_cache(maxsize=1)
def _unpacked(file: Path, stored: StoredTensor) -> Words:
    """The numbers of a tensor that is compressed, or whose elements do not follow each other."""
    return load_stored(file, stored, MOST_ELEMENTS).reshape(-1)


def _tied(parts: Mapping[str, StoredTensor]) -> list[str]:
    """A sentence on tensors that are one in the file."""
    names: dict[StoredTensor, list[str]] = {}
    for name, stored in parts.items():
        names.setdefault(stored, []).append(name)
    return [
        Sentence("{tensors} are one tensor.", tensors=", ".join(map(visible_name, same)))
        for same in names.values()
        if len(same) > 1
    ]
