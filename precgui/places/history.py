"""The history of a run as columns: all that it has said, in a tenth of the bytes, and read without a loop over events.

Whoever attaches to a long run gets blocks of it first, and message by message only what came since the last block. The
process of the run writes the blocks beside its messages; an agent only copies them.
"""

from __future__ import annotations

import math
import struct
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precgui.events import Event, RunEnded
from precgui.places.jobs import JobFolder, SpooledFrames
from precgui.places.messages import REPLIES, HistoryTable, JobHistory, Unit
from precgui.process.frames import FrameError
from precgui.runs.file.event_tables import EVENT_TABLES, EventRows, EventTable, by_type
from precgui.runs.file.schema import TABLES
from precgui.safe_open import open_regular
from precgui.sentences import L_, Sentence

BLOCK_EVENTS = 512  # events, or messages, after which a block is written
_MOST_ORDER = 3
_MOST_TIME_S = 9e9  # that 64 bits hold in nanoseconds
_BLOCK = struct.Struct("<QQQ")  # number of its last message, then where it ends in `frames` and in `history`
_BY_PATH = {table.path: table for table in EVENT_TABLES}
_TABLE_OF = {table.event: table for table in EVENT_TABLES}

_Words = NDArray[np.int64]


# Columns


def history_of(job: str, first: int, number: int, events: Sequence[Event]) -> JobHistory:
    """The events of the messages `first` to `number`. Times are rounded to the nanosecond, all else is exact."""
    tables = []
    for kind, own in by_type(events).items():
        if (table := _TABLE_OF.get(kind)) is not None:
            by_device: defaultdict[str, list[Any]] = defaultdict(list)
            for event in own:
                by_device[event.device if table.names else ""].append(event)
            tables += [_packed(table, device, table.matrix(group)) for device, group in by_device.items()]
    others = tuple(event for event in events if type(event) not in _TABLE_OF)
    return JobHistory(job, first, number, tuple(tables), others)


def events_of(history: JobHistory) -> list[Any]:
    """Its events, those of tables as one `EventRows` for each table and device. Raises FrameError."""
    if any(isinstance(event, RunEnded) for event in history.events):
        raise FrameError(L_("a history holds the end of its run, which comes as a message of its own"))
    return [*history.events, *map(_unpacked, history.tables)]


def _packed(table: EventTable, device: str, matrix: NDArray[np.float64]) -> HistoryTable:
    units: list[Unit] = []
    orders, planes = [], []
    for name, values in zip(table.columns, matrix, strict=True):
        unit, words = _words(name, np.ascontiguousarray(values))
        order, words = _differences(words)
        units.append(unit)
        orders.append(order)
        planes.append(_planes(words))
    return HistoryTable(table.path, device, matrix.shape[1], tuple(units), tuple(orders), b"".join(planes))


def _words(name: str, values: NDArray[np.float64]) -> tuple[Unit, _Words]:
    """The first unit that keeps the values, and the values in it."""
    bits = values.view(np.int64)
    if bool(np.all(np.abs(values) < 2.0**53)):  # False for NaN
        whole = np.rint(values).astype(np.int64)
        if np.array_equal(whole.astype(np.float64).view(np.int64), bits):
            return "whole", whole
    if name.endswith("_s") and bool(np.all(np.abs(values) < _MOST_TIME_S)):
        return "ns", np.rint(values * 1e9).astype(np.int64)
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    if np.array_equal(single.astype(np.float64).view(np.int64), bits):
        return "single", single.view(np.int32).astype(np.int64)
    return "bits", bits


def _differences(words: _Words) -> tuple[int, _Words]:
    """The words, or their first, second or third differences: whichever are the shortest; and how often."""
    best = order = 0
    least, result = math.inf, words
    for order in range(_MOST_ORDER + 1):
        size = float(np.log2(np.abs(words.astype(np.float64)) + 1.0).sum())
        if size < least:
            least, best, result = size, order, words
        words = np.diff(words, prepend=np.int64(0))
    return best, result


def _planes(words: _Words) -> bytes:
    """Signs into the lowest bit, then all first bytes, all second bytes ...: zeros come together."""
    unsigned = (words << 1) ^ (words >> 63)
    return unsigned.astype("<i8").view(np.uint8).reshape(-1, 8).T.tobytes()


