"""Which events of a run fill which table of its file, one row each; the writer and a live run loop over them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precgui.events import (
    DeviceRead,
    Evaluated,
    Event,
    HostRead,
    Incident,
    PowerRead,
    RankStep,
    StepDone,
    ZerosCounted,
)
from precgui.runs.file import json_text
from precgui.runs.file.schema import EVENT_ROW, TABLES
from precgui.runs.file.table_file import Columns

_LONGEST_TEXT = 1 << 16


@dataclass(frozen=True)
class EventTable:
    """`path` of a table, and `names`, that of the table which numbers its devices, '' where it has none."""

    event: type
    path: str
    names: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns of the file but `device`. Each is the field of that name, or of the name without `rank_`."""
        return tuple(name for name in TABLES[self.path].columns if name != "device")

    def matrix(self, events: Sequence[Any]) -> NDArray[np.float64]:
        """One row per column, shape (columns, events); exact for whole numbers below 2^53."""
        known = {field.name for field in fields(self.event)}
        names = [name if name in known else name.removeprefix("rank_") for name in self.columns]
        row = attrgetter(*names)
        return np.array([row(event) for event in events], np.float64).reshape(-1, len(names)).T

    def event_of(self, row: Mapping[str, Any]) -> Any:
        """The event of a row, whose columns hold plain numbers."""
        kinds = {
            field.name: {"int": int, "bool": bool}.get(str(field.type), lambda value: value)
            for field in fields(self.event)
        }
        values = {name if name in kinds else name.removeprefix("rank_"): value for name, value in row.items()}
        return self.event(**{name: kinds[name](value) for name, value in values.items()})

    def typed(self, events: Sequence[Any]) -> Columns:
        """The events as columns in the types of the file."""
        types = TABLES[self.path].columns
        rows = zip(self.columns, self.matrix(events), strict=True)
        return {name: row.astype(types[name].dtype) for name, row in rows}


@dataclass(frozen=True, slots=True)
class EventRows:
    """Many events of one table, of one device where it has any: `rows` as its `matrix` has them, (columns, events).

    Stands for these events in the batches of a run at a place.
    """

    table: EventTable
    rows: NDArray[np.float64]
    device: str = ""

    def last(self) -> Any:
        """The last of the events."""
        row = dict(zip(self.table.columns, self.rows[:, -1].tolist(), strict=True))
        return self.table.event_of({"device": self.device, **row} if self.table.names else row)


EVENT_TABLES = (
    EventTable(StepDone, "steps"),
    EventTable(Evaluated, "evaluation"),
    EventTable(HostRead, "host"),
    EventTable(ZerosCounted, "zeros"),
    EventTable(RankStep, "ranks"),
    EventTable(PowerRead, "power", "sensors"),
    EventTable(DeviceRead, "power/state", "power/state/names"),
)


def by_type(events: Iterable[Event | EventRows]) -> defaultdict[type, list[Any]]:
    """The events of a batch by their class, each list in order."""
    of: defaultdict[type, list[Any]] = defaultdict(list)
    for event in events:
        of[type(event)].append(event)
    return of


def event_rows(incidents: Sequence[Incident], texts_start: int) -> tuple[Columns, Columns]:
    """Rows of `events`, and the bytes of `texts` for messages longer than their field, from `texts_start` on."""
    rows = np.zeros(len(incidents), EVENT_ROW)
    long_texts = bytearray()
    for row, incident in zip(rows, incidents, strict=True):
        message = json_text.cut_middle(incident.message, _LONGEST_TEXT).encode(errors="replace")
        if len(message) > EVENT_ROW["message"].itemsize:
            row["text_start"], row["text_length"] = texts_start + len(long_texts), len(message)
            long_texts += message
        row["time_s"], row["step"] = incident.time_s, incident.step
        for field in ("kind", "severity", "module", "message"):
            row[field] = json_text.cut(getattr(incident, field), EVENT_ROW[field].itemsize).encode()
    return {"": rows}, {"": np.frombuffer(bytes(long_texts), np.uint8)}
