"""A live run: the events so far, as columns that plots read without copying."""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precgui.config.tree import RunConfig
from precgui.events import (
    EXPONENT_BINS,
    TENSOR_KINDS,
    TENSOR_STATS,
    Evaluated,
    Event,
    Facts,
    Incident,
    ModelDescribed,
    RunEnded,
    RunStarted,
    Status,
    StepDone,
    TensorStats,
)
from precgui.runs import signals
from precgui.runs.file.event_tables import EVENT_TABLES, EventRows, EventTable, by_type
from precgui.runs.file.reader import SavedRun
from precgui.runs.growable import GrowableArray, Values
from precgui.runs.recorded_model import NOT_YET, RecordedModel
from precgui.runs.recorded_precision import with_recorded_precision
from precgui.runs.signals import Axis, Series
from precgui.runs.tensors.overview import Overview
from precgui.runs.tensors.record import Names, TensorHistory, tensor_rows
from precgui.runs.tensors.weight_norm import WeightNorms

_GrowingTable = dict[str, GrowableArray]

MOST_BYTES = 48 << 20  # of each kind
MOST_LOST_S = 5.0  # of a killed run, for which rows of tensors are not kept in memory because its file lacks them


class LiveTensors:
    """The rows of one kind. When they fill MOST_BYTES every second one is forgotten, but for the latest.

    The file keeps all, and so does `overview`, added up; `thinned` says which share of the rows is held here as they
    were: 1, 1/2, 1/4 ...
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._rows: list[tuple[int, dict[str, NDArray[Any]]]] = []  # each with its number among all that came
        self._bytes = 0
        self._take = 1
        self._came = 0
        self.overview = Overview()
        self.dtypes: dict[str, str] = {}

    @property
    def thinned(self) -> float:
        return 1 / self._take

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._names.places)

    def __len__(self) -> int:
        return len(self._rows)

    def snapshot(self) -> LiveTensors:
        """The rows so far; what comes later does not change it. Has no overview of its own."""
        copied = copy.copy(self)
        copied._names, copied._rows, copied.dtypes = self._names.snapshot(), list(self._rows), dict(self.dtypes)
        return copied

    def extend(self, events: Sequence[TensorStats]) -> None:
        for event in events:
            self._came += 1
            self.dtypes.update(zip(event.names, event.dtypes, strict=False))
            row = tensor_rows([event], self._names)
            self.overview.add(row["step"], row["stats"], row["exponents"], row["stride"])
            if self._came % self._take == 0:
                self._rows.append((self._came, row))
                self._bytes += sum(column.nbytes for column in row.values())
        if self._bytes > MOST_BYTES and len(self._rows) > 2:
            self._take *= 2
            self._rows = [(number, row) for number, row in self._rows if number % self._take == 0]
            self._bytes = sum(column.nbytes for _, row in self._rows for column in row.values())

    def read(self, column: str, start: int, stop: int) -> NDArray[Any]:
        """Rows of a column, as wide as the widest of them."""
        return self.pick(column, range(len(self._rows))[start:stop])

    def pick(self, column: str, places: Sequence[int]) -> NDArray[Any]:
        rows = [self._rows[place][1][column] for place in places]
        if column == "step":
            return np.concatenate(rows) if rows else np.empty(0, np.int64)
        inner = {"stride": (), "stats": (len(TENSOR_STATS),), "exponents": (EXPONENT_BINS,)}[column]
        tensors = max((row.shape[1] for row in rows), default=0)
        whole = np.zeros((len(rows), tensors, *inner), rows[0].dtype if rows else np.uint32)
        for place, row in enumerate(rows):
            whole[place, : row.shape[1]] = row[0]
        return whole


def records(tables: dict[str, LiveTensors]) -> dict[str, TensorHistory]:
    """A record for each kind of which something has come."""
    return {kind: TensorHistory(kind, table, len(table)) for kind, table in tables.items() if len(table)}


_RESERVED_STEPS = 4_000_000


class LiveRun:
    """A run fed by `extend`, at 96 bytes a step, until it has ended and `hand_over` lets go of its rows.

    Not thread-safe: belongs to the thread that shows it.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        run_id: str,
        created: str,
        machine: Mapping[str, Any],
        environment: Mapping[str, Any],
        path: Path | None = None,
    ) -> None:
        self.config = config
        self.run_id = run_id
        self.created = created
        self.path = path
        self.title = config.display_title
        self.status: Status = "running"
        self.machine = machine
        self.environment = environment
        self.started: RunStarted | None = None
        self.ended: RunEnded | None = None
        self._came_at_s = time.monotonic()
        self._tables = {table.path: _empty(table) for table in EVENT_TABLES if not table.names}
        self._devices: dict[str, dict[str, _GrowingTable]] = {t.path: {} for t in EVENT_TABLES if t.names}
        self._incidents: list[Incident] = []
        self._of_kind: dict[str, list[Incident]] = {}
        self._model = RecordedModel(unavailable=NOT_YET)
        names = Names()
        self._tensors = {kind: LiveTensors(names) for kind in TENSOR_KINDS}
        self._weight_norms = WeightNorms()
        self._computed = signals.KeptRows()
        self._saved: SavedRun | None = None  # holds all rows once the run has ended
        self._saved_tensors: SavedRun | None = None  # the same file, or that of a killed run, for tensors alone

    def hand_over(self, saved: SavedRun) -> bool:
        """Read everything from the file from now on and free the rows in memory.

        Of a killed run, whose file lacks its last moments, the tensors alone: they take most of the memory.
        Returns False when the file lacks more, and the run stays in memory.
        """
        same = (saved.run_id, saved.status) == (self.run_id, self.status)
        if self.ended is None or not same or saved.notes or not self._lacks_little(saved):
            return False
        self._saved_tensors = saved
        self._tensors.clear()
        if saved.steps == self.steps:
            self._saved = saved
            self._tables.clear()
            self._devices.clear()
            self._incidents.clear()
            self._of_kind.clear()
            self._computed = signals.KeptRows()
        return True

    def _lacks_little(self, saved: SavedRun) -> bool:
        """Whether the file has all steps, or all but those of the last MOST_LOST_S seconds."""
        if saved.steps >= self.steps:
            return saved.steps == self.steps
        times_s = self.column("steps", "time_s")
        return bool(times_s[-1] - times_s[max(saved.steps - 1, 0)] <= MOST_LOST_S)

    @property
    def is_in_file(self) -> bool:
        """Whether tensors are read from the file, since the run has ended."""
        return self._saved_tensors is not None

    def snapshot(self) -> LiveRun:
        """The run as it is now, for another thread: shares the rows, of which none changes, and nothing else."""
        copied = copy.copy(self)
        copied._tables = {name: _copied(columns) for name, columns in self._tables.items()}
        copied._devices = {
            path: {device: _copied(columns) for device, columns in devices.items()}
            for path, devices in self._devices.items()
        }
        copied._incidents = list(self._incidents)
        copied._of_kind = {kind: list(incidents) for kind, incidents in self._of_kind.items()}
        copied._weight_norms = self._weight_norms.snapshot()
        copied._computed = signals.KeptRows()
        copied._tensors = {kind: table.snapshot() for kind, table in self._tensors.items()}
        return copied

    @property
    def silent_s(self) -> float:
        """Seconds since the last step or validation came."""
        return time.monotonic() - self._came_at_s

    @property
    def steps_in_memory(self) -> int:
        """Number of steps held in memory: 0 once all is read from the file."""
        return len(self._tables["steps"]["step"]) if self._tables else 0

    @property
    def total_steps(self) -> int:
        return self.started.total_steps if self.started else 0

    @property
    def steps_per_epoch(self) -> int:
        return self.started.steps_per_epoch if self.started else 0

    @property
    def device(self) -> str:
        """The device that the run uses; empty before its start."""
        return self.started.device if self.started else ""

    @property
    def steps(self) -> int:
        return self._saved.steps if self._saved else len(self._tables["steps"]["step"])

    @property
    def message(self) -> str:
        """The last words of a run that has ended."""
        return self.ended.message if self.ended else ""

    @property
    def details(self) -> str:
        """The traceback of a failure, or the last words of a process."""
        return self.ended.details if self.ended else ""

    def extend(self, events: Sequence[Event | EventRows]) -> None:
        """Take in a batch of events, oldest first."""
        of = by_type(events)
        if of[StepDone] or of[Evaluated] or of[EventRows]:
            self._came_at_s = time.monotonic()
        for started in of[RunStarted]:
            self._start(started)
        for facts in of[Facts]:
            self.environment = {**self.environment, **facts.values}
            self.config = with_recorded_precision(self.config, dict(facts.values))
        for described in of[ModelDescribed]:
            self._model = RecordedModel(described.modules, described.parameters)
        for table in EVENT_TABLES:
            if own := of[table.event]:
                self._add_rows(table, own)
        for rows in of[EventRows]:
            columns = self._columns_of(rows.table, rows.device)
            for name, row in zip(rows.table.columns, rows.rows, strict=True):
                columns[name].append(row)
        self._incidents += of[Incident]
        for incident in of[Incident]:
            self._of_kind.setdefault(incident.kind, []).append(incident)
        self._weight_norms.extend(event for event in of[TensorStats] if event.kind == "weight")
        for kind, history in self._tensors.items():
            history.extend([event for event in of[TensorStats] if event.kind == kind])
        for ended in of[RunEnded]:
            self.ended, self.status = ended, ended.status
            for column in self._tables.get("steps", {}).values():
                column.trim()

    def _add_rows(self, table: EventTable, events: Sequence[Any]) -> None:
        if not table.names:
            _append(self._tables[table.path], table, events)
            return
        of: defaultdict[str, list[Any]] = defaultdict(list)
        for event in events:
            of[event.device].append(event)
        for device, own in of.items():
            _append(self._columns_of(table, device), table, own)

    def _columns_of(self, table: EventTable, device: str) -> _GrowingTable:
        if not table.names:
            return self._tables[table.path]
        return self._devices[table.path].setdefault(device, _empty(table))

    def series(self, name: str, over: Axis = "step") -> Series:
        if self._saved:
            return self._saved.series(name, over)
        return signals.series(self, name, over, self._computed)

    def column(self, table: str, name: str) -> Values:
        """All rows so far of a column of `runs.schema.TABLES`, shape (rows,), not copied."""
        return self._saved.column(table, name) if self._saved else self._tables[table][name].view

    def power_devices(self) -> list[str]:
        return self._saved.power_devices() if self._saved else list(self._devices["power"])

    def power_column(self, device: str, name: str) -> Values:
        """The readings of one device, shape (readings,), not copied."""
        return self._saved.power_column(device, name) if self._saved else self._devices["power"][device][name].view

    def state_devices(self) -> list[str]:
        return self._saved.state_devices() if self._saved else list(self._devices["power/state"])

    def state_column(self, device: str, name: str) -> Values:
        """The readings of one device, shape (readings,), not copied."""
        if self._saved:
            return self._saved.state_column(device, name)
        return self._devices["power/state"][device][name].view

    def weight_norms(self) -> Series:
        return self._saved.weight_norms() if self._saved else self._weight_norms.series()

    def events(self, kind: str | None = None, since: int = 0) -> list[Incident]:
        if self._saved:
            return self._saved.events(kind, since)
        return (self._incidents if kind is None else self._of_kind.get(kind, []))[since:]

    def model(self) -> RecordedModel:
        return self._model

    def tensors(self) -> dict[str, TensorHistory]:
        """Per kind of tensor what has come so far; of a long run, each second row, or fourth ... (see LiveTensors)."""
        return self._saved_tensors.tensors() if self._saved_tensors else records(self._tensors)

    def _start(self, started: RunStarted) -> None:
        self.started = started
        self.environment = {**self.environment, **started.engine}
        for column in self._tables["steps"].values():
            column.reserve(min(started.total_steps, _RESERVED_STEPS))


def _empty(table: EventTable) -> _GrowingTable:
    return {name: GrowableArray() for name in table.columns}


def _copied(columns: _GrowingTable) -> _GrowingTable:
    return {name: copy.copy(column) for name, column in columns.items()}


def _append(columns: _GrowingTable, table: EventTable, events: Sequence[Any]) -> None:
    for name, row in zip(table.columns, table.matrix(events), strict=True):
        columns[name].append(row)
