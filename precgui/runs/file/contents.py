"""The readable contents of a run file: attributes, texts, rows of tables, and notes on what cannot be read."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import h5py
import numpy as np
from numpy.typing import NDArray

from precgui.runs.errors import RunFileError
from precgui.runs.file import json_text, safe_hdf5
from precgui.runs.file.safe_hdf5 import Damaged, Torn, Unusable
from precgui.runs.file.schema import BEAT, EVENT_ROW, ROWS_VALID, TABLES, Column
from precgui.runs.file.snapshot import FileSnapshot
from precgui.sanitize import sanitize, sanitize_tree
from precgui.sentence_keys import restored
from precgui.sentences import L_, Sentence, filled, message_of

_CHANGED = L_("The file was changed, moved or deleted after it was opened; what had not been read is not shown.")


P = ParamSpec("P")
R = TypeVar("R")
MOST_OPEN = 8  # HDF5 takes up to several MiB for an open file, and the system a handle


def _locked(method: Callable[Concatenate[RunFileView, P], R]) -> Callable[Concatenate[RunFileView, P], R]:
    """A method that uses the file, which no other thread may close meanwhile."""

    @wraps(method)
    def locked(self: RunFileView, /, *arguments: P.args, **options: P.kwargs) -> R:
        with self._lock:
            return method(self, *arguments, **options)

    return locked


class RunFileView:
    """An open run file. Damage costs only the damaged part and adds a sentence to `notes`.

    Of files that `open_on_demand` was called for, only those that were read last are really open.
    """

    def __init__(self, file: h5py.File, path: Path | None = None) -> None:
        """With a path, `refresh` opens that file anew."""
        self.file = file
        self._path = path
        self._lock = threading.RLock()
        self._on_demand = self._released = False
        self._state: tuple[int, ...] = ()  # of the file when it was opened
        self._notes: dict[str, str] = {}
        self._torn_off: set[str] = set()  # notes on parts that lie in what a file that is cut short has lost
        self._datasets: dict[str, h5py.Dataset | None] = {}
        self._stored_bytes: dict[str, int] = {}
        self._counters: dict[str, int] | None = None
        self._rows: dict[str, int] = {}

    @classmethod
    def open(cls, path: Path) -> RunFileView:
        """Raises RunFileError."""
        file, snapshot = safe_hdf5.open_snapshot(path)
        contents = cls(file, path)
        contents._begin(snapshot)
        return contents

    @_locked
    def refresh(self) -> None:
        """Read the rows that another process has written since. Raises RunFileError, and then leaves all as it was."""
        if self._path is None:
            return
        file, snapshot = safe_hdf5.open_snapshot(self._path)
        self.file.close()
        self.file = file
        self._notes.clear()
        self._torn_off.clear()
        self._datasets.clear()
        self._stored_bytes.clear()
        self._rows.clear()
        self._begin(snapshot)

    def open_on_demand(self) -> None:
        """Let others close the file of a run that has ended; it opens again when more is read from it."""
        self._on_demand = self._path is not None
        self._use()

    def release(self) -> None:
        """Close the file until it is read again; nothing happens while another thread reads."""
        if not self._on_demand or not self._lock.acquire(blocking=False):
            return
        try:
            self._released = True
            self._datasets.clear()
            self.file.close()
        finally:
            self._lock.release()

    @_locked
    def close(self) -> None:
        """Let go of the file for good. Idempotent."""
        self._on_demand = self._released = False
        self.file.close()

    def _use(self) -> None:
        """Open the file again if it was released."""
        if self._on_demand:
            recent_views.used(self)
        if self._released and self._path is not None:
            self._released = False
            try:
                file, snapshot = safe_hdf5.open_snapshot(self._path)
            except RunFileError:
                self.note("", _CHANGED)
                return
            if snapshot.state == self._state:
                self.file = file
            else:
                self.note("", _CHANGED)
                file.close()

    @property
    def notes(self) -> list[str]:
        """Sentences on what is missing or damaged, as far as it was read; one on all that a cut has taken."""
        return [text for key, text in self._notes.items() if key not in self._torn_off]

    def damage(self, *tables: str) -> str:
        """The first sentence on a file that is cut short, or on damage to one of these tables; empty for none."""
        places = ("", *tables)
        return next((text for key, text in self._notes.items() if key.partition("/")[0] in places), "")

    def note(self, subject: str, sentence: str) -> None:
        self._notes.setdefault(subject, sentence)

    def _note_unusable(self, path: str, reason: Unusable) -> None:
        """A note on a part of the file that cannot be used."""
        if isinstance(reason, Damaged) and self.is_cut_short and path not in self._notes:
            self._torn_off.add(path)
        self.note(path, Sentence("/{dataset} {reason}.", dataset=path, reason=message_of(reason)))

    @property
    def is_cut_short(self) -> bool:
        """Whether the file is shorter than it says, or another one than when it was opened."""
        return "" in self._notes

    def is_lost(self, name: str) -> bool:
        """Whether a part could not be read."""
        return name in self._notes

    def _begin(self, snapshot: FileSnapshot) -> None:
        self._state = snapshot.state
        if snapshot.missing_bytes:
            text = L_("The file is cut short by {count} bytes; what is left of it is shown.")
            self.note("", filled(text, count=snapshot.missing_bytes))
        self._counters = self._read_counters()  # now, since a writer goes on meanwhile

    def attribute(self, name: str) -> str:
        value = safe_hdf5.attribute(self.file, name)
        if value is None or value.shape != () or value.dtype.kind != "S":
            self.note(name, Sentence("The attribute {attribute} is missing or damaged.", attribute=name))
            return ""
        return decoded(value.item())

    @_locked
    def text(self, name: str) -> str:
        """A text, empty when it cannot be read."""
        item = self._dataset(name)
        if item is None:
            return ""
        try:
            return safe_hdf5.text(item)
        except Unusable as reason:
            self._note_unusable(name, reason)
            return ""

    def document(self, name: str) -> dict[str, Any]:
        """A JSON text, empty when it cannot be read; its texts are harmless (the config checks its own)."""
        written = self.text(name)
        try:
            loaded = json_text.load(written or "{}")
            return loaded if name == "config" else restored(dict(sanitize_tree(loaded)))
        except ValueError as reason:
            text = L_("/{dataset} is not the JSON that it should be ({reason}).")
            self.note(name, filled(text, dataset=name, reason=str(reason)))
            return {}

    @_locked
    def beat(self) -> dict[str, Any]:
        """The latest beat of the process that writes the file; empty in files of older versions."""
        self._use()
        return self.document(BEAT) if safe_hdf5.has(self.file, BEAT) else {}

    @_locked
    def rows(self, table: str) -> int:
        """Completely written rows: what the counter says, but no more than every column of the table has.

        A lost column costs its table, unless older versions did not have it either.
        """
        if table not in self._rows and TABLES[table].late and table not in (self.counters() or TABLES):
            self._rows[table] = 0  # of an older version
        if table not in self._rows:
            spec = TABLES[table]
            names = [name for name in spec.columns if not self._is_absent(table, name)]
            items = {name: self._dataset(spec.dataset_path(table, name)) for name in names}
            lengths = [
                0 if item is None else safe_hdf5.length(item)
                for name, item in items.items()
                if item is not None or not spec.columns[name].late
            ]
            counted = self.counters()
            if counted:
                lengths.append(counted.get(table, 0))
            self._rows[table] = min(lengths, default=0)
        return self._rows[table]

    @_locked
    def read(self, table: str, column: str, start: int, stop: int) -> NDArray[Any]:
        """Rows of a column in the type of the schema; fewer where the file is damaged: the table then ends there.

        One that older versions did not have is NaN where it is missing or damaged.
        """
        spec = TABLES[table].columns[column]
        path = TABLES[table].dataset_path(table, column)
        item = None if self._is_absent(table, column) else self._dataset(path)
        if item is None and spec.late:
            return np.full((max(stop - start, 0), *spec.row), np.nan, spec.dtype)
        values = np.empty((0, *spec.row), spec.dtype)
        if item is not None:
            try:
                values = safe_hdf5.rows(item, start, stop, partial(self._stored, path, item))
            except Unusable as reason:
                if spec.packing and isinstance(reason, Torn):  # rows apart from each other
                    return self.pick(table, column, range(start, stop))
                self._note_unusable(path, reason)
        if len(values) < stop - start:
            text = L_("/{dataset} can be read up to row {row} of {rows} only.")
            self.note(table, filled(text, dataset=table, row=start + len(values), rows=stop))
            self._rows[table] = min(self.rows(table), start + len(values))
        return values

    @_locked
    def pick(self, table: str, column: str, places: Sequence[int]) -> NDArray[Any]:
        """Some rows of a column in the type of the schema; those that the file has lost are zero, and noted."""
        spec = TABLES[table].columns[column]
        path = TABLES[table].dataset_path(table, column)
        item = self._dataset(path)
        if item is not None:
            try:
                result, lost = safe_hdf5.picked(item, places, partial(self._stored, path, item))
                if lost:
                    text = L_("/{dataset} has {lost} of {count} rows that cannot be read.")
                    self.note(path, filled(text, dataset=path, lost=lost, count=len(places)))
                return result
            except Unusable as reason:
                self._note_unusable(path, reason)
        return np.zeros((len(places), *spec.row), spec.dtype)

    def _is_absent(self, table: str, column: str) -> bool:
        """Whether the file is of an older version, which did not have this column of its table."""
        if not TABLES[table].columns[column].late:
            return False
        self._use()
        return not safe_hdf5.has(self.file, TABLES[table].dataset_path(table, column))

    def _stored(self, path: str, item: h5py.Dataset) -> int:
        """The stored bytes of a dataset, asked once while the file is as it is. Raises Unusable."""
        if self._path is None:
            return safe_hdf5.stored_bytes(item)  # of our own writing: it grows
        if path not in self._stored_bytes:
            self._stored_bytes[path] = safe_hdf5.stored_bytes(item)
        return self._stored_bytes[path]

    def _dataset(self, name: str) -> h5py.Dataset | None:
        """The dataset, held open; None, with a note, when it cannot be used."""
        self._use()
        if name not in self._datasets:
            try:
                item = safe_hdf5.dataset(self.file, name, packed=name in _PACKED)
                if name in _COLUMNS:
                    _check_type(item, _COLUMNS[name])
                self._datasets[name] = item
            except Unusable as reason:
                self._datasets[name] = None
                self._note_unusable(name, reason)
        return self._datasets[name]

    @_locked
    def counters(self) -> dict[str, int]:
        """The rows of each table as counted by the writer; empty when the counters cannot be read."""
        if self._counters is None:
            self._counters = self._read_counters()
        return self._counters

    def _read_counters(self) -> dict[str, int]:
        item = self._dataset(ROWS_VALID)
        if item is None:
            return {}
        try:
            names = safe_hdf5.attribute(item, "tables")
            counts = safe_hdf5.rows(item, 0, safe_hdf5.length(item))
        except Unusable as reason:
            text = L_("/{dataset} {reason}; the rows are counted instead.")
            self.note(ROWS_VALID, filled(text, dataset=ROWS_VALID, reason=message_of(reason)))
            return {}
        if names is None or names.shape != counts.shape or names.dtype.kind != "S" or counts.dtype.kind != "i":
            text = L_("/{dataset} is damaged; the rows are counted instead.")
            self.note(ROWS_VALID, filled(text, dataset=ROWS_VALID))
            return {}
        return {decoded(name): max(int(count), 0) for name, count in zip(names, counts, strict=True)}


_COLUMNS = {
    table.dataset_path(path, name): column for path, table in TABLES.items() for name, column in table.columns.items()
}
_PACKED = {
    path for path, column in _COLUMNS.items() if column.packing or column.row
}  # early files had the strides, too


def decoded(name: bytes) -> str:
    """A text of a table or attribute, fit to be shown."""
    return sanitize(bytes(name).decode(errors="replace"))


def _check_type(item: h5py.Dataset, spec: Column) -> None:
    """Raises Unusable unless shape and type are those of the schema; numbers may differ in width."""
    stored, requested = item.dtype, spec.dtype
    if requested == EVENT_ROW and stored != EVENT_ROW:
        raise Unusable(L_("has other fields than an event"))
    allowed = {"f": "iuf", "i": "iu", "u": "iu"}.get(requested.kind, requested.kind)
    if stored.kind not in allowed:
        raise Unusable(L_("has a type that a run file does not have"))
    if len(item.shape) != 1 + len(spec.row) or any(b and a != b for a, b in zip(item.shape[1:], spec.row, strict=True)):
        raise Unusable(L_("has a shape that a run file does not have"))


class RecentViews:
    """Views in the order of their last use, the oldest beyond `most` released. Thread-safe."""

    def __init__(self, most: int = MOST_OPEN) -> None:
        self._most = most
        self._views: OrderedDict[int, weakref.ref[RunFileView]] = OrderedDict()
        self._lock = threading.Lock()

    def used(self, view: RunFileView) -> None:
        """Note the use of a view, and release those that were not used for the longest time."""
        with self._lock:
            self._views[id(view)] = weakref.ref(view)
            self._views.move_to_end(id(view))
            over = [self._views.popitem(last=False)[1] for _ in range(len(self._views) - self._most)]
        for reference in over:
            if (old := reference()) is not None and old is not view:
                old.release()


recent_views = RecentViews()