def _unpacked(packed: HistoryTable) -> EventRows:
    table = _BY_PATH.get(packed.table)
    if table is None:
        raise FrameError(Sentence("a history has the unknown table {table!r}", table=packed.table[:40]))
    columns = table.columns
    if not (len(packed.units) == len(packed.orders) == len(columns)) or packed.count < 1:
        raise FrameError(
            Sentence(
                "the table {table} of a history has not the columns that it should have",
                table=packed.table,
            )
        )
    if len(packed.planes) != 8 * packed.count * len(columns):
        raise FrameError(
            Sentence(
                "the table {table} of a history has not the size that its columns have",
                table=packed.table,
            )
        )
    if not all(0 <= order <= _MOST_ORDER for order in packed.orders):
        raise FrameError(
            Sentence(
                "the table {table} of a history has differences of an unknown order",
                table=packed.table,
            )
        )
    planes = np.frombuffer(packed.planes, np.uint8).reshape(len(columns), 8, packed.count)
    unsigned = np.ascontiguousarray(planes.transpose(0, 2, 1)).view("<u8")[..., 0].astype(np.uint64)
    words = (unsigned >> np.uint64(1)).view(np.int64) ^ -(unsigned & np.uint64(1)).view(np.int64)
    with np.errstate(all="ignore"):  # whatever the bits are
        rows = np.stack([_values(*column) for column in zip(packed.units, packed.orders, words, strict=True)])
        for name, row in zip(columns, rows, strict=True):
            if TABLES[table.path].columns[name].dtype.kind in "iu" and not np.array_equal(row, np.rint(row)):
                raise FrameError(Sentence("{name} of a history is no whole number", name=name))
    return EventRows(table, rows, packed.device)


def _values(unit: Unit, order: int, words: _Words) -> NDArray[np.float64]:
    for _ in range(order):
        words = np.cumsum(words)
    if unit == "whole":
        return words.astype(np.float64)
    if unit == "ns":
        return words / 1e9
    if unit == "single":
        return words.astype(np.int32).view(np.float32).astype(np.float64)
    return words.view(np.float64)


# Blocks in the folder of a job


@dataclass(frozen=True, slots=True)
class HistoryBlock:
    """Holds the messages up to `number`; ends at these bytes of `frames` and `history`."""

    number: int = 0
    frames_end: int = 0
    history_end: int = 0


def blocks_of(folder: JobFolder) -> list[HistoryBlock]:
    """The blocks that are whole, in their order."""
    try:
        with open_regular(folder.blocks) as file:
            data = file.read()
    except OSError:
        return []
    return [HistoryBlock(*numbers) for numbers in _BLOCK.iter_unpack(data[: len(data) // _BLOCK.size * _BLOCK.size])]


class HistoryWriter:
    """Writes blocks of a job whose messages are told by `add`. Where the disk takes no block there is none any more."""

    def __init__(self, folder: JobFolder, number: int) -> None:
        """`number` is that of the last message of the job; the blocks of an earlier process are not gone on with."""
        self._folder, self._last = folder, HistoryBlock(number)
        self._waiting: list[Event] = []
        self._is_open = not number and not folder.blocks.exists()

    def add(self, number: int, events: Sequence[Event], frames_end: int) -> None:
        """The message `number` has been appended to `frames`, which now has so many bytes."""
        if not self._is_open or (events and isinstance(events[-1], RunEnded)):
            return
        self._waiting += events
        if max(len(self._waiting), number - self._last.number) >= BLOCK_EVENTS:
            try:
                self._write(number, frames_end)
            except (OSError, FrameError):
                self._is_open = False
            self._waiting = []

    def _write(self, number: int, frames_end: int) -> None:
        frame = REPLIES.encode(history_of(self._folder.job, self._last.number + 1, number, self._waiting))
        block = HistoryBlock(number, frames_end, self._last.history_end + len(frame))
        for path, data in (
            (self._folder.history, frame),
            (self._folder.blocks, _BLOCK.pack(block.number, block.frames_end, block.history_end)),
        ):
            with path.open("ab") as file:
                file.write(data)
        self._last = block


class JobRecord:
    """All messages of a job as frames: blocks of its history first, then each as it is appended."""

    def __init__(self, folder: JobFolder, after: int) -> None:
        blocks = [HistoryBlock(), *blocks_of(folder)]
        place = bisect_right([block.number for block in blocks], after) - 1  # the last block that was read as a whole
        frames, end = folder.frames, blocks[-1]
        self._parts: list[Iterator[bytes]] = []
        if after > blocks[place].number and place + 1 < len(blocks):  # the next one was read in part
            first, last = blocks[place : place + 2]
            spool = SpooledFrames(frames, after, first.frames_end, first.number)
            self._parts.append(islice(spool.new(), last.number - after))
            place += 1
        history = SpooledFrames(folder.history, 0, blocks[place].history_end)
        self._parts.append(islice(history.new(), len(blocks) - 1 - place))
        self._tail = SpooledFrames(frames, after, end.frames_end, end.number)

    @property
    def number(self) -> int:
        """Of the last message so far."""
        return self._tail.number

    @property
    def last(self) -> bytes:
        """The last frame that was given and is no block; empty where there was none."""
        return self._tail.last

    def new(self) -> Iterator[bytes]:
        """The frames that came since the last call. Raises FrameError, OSError."""
        while self._parts:
            yield from self._parts.pop(0)
        yield from self._tail.new()
