"""A run file that is being written: texts that are filled in, tables that only grow, counters that come last."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from precgui import __version__
from precgui.runs.errors import RunFileError
from precgui.runs.file import json_text
from precgui.runs.file.atomic import draft_path, publish
from precgui.runs.file.chunk_codec import LEVEL, pieces
from precgui.runs.file.contents import RunFileView
from precgui.runs.file.descriptor import CLOSED_BY_OTHERS, Descriptor
from precgui.runs.file.schema import (
    FIXED_TEXTS,
    RESERVED_TEXTS,
    ROWS_VALID,
    SCHEMA,
    STATUS,
    STATUS_BYTES,
    TABLES,
    Column,
    Table,
    text_type,
)
from precgui.sentence_keys import with_keys
from precgui.sentences import L_, Sentence, filled, message_of

Columns = Mapping[str, NDArray[Any]]
Batch = Mapping[str, Columns]
Kept = Callable[[str, Columns], NDArray[np.bool_] | None]

# Formats of HDF5 1.10: what SWMR needs, and what every reader in use understands.
_LIBVER = ("v110", "v110")

# A kill ends a write between two pages of the system. So whatever is up to 512 bytes begins at a multiple of that: such
# are the headers and small indices that HDF5 overwrites in place, with a checksum behind. Space is never used twice.
_WITHIN_PAGES: dict[str, Any] = {"alignment_threshold": 1, "alignment_interval": 512, "fs_strategy": "none"}

_COPIED_BYTES = 64 << 20  # at once

_LATE = (*RESERVED_TEXTS, STATUS)


class DescriptorClosed(OSError):
    """Other code has closed the file while it was written."""


class TableFile:
    """A new file of schema 1, open for writing under SWMR: readers may follow, a kill leaves it readable.

    It is made under another name; `publish` gives it its own. `texts` are the FIXED_TEXTS as JSON; `attributes` are
    run_id, title and created; `tensor_room` is how long the tensor axis may get, 0 for any length.
    Raises RunFileError when the file exists, or its folder does not or cannot be written.
    """

    def __init__(
        self, path: Path, *, attributes: Mapping[str, str], texts: Mapping[str, str], tensor_room: int = 0
    ) -> None:
        self.path, self.tensor_room = path, tensor_room
        self._draft: Path | None = draft_path(path)
        self.file = _create(self._draft, path)
        self._descriptor = Descriptor(self.file.id.get_vfd_handle())
        self.rows = dict.fromkeys(TABLES, 0)
        self.abandoned = False
        with self._discarded_on_failure():
            self._make_texts(attributes, texts)
            self._datasets = {name: self._make_table(name, table) for name, table in TABLES.items()}
            self._rows_valid = self.file.create_dataset(ROWS_VALID, data=np.zeros(len(TABLES), "<i8"))
            self._rows_valid.attrs["tables"] = np.array(list(TABLES), text_type(64))
            self.file.flush()
            self._places = {name: (self.file[name].id.get_offset(), self.file[name].dtype) for name in _LATE}
            self.file.swmr_mode = True

    def publish(self, is_replaced: Callable[[], bool] | None = None) -> None:
        """Give the file its name in one piece, which no other file may have, unless it is the one to replace.

        `is_replaced` says whether that one still lies there as it is known. Raises RunFileError, and this file is then
        gone.
        """
        assert self._draft is not None
        with self._discarded_on_failure():
            if is_replaced is None:
                publish(self._draft, self.path)
            elif is_replaced():
                self._draft.replace(self.path)
            else:
                raise FileNotFoundError(L_("it was moved, deleted or written to"))
            self._draft = None

    def has_its_name(self) -> bool:
        """Whether the file still lies at its path."""
        try:
            return os.path.samestat(os.fstat(self._descriptor.number), self.path.stat())
        except FileNotFoundError:
            return False

    @contextlib.contextmanager
    def _discarded_on_failure(self) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError) as error:
            self.discard()
            if isinstance(error, FileExistsError):
                raise _taken(self.path) from None
            raise RunFileError(
                Sentence(
                    "{file} cannot be written: {error}; choose another folder.", file=self.path, error=message_of(error)
                )
            ) from None

    def discard(self) -> None:
        """Close a file that failed, and delete it where it has not got its name. Idempotent."""
        if self.file:
            self.abandon()
            self.close()
        if self._draft is not None:
            self._draft.unlink(missing_ok=True)

    def _make_texts(self, attributes: Mapping[str, str], texts: Mapping[str, str]) -> None:
        self.file.attrs["schema"] = SCHEMA
        for name, value in {**attributes, "precgui_version": __version__}.items():
            encoded = value.encode(errors="replace")
            self.file.attrs.create(name, np.array(encoded, text_type(max(len(encoded), 1))))
        for name in FIXED_TEXTS:
            _make_text(self.file, name, texts[name], max(len(texts[name].encode()), 1))
        for name, size in RESERVED_TEXTS.items():
            _make_text(self.file, name, "{}", size)
        _make_text(self.file, STATUS, "running", STATUS_BYTES)

    def _make_table(self, name: str, table: Table) -> dict[str, _Stored]:
        return {
            column: self._make_column(table.dataset_path(name, column), spec, table)
            for column, spec in table.columns.items()
        }

    def _make_column(self, path: str, column: Column, table: Table) -> _Stored:
        """Create a column by the low level of h5py in a third of the time: a file has some sixty and is made twice."""
        unlimited = h5py.h5s.UNLIMITED
        longest = (unlimited, *(size or self.tensor_room or unlimited for size in column.row))
        space = h5py.h5s.create_simple((0, *column.row), longest)
        requested = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        requested.set_obj_track_times(False)
        requested.set_chunk(table.chunk(column))
        if column.packing == "shuffle":
            requested.set_shuffle()
        if column.packing:
            requested.set_deflate(LEVEL)
        kind = h5py.h5t.py_create(column.dtype, logical=True)
        return _Stored(h5py.h5d.create(self.file.id, path.encode(), kind, space, requested, _links()), column)

    def append(self, batch: Batch) -> None:
        """Add rows and make them last: rows first, counters after them, each flushed to the system.

        A failed append leaves the counters as they were, so the same batch can be tried again.
        Raises OSError or RuntimeError (HDF5's own choice) when the disk does not take it, and DescriptorClosed.
        """
        if self._is_abandoned():
            raise DescriptorClosed(CLOSED_BY_OTHERS)
        grown = dict(self.rows)
        for name, columns in batch.items():
            grown[name] += self._write_rows(name, columns)
        self.file.flush()
        self._rows_valid.id.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array(list(grown.values()), "<i8"))
        self._rows_valid.id.flush()
        self.rows = grown

    def _write_rows(self, name: str, columns: Columns) -> int:
        """Write equally long columns of a table behind its rows; returns how many."""
        spaces = _Spaces()
        for column, stored in self._datasets[name].items():
            stored.write(columns[column], self.rows[name], spaces)
        return len(next(iter(columns.values())))

    def take_over(self, source: RunFileView, kept: Kept | None = None) -> None:
        """Add all rows of another file that every column of their table still has.

        `kept` chooses among rows of a table, by its name: for each whether it is taken, None for all. Raises OSError or
        RuntimeError when the disk does not take them.
        """
        counted = source.counters()  # empty in a damaged file
        for name in [name for name in TABLES if counted.get(name, not counted)]:
            table, start = TABLES[name], 0
            row_bytes = table.row_bytes(source.rows("tensors/names"))
            while start < source.rows(name):
                stop = min(start + max(_COPIED_BYTES // row_bytes, 1), source.rows(name))
                columns = {column: source.read(name, column, start, stop) for column in table.columns}
                rows = min(len(values) for values in columns.values())
                taken = {column: values[:rows] for column, values in columns.items()}
                if kept is not None and (chosen := kept(name, taken)) is not None:
                    taken = {column: values[chosen] for column, values in taken.items()}
                self.append({name: taken})
                start += max(rows, 1)

    def write_text(self, name: str, document: Mapping[str, Any]) -> None:
        """Fill one of the RESERVED_TEXTS; without room for all, keys of sentences, then large entries are left out."""
        size, text = RESERVED_TEXTS[name], json_text.dump(with_keys(document))
        self._write_in_place(name, text if len(text.encode()) <= size else json_text.dump_within(document, size))

    def write_status(self, status: str) -> None:
        """The last word: written after everything else, in one small piece."""
        self._write_in_place(STATUS, status)

    def abandon(self) -> None:
        """Take the file out of HDF5's hands after it failed to write: what is on the disk stays as it is. Idempotent.

        HDF5 crashes the process when it closes a file that it cannot flush, so its writes are led to nowhere.
        Texts can still be written: their places are known, and overwriting needs no room.
        """
        if not self.abandoned:
            self.abandoned = True
            self._descriptor.close_elsewhere(self._close_unread)

    def _close_unread(self) -> None:
        with contextlib.suppress(OSError, RuntimeError):  # of reading back what went nowhere
            self.file.close()

    def _is_abandoned(self) -> bool:
        """Whether HDF5 must not write: it is never let near a file of others that has got the number of this one."""
        if not self.abandoned and not self._descriptor.is_ours():
            self.abandon()
        return self.abandoned

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self.file and not self._is_abandoned():
            self.file.close()

    def _write_in_place(self, name: str, text: str) -> None:
        offset, dtype = self._places[name]
        if self._is_abandoned():
            with self.path.open("r+b") as file:
                if not self._descriptor.was(file.fileno()):
                    raise OSError(L_("another file has taken its place"))
                file.seek(offset)
                file.write(text.encode().ljust(dtype.itemsize, b"\0"))
        else:
            try:
                self.file[name][()] = np.array(text.encode(), dtype)
            except KeyError as error:  # h5py's answer when the file cannot be read any more
                raise OSError(str(error)) from None
            self.file.flush()


def _create(draft: Path, path: Path) -> h5py.File:
    try:
        if draft == path and path.exists():
            raise _taken(path)
        draft.unlink(missing_ok=True)  # of a process that died with the same number
        return h5py.File(draft, "x", libver=_LIBVER, locking="best-effort", **_WITHIN_PAGES)
    except (OSError, RuntimeError) as error:
        if getattr(error, "errno", None) == errno.ENAMETOOLONG:
            text = L_("{file} is too long for a file name; choose a shorter one.")
            raise RunFileError(filled(text, file=path.name)) from None
        text = L_("{file} cannot be created: {error}; choose another folder.")
        raise RunFileError(filled(text, file=path, error=str(error))) from None


def _links() -> h5py.h5p.PropLCID:
    """Names in UTF-8, with the groups that they need."""
    links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    links.set_char_encoding(h5py.h5t.CSET_UTF8)
    return links


def _taken(path: Path) -> RunFileError:
    return RunFileError(Sentence("{file} already exists; choose another name or delete it first.", file=path))


def _make_text(file: h5py.File, name: str, text: str, size: int) -> None:
    file.create_dataset(name, data=np.array(text.encode(), text_type(size)))


class _Stored:
    """A dataset that grows, as the lower level of h5py has it.

    Its indexing takes ten times as long, and what it asks HDF5 anew at each write as long as the writing itself; all
    of it competes with a training.
    """

    def __init__(self, rows: h5py.h5d.DatasetID, column: Column) -> None:
        self.rows, self.column = rows, column
        self._type = h5py.h5t.py_create(column.dtype)
        self._inner: tuple[int, ...] = rows.shape[1:]
        self._broken_off = False

    def write(self, values: NDArray[Any], start: int, spaces: _Spaces) -> None:
        """Write values from row `start` on; what lies behind them is lost."""
        values = np.ascontiguousarray(values, self.column.dtype)
        if len(self._inner) and values.shape[1] > self._inner[0]:
            self._inner = values.shape[1:]
        if self._broken_off and self.column.packing:  # HDF5 remembers the chunk that failed as one that it has
            self.rows.set_extent((start, *self._inner))
        self._broken_off = True
        self.rows.set_extent((start + len(values), *self._inner))
        if self.column.packing:
            for place, row in enumerate(values, start):
                for first, piece in pieces(row, self.column.packing):
                    self.rows.write_direct_chunk((place, first, 0), piece)
        elif values.size:
            of_values, of_file = spaces(values.shape, start, self._inner)
            self.rows.write(of_values, of_file, values, self._type)
        self._broken_off = False


class _Spaces:
    """Selections of HDF5, one for all columns of a table that are alike."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[h5py.h5s.SpaceID, h5py.h5s.SpaceID]] = {}

    def __call__(
        self, shape: tuple[int, ...], start: int, inner: tuple[int, ...]
    ) -> tuple[h5py.h5s.SpaceID, h5py.h5s.SpaceID]:
        """The selection of the values, and their place from row `start` on in a dataset that ends with them."""
        if (shape, inner) not in self._known:
            place = h5py.h5s.create_simple((start + shape[0], *inner))
            place.select_hyperslab((start, *(0 for _ in inner)), shape)
            self._known[shape, inner] = h5py.h5s.create_simple(shape), place
        return self._known[shape, inner]
