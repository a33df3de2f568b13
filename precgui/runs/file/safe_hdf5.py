"""Guarded reading of an HDF5 file that anyone may have made, cut or overwritten.

Nothing outside the file is reached: soft and external links, external and virtual storage, references and
filters that HDF5 would load from plugins are refused, and so are claims of more rows than the file can hold.
"""

from __future__ import annotations

import atexit
import math
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5s, h5z
from numpy.typing import NDArray

from precgui.runs.errors import RunFileError
from precgui.runs.file.snapshot import FileSnapshot
from precgui.sentences import L_, Sentence, filled, message_of

# What h5py raises for damaged or strange files; HDF5's own errors come as any of these.
FAULTS = (OSError, RuntimeError, KeyError, ValueError, TypeError, MemoryError, OverflowError, AttributeError)

_FILTERS = {h5z.FILTER_DEFLATE, h5z.FILTER_SHUFFLE, h5z.FILTER_FLETCHER32}
_DEFLATE_RATIO = 1100  # deflate packs at most 1032 : 1
_LARGEST_TEXT = 16 << 20
_LARGEST_READ = 8 << 30
_LARGEST_PACKED_READ = 1 << 30
_LARGEST_CHUNK = 4 << 20  # HDF5 reads a chunk whole, whatever part of it is asked for; those of the schema have 64 KB
_PACKED_MARGIN = 1024  # by which deflate may make a chunk longer
_SMALL_READ = 64 << 20
_SALVAGE_ROWS = 2048
_ATTEMPTS = 4  # to open a file that is being written
_PAUSE_S = 0.02


_open: weakref.WeakSet[h5py.File] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """HDF5 closes what is left open after Python has ended, and a file that is read through Python crashes it then."""
    for file in list(_open):
        file.close()


class Unusable(Exception):
    """A part of a file cannot be used; the message is a phrase that says why."""


class Damaged(Unusable):
    """HDF5 cannot read what lies there."""


class Torn(Damaged):
    """Not one block of the rows that were asked for can be read."""


def open_snapshot(path: Path) -> tuple[h5py.File, FileSnapshot]:
    """The file as it is now, for reading only, whoever may be writing it. Raises RunFileError."""
    for _ in range(_ATTEMPTS):
        snapshot = _snapshot(path)
        try:
            file = h5py.File(snapshot, "r", rdcc_nbytes=0)  # chunks are read once: keeping them would only cost memory
            _open.add(file)
            return file, snapshot
        except FAULTS as error:  # perhaps a writer was in the middle of it
            snapshot.close()
            reason = message_of(error)
            time.sleep(_PAUSE_S)
    values = {"file": path, "reason": reason}
    if snapshot.missing_bytes:
        text = L_("{file} is cut short by {count} bytes ({reason}); restore a copy.")
        raise RunFileError(filled(text, count=snapshot.missing_bytes, **values))
    raise RunFileError(Sentence("{file} is damaged ({reason}); restore a copy.", **values))


def _snapshot(path: Path) -> FileSnapshot:
    try:
        if not path.is_file():
            text = L_("{file} is not a file; choose a run file (.h5).")
            missing = L_("{file} is not there; choose a run file (.h5).")
            raise RunFileError(filled(text if path.exists() else missing, file=path))
        snapshot = FileSnapshot(path)
    except OSError as error:
        text = L_("{file} cannot be read: {error}; check its permissions.")
        raise RunFileError(filled(text, file=path, error=error.strerror)) from None
    if not snapshot.size:
        raise RunFileError(Sentence("{file} is empty; restore a copy.", file=path))
    if not snapshot.is_hdf5():
        raise RunFileError(Sentence("{file} is not an HDF5 file; choose a run file (.h5).", file=path))
    return snapshot


