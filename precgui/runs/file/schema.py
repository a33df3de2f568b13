"""Schema 1 of the run file as data: texts, growing tables and their types. `docs/run-file.md` explains it.

Everything is created before the first step, because HDF5 creates nothing after SWMR was switched on:
texts are fixed-length strings with room to spare, tables are datasets that only grow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import h5py
import numpy as np

from precgui.events import (
    EXPONENT_BINS,
    HOST_SIGNALS,
    POWER_SIGNALS,
    RANK_SIGNALS,
    STATE_SIGNALS,
    STEP_SIGNALS,
    TENSOR_KINDS,
    TENSOR_STATS,
)

SCHEMA = 1

# Root attributes, written once. Attributes cannot change under SWMR, so the status is a dataset.
ATTRIBUTES = ("schema", "precgui_version", "run_id", "title", "created")

# JSON texts known when the file is made, and those filled in later with the bytes reserved for them.
FIXED_TEXTS = ("config", "machine", "environment")
BEAT = "beat"  # not in the files of older versions; no longer than what a kill cannot divide
RESERVED_TEXTS = {"engine": 1 << 17, "end": 1 << 16, "summary": 1 << 13, BEAT: 512}
STATUS_BYTES = 16
TENSORS_IN_CHUNK = 64

ROWS_VALID = "rows_valid"  # int64, one counter per table in the order of TABLES, written after the rows
STATUS = "status"


def text_type(size: int) -> np.dtype[np.bytes_]:
    """A fixed-length UTF-8 string of at most `size` bytes."""
    return h5py.string_dtype("utf-8", size)  # type: ignore[no-any-return]


_F8: np.dtype[Any] = np.dtype("<f8")
_I8: np.dtype[Any] = np.dtype("<i8")
_U1: np.dtype[Any] = np.dtype("u1")

EVENT_ROW = np.dtype(
    [
        ("time_s", _F8),
        ("step", _I8),
        ("kind", text_type(24)),
        ("severity", text_type(8)),
        ("module", text_type(96)),
        ("message", text_type(160)),
        ("text_start", _I8),  # where the whole message lies in `texts` when it is longer than the field
        ("text_length", _I8),
    ]
)


@dataclass(frozen=True)
class Column:
    """One dataset of a table. `row` is the shape of one row, 0 for the tensor axis, which grows, too.

    `packing` says that a chunk is a row and compressed: "deflate", or "shuffle" when its bytes are sorted before.
    """

    dtype: np.dtype[Any]
    row: tuple[int, ...] = ()
    packing: Literal["", "deflate", "shuffle"] = ""
    chunk_rows: int = 0  # 0: as the table says
    late: bool = False  # not in the files of older versions, where its rows are NaN


@dataclass(frozen=True)
class Table:
    """Datasets of equal length that grow together. A column without a name is the dataset at the path itself.

    A `late` table is not in the files of older versions.
    """

    columns: Mapping[str, Column]
    chunk_rows: int = 2048
    late: bool = field(default=False, kw_only=True)

    def dataset_path(self, path: str, column: str) -> str:
        return f"{path}/{column}" if column else path

    def row_bytes(self, tensors: int) -> int:
        """The size of a row with so many tensors."""
        sizes = (
            math.prod(size or tensors for size in column.row) * column.dtype.itemsize
            for column in self.columns.values()
        )
        return sum(sizes)

    def chunk(self, column: Column) -> tuple[int, ...]:
        return (column.chunk_rows or self.chunk_rows, *(size or TENSORS_IN_CHUNK for size in column.row))


def _one(dtype: np.dtype[Any], chunk_rows: int, late: bool = False) -> Table:
    return Table({"": Column(dtype)}, chunk_rows, late=late)


def _readings(signals: tuple[str, ...], chunk_rows: int, late: bool = False) -> Table:
    """Readings of devices in the order in which they came; `device` counts names of a table beside."""
    columns = {"device": Column(np.dtype("<i4")), "time_s": Column(_F8)} | {name: Column(_F8) for name in signals}
    return Table(columns, chunk_rows, late=late)


def tensor_room(tensors: int) -> int:
    """How long the tensor axis may get in a run with so many parameters, modules, buffers; 0, without a limit, for 0.

    A parameter is recorded under its own name and those of its optimizer states (two for Adam, at most three in torch),
    a module under a name for each of its outputs: 1.4 to 2.5 times the count in the recipes. The index of chunks takes
    30 bytes a row for 64 of them.
    """
    return -(-(4 * tensors + 256) // TENSORS_IN_CHUNK) * TENSORS_IN_CHUNK if tensors else 0


def _tensor_table(late: bool = False) -> Table:
    """A table whose tensor axis grows, too, up to a limit that is known when the file is made.

    With one axis without a limit HDF5 keeps its chunks in an extensible array, whose parts stay where they are; with
    two it needs a B-tree, of which it writes some 8 KB anew at each flush under SWMR. A row is one chunk, written once;
    what is too small for that is not compressed and stays in its place.
    """
    return Table(
        {
            "step": Column(_I8, chunk_rows=1024),
            "stride": Column(np.dtype("<u4"), (0,), chunk_rows=32),  # k: one of k blocks was counted
            "stats": Column(np.dtype("<f4"), (0, len(TENSOR_STATS)), "deflate"),
            "exponents": Column(np.dtype("<u4"), (0, EXPONENT_BINS), "shuffle"),
        },
        chunk_rows=1,
        late=late,
    )


_STEP_TYPES = {"skipped": _U1, "samples": _I8}
_LATE_STEPS = {"backward_passes", "optimizer_steps", "cpu_s"}
_LATE_KINDS = {"buffer", "ema"}
_NAME, _DTYPE = text_type(200), text_type(24)

TABLES: dict[str, Table] = {
    "steps": Table(
        {"step": Column(_I8), "time_s": Column(_F8)}
        | {name: Column(_STEP_TYPES.get(name, _F8), late=name in _LATE_STEPS) for name in STEP_SIGNALS}
    ),
    "evaluation": Table(
        {
            "step": Column(_I8),
            "epoch": Column(_I8),
            "time_s": Column(_F8),
            "loss": Column(_F8),
            "accuracy": Column(_F8),
        },
        chunk_rows=256,
    ),
    "power": _readings(POWER_SIGNALS, 2048),
    "sensors": _one(text_type(128), 8),  # the names that `power/device` counts
    "power/state": _readings(STATE_SIGNALS, 256, late=True),
    "power/state/names": _one(text_type(128), 8, late=True),
    "host": Table({name: Column(_F8) for name in ("time_s", *HOST_SIGNALS)}, 256, late=True),
    "zeros": Table(  # of pruned runs only
        {"step": Column(_I8), "time_s": Column(_F8), "by_mask": Column(_F8), "by_rounding": Column(_F8)}, 64, late=True
    ),
    "ranks": Table(  # a row for each process of a run on several, in each step
        {"step": Column(_I8), "time_s": Column(_F8), "rank": Column(np.dtype("<i4"))}
        | {name: Column(_F8) for name in RANK_SIGNALS},
        late=True,
    ),
    "events": _one(EVENT_ROW, 64),
    "texts": _one(_U1, 4096),  # messages too long for their row
    "sentences": _one(_U1, 4096, late=True),  # keys and values of messages, a line of JSON each
    "tensors/names": _one(_NAME, 64),
    **{f"tensors/{kind}": _tensor_table(kind in _LATE_KINDS) for kind in TENSOR_KINDS},
    "tensors/dtypes": Table(  # a row for each kind and tensor, and another one when the dtype changes
        {"step": Column(_I8), "kind": Column(text_type(24)), "tensor": Column(_I8), "dtype": Column(_DTYPE)},
        chunk_rows=64,
        late=True,
    ),
    "model/modules": Table(
        {"name": Column(_NAME), "type": Column(text_type(160)), "forward_order": Column(_I8)},
        chunk_rows=64,
        late=True,
    ),
    "model/parameters": Table(
        {
            "name": Column(_NAME),
            "role": Column(text_type(12)),
            "dtype": Column(_DTYPE),
            "shape": Column(text_type(64)),  # such as 64x3x7x7, empty for a single number
            "requires_grad": Column(_U1),
            "updated": Column(_U1),
            "backward_order": Column(_I8),
        },
        chunk_rows=64,
        late=True,
    ),
}
