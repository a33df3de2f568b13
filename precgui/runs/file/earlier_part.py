"""The part of a run file before a break, with which the file goes on: up to the step of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precgui.events import Event
from precgui.runs.errors import RunFileError
from precgui.runs.file.contents import RunFileView, decoded
from precgui.runs.file.event_tables import EVENT_TABLES
from precgui.runs.file.reader import SavedRun
from precgui.runs.file.table_file import Columns
from precgui.sentences import L_, Sentence, filled

_BEFORE_STEP = ("evaluation",)  # what follows a step, so that it is made again after the break


@dataclass(frozen=True)
class EarlierPart:
    """The rows of a run that has ended up to `step` and `time_s`, seconds since its start."""

    path: Path
    run: SavedRun
    view: RunFileView
    step: int
    time_s: float
    started: dict[str, Any]  # what the run said of itself when it started
    _state: tuple[int, ...]

    @classmethod
    def open(cls, path: Path, step: int, time_s: float) -> EarlierPart:
        """Close it with `close`. Raises RunFileError for a file that is being written, or does not reach the step."""
        state = _state_of(path)
        view = RunFileView.open(path)
        try:
            run = SavedRun(path, view)
            if run.status == "running":
                raise RunFileError(Sentence("{file} is still being written; stop that run first.", file=path))
            if run.steps < step:
                text = L_("{file} holds {steps} steps, its checkpoint is of step {step}; run it again.")
                raise RunFileError(filled(text, file=path, steps=run.steps, step=step))
        except RunFileError:
            view.file.close()
            raise
        return cls(path, run, view, step, time_s, view.document("engine"), state)

    def numbered(self, table: str) -> dict[str, int]:
        """The names of a table, each with its place."""
        names = self.view.read(table, "", 0, self.view.rows(table))
        return {decoded(name): place for place, name in enumerate(names)}

    def keeps(self, table: str, columns: Columns) -> NDArray[np.bool_] | None:
        """Which rows of a table are from before the break; None for all."""
        if table == "events":
            rows = columns[""]
            return (rows["step"] <= self.step) & ~(rows["time_s"] > self.time_s)
        if "step" in columns and table != "model/parameters":
            last = self.step - (table in _BEFORE_STEP)
            return columns["step"] <= last
        return ~(columns["time_s"] > self.time_s) if "time_s" in columns else None

    def energy_j(self) -> dict[str, float]:
        """The joules that each sensor with a counter had counted."""
        counted = {}
        for device in self.run.power_devices():
            times_s, energy_j = (self.run.power_column(device, name) for name in ("time_s", "energy_j"))
            known = energy_j[np.isfinite(energy_j) & (times_s <= self.time_s)]
            if len(known):
                counted[device] = float(known[-1])
        return counted

    def events(self) -> Iterator[Event]:
        """Steps, validations, readings and incidents again, for those who follow the run; tensors stay in the file."""
        for table in EVENT_TABLES:
            columns = {name: self.view.read(table.path, name, 0, self.view.rows(table.path)) for name in table.columns}
            if table.names:
                columns["device"] = self.view.read(table.path, "device", 0, self.view.rows(table.path))
            kept = self.keeps(table.path, columns)
            names = list(self.numbered(table.names)) if table.names else []
            for place in np.flatnonzero(kept) if kept is not None else ():
                row = {name: values[place].item() for name, values in columns.items()}
                if table.names:
                    row["device"] = names[row["device"]]
                yield table.event_of(row)
        kept_steps = (event for event in self.run.events() if event.step <= self.step)
        yield from (event for event in kept_steps if not event.time_s > self.time_s)

    def is_unchanged(self) -> bool:
        """Whether nobody has written to the file since it was opened."""
        return bool(self._state) and _state_of(self.path) == self._state

    def close(self) -> None:
        self.run.close()


def _state_of(path: Path) -> tuple[int, ...]:
    try:
        state = path.stat()
    except OSError:
        return ()
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns
