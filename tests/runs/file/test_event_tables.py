"""Events as rows: the file and a live run hold the same, each in the column of its field."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precgui.runs.file.event_tables import EVENT_TABLES, EventTable
from precgui.runs.file.reader import open_run
from precgui.runs.file.schema import TABLES
from tests.runs.synthetic import live_run, open_writer


def _events(table: EventTable, count: int) -> list[Any]:
    """Events whose fields hold numbers that differ, from two devices in turn."""
    devices = {"device": "ab"}
    kinds = {field.name: str(field.type) for field in fields(table.event)}
    return [
        table.event(
            **{
                name: devices[name][row % 2] if name in devices else bool(row % 2) if kind == "bool" else 100 * row + at
                for at, (name, kind) in enumerate(kinds.items())
            }
        )
        for row in range(count)
    ]


@pytest.mark.parametrize("table", EVENT_TABLES, ids=lambda table: table.path)
def test_that_the_file_and_a_live_run_hold_each_field_in_its_column(tmp_path: Path, table: EventTable) -> None:
    events = _events(table, 5)
    with open_writer(tmp_path / "run.h5") as writer:
        for event in events:
            writer(event)
    saved, live = open_run(tmp_path / "run.h5"), live_run(events)
    known = {field.name for field in fields(table.event)}
    for name in table.columns:
        field = name if name in known else name.removeprefix("rank_")
        if not table.names:
            expected = [float(getattr(event, field)) for event in events]
            assert saved.column(table.path, name).tolist() == live.column(table.path, name).tolist() == expected
            continue
        for device in "ab":
            expected = [float(getattr(event, field)) for event in events if event.device == device]
            of_power = table.path == "power"
            read = [run.power_column if of_power else run.state_column for run in (saved, live)]
            assert [column(device, name).tolist() for column in read] == [expected, expected]
    saved.close()


def test_that_a_row_has_the_types_of_the_file() -> None:
    for table in EVENT_TABLES:
        typed = table.typed(_events(table, 3))
        assert {name: column.dtype for name, column in typed.items()} == {
            name: TABLES[table.path].columns[name].dtype for name in table.columns
        }
        assert table.matrix([]).shape == (len(table.columns), 0)
        assert np.array_equal(table.matrix(_events(table, 3))[0], table.typed(_events(table, 3))[table.columns[0]])
