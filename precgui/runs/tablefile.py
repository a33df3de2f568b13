"""A run file that is being written: texts that are filled in, tables that only grow, counters that come last."""

from __future__ import annotations

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


class TableFile:
    """A new file of schema 1, open for writing under SWMR: readers may follow, a kill leaves it readable.

    `texts` are the FIXED_TEXTS as JSON; `attributes` are run_id, title and created.
    Raises RunFileError when the file exists, or its folder does not or cannot be written.
    """

    def __init__(self, path: Path, *, attributes: Mapping[str, str], texts: Mapping[str, str]) -> None:
        self.path = path
        self.file = _create(path)
        self.rows = dict.fromkeys(TABLES, 0)
        try:
            self._make_texts(attributes, texts)
            self._datasets = {name: _make_table(self.file, name, table) for name, table in TABLES.items()}
            self._rows_valid = self.file.create_dataset(ROWS_VALID, data=np.zeros(len(TABLES), "<i8"))
            self._rows_valid.attrs["tables"] = np.array(list(TABLES), text_type(64))
            self.file.flush()
            self.file.swmr_mode = True
        except (OSError, RuntimeError) as error:
            self.file.close()
            path.unlink(missing_ok=True)
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
        self._rows_valid[...] = np.array(list(grown.values()), "<i8")
        self.file.flush()
        self.rows = grown

    def write_text(self, name: str, document: Mapping[str, Any]) -> None:
        """Fill one of the RESERVED_TEXTS; entries too large for the room are left out (null)."""
        text = documents.dump_within(document, RESERVED_TEXTS[name])
        self.file[name][()] = np.array(text.encode(), self.file[name].dtype)
        self.file.flush()

    def write_status(self, status: str) -> None:
        """The last word: written after everything else, in one small piece."""
        self.file[STATUS][()] = np.array(status.encode(), self.file[STATUS].dtype)
        self.file.flush()

    def close(self) -> None:
        self.file.close()


def _create(path: Path) -> h5py.File:
    try:
        return h5py.File(path, "x", libver=_LIBVER, locking="best-effort")
    except FileExistsError:
        raise RunFileError(f"{path} already exists; choose another name or delete it first.") from None
    except (OSError, RuntimeError) as error:
        raise RunFileError(f"{path} cannot be created: {_reason(path, error)}") from None


def _reason(path: Path, error: Exception) -> str:
    if not path.parent.exists():
        return f"the folder {path.parent} does not exist; create it or choose another."
    if not path.parent.is_dir():
        return f"{path.parent} is not a folder; choose another."
    if isinstance(error, PermissionError):
        return f"the folder {path.parent} is not yours to write; choose another."
    return f"{error}; choose another folder."


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
        shuffle=column.compressed,
    )


def _write_rows(datasets: Mapping[str, h5py.Dataset], columns: Columns, start: int) -> int:
    """Write equally long columns from row `start`; returns how many rows."""
    count = len(next(iter(columns.values())))
    for name, dataset in datasets.items():
        values = columns[name]
        inner = tuple(max(old, new) for old, new in zip(dataset.shape[1:], values.shape[1:], strict=True))
        dataset.resize((start + count, *inner))
        dataset[(slice(start, start + count), *(slice(size) for size in values.shape[1:]))] = values
    return count