def dataset(file: h5py.File, name: str, *, packed: bool = False) -> h5py.Dataset:
    """The dataset at a path of plain links; only a `packed` one may be compressed. Raises Unusable."""
    item: Any = file
    for part in name.split("/"):
        if not isinstance(item, h5py.Group):
            raise Unusable(L_("is not where it should be"))
        try:
            link = item.get(part, getlink=True)
            if link is None:
                raise Unusable(L_("is missing"))
            if not isinstance(link, h5py.HardLink):
                raise Unusable(L_("is a link to another place, which is never followed"))
            item = item[part]
        except FAULTS as error:
            raise Damaged(Sentence("is damaged ({error})", error=message_of(error))) from None
    return _plain(item, packed=packed)


def has(file: h5py.File, name: str) -> bool:
    """Whether anything lies at the path, usable or not."""
    try:
        return name in file
    except FAULTS:
        return True


def _plain(item: Any, *, packed: bool) -> h5py.Dataset:
    if not isinstance(item, h5py.Dataset):
        raise Unusable(L_("is not a dataset"))
    try:
        creation = item.id.get_create_plist()
        filters = [creation.get_filter(index)[0] for index in range(creation.get_nfilters())]
        if item.is_virtual or creation.get_external_count():
            raise Unusable(L_("keeps its data in another file, which is never opened"))
        if not {*filters} <= _FILTERS or len({*filters}) < len(filters):
            raise Unusable(L_("is compressed in a way that precgui does not read"))
        if filters and not packed:
            raise Unusable(L_("is compressed, as it is in no run file"))
        if item.dtype.hasobject or item.shape is None:
            raise Unusable(L_("has a type that a run file does not have"))
        if item.chunks and _chunk_bytes(item) > _LARGEST_CHUNK:
            raise Unusable(L_("is stored in larger chunks than a run file has"))
    except FAULTS as error:
        raise Damaged(Sentence("is damaged ({error})", error=message_of(error))) from None
    return item


def _chunk_bytes(item: h5py.Dataset) -> int:
    return int(math.prod(item.chunks)) * int(item.dtype.itemsize)


_small_chunks: weakref.WeakKeyDictionary[h5py.Dataset, int] = weakref.WeakKeyDictionary()  # rows known to be of them


def _is_of_small_chunks(item: h5py.Dataset) -> bool:
    """Whether no chunk is larger than what it should hold, as one pass over the index tells it.

    To ask for a single chunk takes HDF5 a walk through the index each time. False where a part of it is damaged.
    """
    if _small_chunks.get(item) == item.shape[0]:
        return True
    sizes: list[int] = []
    try:
        item.id.chunk_iter(lambda chunk: sizes.append(chunk.size))
    except FAULTS:
        return False
    if max(sizes, default=0) > _chunk_bytes(item) + _PACKED_MARGIN:
        return False
    _small_chunks[item] = item.shape[0]
    return True


def _has_huge_chunk(item: h5py.Dataset, row: int) -> bool:
    """Whether a compressed chunk of the row is larger than what it should hold: it would inflate without a limit."""
    if not item.compression or _is_of_small_chunks(item):
        return False
    most = _chunk_bytes(item) + _PACKED_MARGIN
    firsts = range(0, item.shape[1], item.chunks[1]) if len(item.shape) > 1 else [0]
    remainder = (0,) * (len(item.shape) - 2)
    return any(item.id.get_chunk_info_by_coord((row, at, *remainder)[: len(item.shape)]).size > most for at in firsts)


def text(item: h5py.Dataset) -> str:
    """A scalar fixed-length string. Raises Unusable."""
    if item.shape != () or item.dtype.kind != "S" or item.dtype.itemsize > _LARGEST_TEXT:
        raise Unusable(L_("is not a text"))
    try:
        return bytes(item[()]).rstrip(b"\0").decode(errors="replace")
    except FAULTS as error:
        raise Damaged(Sentence("is damaged ({error})", error=message_of(error))) from None


