"""What can be read of a run file: attributes, texts, rows of tables, and notes on what cannot."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path
from typing import Any, ClassVar

import h5py
import numpy as np
from numpy.typing import NDArray

from precgui.runs import documents, safefile
from precgui.runs.safefile import Unusable
from precgui.runs.schema import EVENT_ROW, ROWS_VALID, TABLES, Column


class Contents:
    """An open run file. Damage costs only the damaged part and adds a sentence to `notes`.

    `rows` counts per table the rows that were completely written; `refresh` looks for more.
    """

    _open: ClassVar[weakref.WeakValueDictionary[tuple[int, int], Contents]] = weakref.WeakValueDictionary()
    _open_lock = threading.Lock()

    def __init__(self, file: h5py.File) -> None:
        self.file = file
        self.notes: list[str] = []
        self.rows: dict[str, int] = {}
        self._datasets: dict[str, h5py.Dataset | None] = {}
        self._readable: dict[str, int] = {}  # rows of a damaged table up to the first that cannot be read
        self._users = 1

    @classmethod
    def of(cls, path: Path) -> Contents:
        """The contents of a file, shared by all who have it open; each lets go of them by `release`.

        HDF5 must not open a growing file twice in one process: it then returns rows of old chunks as new ones.
        Raises RunFileError.
        """
        with cls._open_lock:
            key = safefile.identity(path)
            shared = cls._open.get(key)
            if shared is not None and shared._users:
                shared._users += 1
                return shared
            contents = cls._open[key] = cls(safefile.open_file(path))
            return contents

    def release(self) -> None:
        with self._open_lock:
            self._users -= 1
            if not self._users:
                self.file.close()

    def note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)

    def attribute(self, name: str) -> str:
        value = safefile.attribute(self.file, name)
        if value is None or value.shape != () or value.dtype.kind != "S":
            self.note(f"The attribute {name} is missing or damaged.")
            return ""
        return decoded(value.item())

    def text(self, name: str) -> str:
        """A text, empty when it cannot be read."""
        item = self._dataset(name)
        if item is None:
            return ""
        try:
            return safefile.text(item)
        except Unusable as reason:
            self.note(f"/{name} {reason}.")
            return ""

    def document(self, name: str) -> dict[str, Any]:
        """A JSON text, empty when it cannot be read."""
        written = self.text(name)
        try:
            return documents.load(written or "{}")
        except ValueError as reason:
            self.note(f"/{name} is not the JSON that it should be ({reason}).")
            return {}

    def refresh(self) -> None:
        """Count the rows anew: what the counters say, but no more than every column of the table has."""
        counted = self._counters()
        for name, table in TABLES.items():
            columns = [self._dataset(table.dataset_path(name, column)) for column in table.columns]
            lengths = [safefile.length(column) for column in columns if column is not None]
            rows = min([*lengths, *([counted.get(name, 0)] if counted else [])], default=0)
            self.rows[name] = min(rows, self._readable.get(name, rows))

    def read(self, table: str, column: str, start: int, stop: int) -> NDArray[Any]:
        """Rows of a column in the type of the schema; fewer where the file is damaged: the table then ends there."""
        spec = TABLES[table].columns[column]
        path = TABLES[table].dataset_path(table, column)
        item = self._dataset(path)
        values = np.empty((0, *spec.row), spec.dtype)
        if item is not None:
            try:
                found = safefile.rows(item, start, stop)
                values = _checked(found, spec)
            except Unusable as reason:
                self.note(f"/{path} {reason}.")
        if len(values) < stop - start:
            self.note(f"/{table} can be read up to row {start + len(values)} of {stop} only.")
            self._readable[table] = self.rows[table] = min(self.rows[table], start + len(values))
        return values

    def _dataset(self, name: str) -> h5py.Dataset | None:
        """The dataset, held open; None, with a note, when it cannot be used."""
        if name not in self._datasets:
            try:
                self._datasets[name] = safefile.dataset(self.file, name)
            except Unusable as reason:
                self._datasets[name] = None
                self.note(f"/{name} {reason}.")
        return self._datasets[name]

    def _counters(self) -> dict[str, int]:
        item = self._dataset(ROWS_VALID)
        if item is None:
            return {}
        try:
            names = safefile.attribute(item, "tables")
            counts = safefile.rows(item, 0, safefile.length(item))
        except Unusable as reason:
            self.note(f"/{ROWS_VALID} {reason}; the rows are counted instead.")
            return {}
        if names is None or names.shape != counts.shape or names.dtype.kind != "S" or counts.dtype.kind != "i":
            self.note(f"/{ROWS_VALID} is damaged; the rows are counted instead.")
            return {}
        return {decoded(name): max(int(count), 0) for name, count in zip(names, counts, strict=True)}


def decoded(name: bytes) -> str:
    return bytes(name).decode(errors="replace")


def _checked(values: NDArray[Any], spec: Column) -> NDArray[Any]:
    """The values, when shape and type are those of the schema; numbers may differ in width. Raises Unusable."""
    found, wanted = values.dtype, spec.dtype
    if wanted == EVENT_ROW and found != EVENT_ROW:
        raise Unusable("has other fields than an event")
    if found.kind != wanted.kind and not (found.kind in "iuf" and wanted.kind in "iuf"):
        raise Unusable("has a type that a run file does not have")
    if values.ndim != 1 + len(spec.row) or any(b and a != b for a, b in zip(values.shape[1:], spec.row, strict=True)):
        raise Unusable("has a shape that a run file does not have")
    return values
