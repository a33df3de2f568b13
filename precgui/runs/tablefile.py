"""A run file that is being written: texts that are filled in, tables that only grow, counters that come last."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from precgui import __version__
from precgui.runs import documents
from precgui.runs.errors import RunFileError
from precgui.runs.schema import (
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

Columns = Mapping[str, NDArray[Any]]
Batch = Mapping[str, Columns]

# Formats of HDF5 1.10: what SWMR needs, and what every reader in use understands.
_LIBVER = ("v110", "v110")

_GZIP_LEVEL = 1  # half the time of the usual 4, and 5 % larger

_LATE = (*RESERVED_TEXTS, STATUS)


class TableFile:
    """A new file of schema 1, open for writing under SWMR: readers may follow, a kill leaves it readable.

    `texts` are the FIXED_TEXTS as JSON; `attributes` are run_id, title and created.
    Raises RunFileError when the file exists, or its folder does not or cannot be written.
    """

    def __init__(self, path: Path, *, attributes: Mapping[str, str], texts: Mapping[str, str]) -> None:
        self.path = path
        draft = _draft(path)
        self.file = _create(draft, path)
        self.rows = dict.fromkeys(TABLES, 0)
        self.abandoned = False
        try:
            self._make_texts(attributes, texts)
            self._datasets = {name: _make_table(self.file, name, table) for name, table in TABLES.items()}
            self._rows_valid = self.file.create_dataset(ROWS_VALID, data=np.zeros(len(TABLES), "<i8"))
            self._rows_valid.attrs["tables"] = np.array(list(TABLES), text_type(64))
            self.file.flush()
            self._places = {name: (self.file[name].id.get_offset(), self.file[name].dtype) for name in _LATE}
            self.file.swmr_mode = True
            _publish(draft, path)
        except (OSError, RuntimeError) as error:
            self.file.close()
            draft.unlink(missing_ok=True)
            if isinstance(error, FileExistsError):
                raise _taken(path) from None
            raise RunFileError(f"{path} cannot be written: {error}; choose another folder.") from None

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

    def append(self, batch: Batch) -> None:
        """Add rows and make them last: rows first, counters after them, each flushed to the system.

        A failed append leaves the counters as they were, so the same batch can be tried again.
        Raises OSError or RuntimeError (HDF5's own choice) when the disk does not take it.
        """
        grown = dict(self.rows)
        for name, columns in batch.items():
            grown[name] += _write_rows(self._datasets[name], columns, self.rows[name])
        self.file.flush()
        self._rows_valid.id.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array(list(grown.values()), "<i8"))
        self._rows_valid.id.flush()
        self.rows = grown

    def write_text(self, name: str, document: Mapping[str, Any]) -> None:
        """Fill one of the RESERVED_TEXTS; entries too large for the room are left out (null)."""
        self._write_in_place(name, documents.dump_within(document, RESERVED_TEXTS[name]))

    def write_status(self, status: str) -> None:
        """The last word: written after everything else, in one small piece."""
        self._write_in_place(STATUS, status)

    def abandon(self) -> None:
        """Take the file out of HDF5's hands after it failed to write: what is on the disk stays as it is.

        HDF5 crashes the process when it closes a file that it cannot flush, so its writes are led to nowhere.
        Texts can still be written: their places are known, and overwriting needs no room.
        """
        self.abandoned = True
        nowhere = os.memfd_create("abandoned") if hasattr(os, "memfd_create") else tempfile.mkstemp()[0]
        os.dup2(nowhere, self.file.id.get_vfd_handle())
        os.close(nowhere)

    def close(self) -> None:
        if self.abandoned:
            with contextlib.suppress(OSError, RuntimeError):  # of reading back what went nowhere
                self.file.close()
        else:
            self.file.close()

    def _write_in_place(self, name: str, text: str) -> None:
        offset, dtype = self._places[name]
        if self.abandoned:
            with self.path.open("r+b") as file:
                file.seek(offset)
                file.write(text.encode().ljust(dtype.itemsize, b"\0"))
        else:
            self.file[name][()] = np.array(text.encode(), dtype)
            self.file.flush()


def _draft(path: Path) -> Path:
    """Where a file is made before it gets its name, so that nobody sees half of it.

    Windows renames no file that is open; there a reader may meet one that is being made.
    """
    return path.with_name(f".{path.name}.{os.getpid()}.new") if os.name == "posix" else path


def _create(draft: Path, path: Path) -> h5py.File:
    if path.exists():
        raise _taken(path)
    try:
        draft.unlink(missing_ok=True)  # of a process that died with the same number
        return h5py.File(draft, "x", libver=_LIBVER, locking="best-effort")
    except (OSError, RuntimeError) as error:
        raise RunFileError(f"{path} cannot be created: {error}; choose another folder.") from None


def _publish(draft: Path, path: Path) -> None:
    """Give a file its name in one piece. Raises FileExistsError, never replaces another."""
    if draft == path:
        return
    try:
        path.hardlink_to(draft)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if path.exists():
            raise FileExistsError(path) from None
        draft.rename(path)
    draft.unlink(missing_ok=True)


def _taken(path: Path) -> RunFileError:
    return RunFileError(f"{path} already exists; choose another name or delete it first.")


def _make_text(file: h5py.File, name: str, text: str, size: int) -> None:
    file.create_dataset(name, data=np.array(text.encode(), text_type(size)))


def _make_table(file: h5py.File, name: str, table: Table) -> dict[str, h5py.Dataset]:
    return {
        column: _make_column(file, table.dataset_path(name, column), spec, table)
        for column, spec in table.columns.items()
    }


def _make_column(file: h5py.File, path: str, column: Column, table: Table) -> h5py.Dataset:
    return file.create_dataset(
        path,
        shape=(0, *column.row),
        maxshape=(None, *(size or None for size in column.row)),
        dtype=column.dtype,
        chunks=table.chunk(column),
        compression="gzip" if column.compressed else None,
        compression_opts=_GZIP_LEVEL if column.compressed else None,
        shuffle=column.compressed,
    )


def _write_rows(datasets: Mapping[str, h5py.Dataset], columns: Columns, start: int) -> int:
    """Write equally long columns from row `start`; returns how many rows.

    Through the lower level of h5py: its indexing takes ten times as long, and this competes with a training.
    """
    count = len(next(iter(columns.values())))
    for name, dataset in datasets.items():
        values, rows = np.ascontiguousarray(columns[name]), dataset.id
        inner = tuple(max(old, new) for old, new in zip(rows.shape[1:], values.shape[1:], strict=True))
        rows.set_extent((start + count, *inner))
        if values.size:
            place = rows.get_space()
            place.select_hyperslab((start, *(0 for _ in inner)), values.shape)
            rows.write(h5py.h5s.create_simple(values.shape), place, values)
    return count