def attribute(file: h5py.File | h5py.Dataset, name: str) -> NDArray[Any] | None:
    """An attribute of fixed-size type and at most 64 KB, None when there is none such."""
    try:
        identifier = file.attrs.get_id(name)
        if identifier.dtype.hasobject or identifier.get_storage_size() > 1 << 16:
            return None
        return np.asarray(file.attrs[name])
    except FAULTS:
        return None


def length(item: h5py.Dataset) -> int:
    """Rows of a dataset, 0 when it has none."""
    try:
        return int(item.shape[0]) if item.shape else 0
    except FAULTS:
        return 0


def rows(item: h5py.Dataset, start: int, stop: int, stored: Callable[[], int] | None = None) -> NDArray[Any]:
    """Rows start..stop, or as many of them from the start on as can be read. Raises Unusable, Torn for none.

    `stored` says what `stored_bytes` does, where that is known from before.
    """
    _check_size(item, stop - start, stored)
    try:
        if item.compression and any(_has_huge_chunk(item, row) for row in range(start, stop)):
            raise Torn(L_("is damaged"))
        return np.asarray(item[start:stop])
    except FAULTS:
        return _salvage(item, start, stop)


def picked(
    item: h5py.Dataset, places: Sequence[int], stored: Callable[[], int] | None = None
) -> tuple[NDArray[Any], int]:
    """These rows, and how many of them cannot be read and are zero instead. Raises Unusable."""
    _check_size(item, len(places), stored)
    lost = 0
    try:
        values = np.zeros((len(places), *item.shape[1:]), item.dtype)
        space, shape = item.id.get_space(), (1, *item.shape[1:])
        one = h5s.create_simple(shape)
    except FAULTS as error:
        raise Damaged(Sentence("is damaged ({error})", error=message_of(error))) from None
    for row, place in enumerate(places):
        try:  # a level below h5py's slices, which take as long as the reading itself
            if _has_huge_chunk(item, place):
                lost += 1
                continue
            space.select_hyperslab((place, *(0,) * (len(shape) - 1)), shape)
            item.id.read(one, space, values[row : row + 1])
        except FAULTS:
            lost += 1
    return values, lost


def stored_bytes(item: h5py.Dataset) -> int:
    """The size of a dataset in the file, or the size of the file where a part of its index is damaged.

    HDF5 adds it up over all chunks each time. Raises Unusable.
    """
    try:
        return int(item.id.get_storage_size())
    except FAULTS:
        try:
            return int(item.file.id.get_filesize())
        except FAULTS as error:
            raise Damaged(Sentence("is damaged ({error})", error=message_of(error))) from None


def _check_size(item: h5py.Dataset, count: int, stored: Callable[[], int] | None) -> None:
    try:
        if item.file.mode != "r":
            return  # of our own writing, and not all of it stored yet
        claimed = count * int(np.prod(item.shape[1:], dtype=object)) * item.dtype.itemsize
    except FAULTS as error:
        raise Damaged(Sentence("is damaged ({error})", error=message_of(error))) from None
    if item.compression and claimed <= _SMALL_READ:
        return  # rows of tensors: those that are not there count as not recorded
    ratio = _DEFLATE_RATIO if item.compression else 1
    largest = _LARGEST_PACKED_READ if item.compression else _LARGEST_READ
    if claimed > min((stored() if stored else stored_bytes(item)) * ratio, largest):
        raise Unusable(L_("gives itself more rows than the file holds"))


def _salvage(item: h5py.Dataset, start: int, stop: int) -> NDArray[Any]:
    """Block by block up to the first that cannot be read; none of chunks that hold a row each."""
    if item.chunks and item.chunks[0] == 1:
        raise Torn(L_("is damaged"))
    blocks = []
    for at in range(start, stop, _SALVAGE_ROWS):
        try:
            blocks.append(np.asarray(item[at : min(at + _SALVAGE_ROWS, stop)]))
        except FAULTS:
            break
    if not blocks:
        raise Torn(L_("is damaged"))
    return np.concatenate(blocks)
