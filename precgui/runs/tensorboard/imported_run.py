"""A run that another tool has logged: its scalars as a Run. Signals that were not logged are NaN."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precgui.config.tree import RunConfig
from precgui.events import Incident, Status
from precgui.runs import signals
from precgui.runs.file.schema import TABLES
from precgui.runs.recorded_model import RecordedModel
from precgui.runs.signals import Axis, Series
from precgui.runs.tensors.record import TensorHistory
from precgui.sentences import L_, Sentence

UNKNOWN_PRECISION = "unknown"


@dataclass(frozen=True)
class Scalars:
    """One series of another tool: shape (points,), steps rising; `wall_time_s` in seconds since 1970."""

    step: NDArray[np.int64]
    wall_time_s: NDArray[np.float64]
    value: NDArray[np.float64]

    def at(self, steps: NDArray[np.int64]) -> NDArray[np.float64]:
        """The value last logged at each of the steps, NaN before the first."""
        place = np.searchsorted(self.step, steps, "right") - 1
        return np.where(place >= 0, self.value[place], np.nan) if len(self.step) else np.full(len(steps), np.nan)


@dataclass(frozen=True, eq=False)
class ImportedRun:
    """Scalars of one training. `chosen` maps signals of `runs.run` to series, power not among them.

    Times count from `begin_s`, in seconds since 1970. The loss sets the steps; `step_s` is the time between two points
    over the steps between them.
    """

    path: Path
    title: str
    config: RunConfig
    run_id: str
    begin_s: float
    created: str
    chosen: Mapping[str, Scalars]
    environment: Mapping[str, Any]
    notes: list[str]
    tags: Mapping[str, str] = field(default_factory=dict)  # what the series are called there
    guesses: str = ""  # the note on how they were distinguished
    status: Status = "imported"  # event files do not say whether or how the training ended
    machine: Mapping[str, Any] = field(default_factory=dict)
    total_steps: int = 0
    steps_per_epoch: int = 0
    device: str = ""
    message: str = ""
    details: str = ""
    _tables: dict[str, dict[str, NDArray[np.float64]]] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        return len(self.column("steps", "step"))

    def series(self, name: str, over: Axis = "step") -> Series:
        return signals.series(self, name, over)

    def column(self, table: str, name: str) -> NDArray[np.float64]:
        """A column of `runs.schema.TABLES`, made of what was logged."""
        if table not in ("steps", "evaluation"):
            return np.empty(0)
        if table not in self._tables:
            created = self._steps_table() if table == "steps" else self._evaluation_table()
            self._tables[table] = created
        rows = len(self._tables[table]["step"])
        return self._tables[table].get(name, np.full(rows, np.nan))

    def power_devices(self) -> list[str]:
        return []

    def power_column(self, device: str, name: str) -> NDArray[np.float64]:
        raise KeyError(device)

    def state_devices(self) -> list[str]:
        return []

    def state_column(self, device: str, name: str) -> NDArray[np.float64]:
        raise KeyError(device)

    def weight_norms(self) -> Series:
        return np.empty(0), np.empty(0)

    def events(self, kind: str | None = None, since: int = 0) -> list[Incident]:
        """Losses that are not finite; scalars hold no other event."""
        if kind not in (None, "nonfinite_loss"):
            return []
        loss, time_s = (self.column("steps", name) for name in ("loss", "time_s"))
        return [
            Incident(float(time_s[row]), int(self.column("steps", "step")[row]), "nonfinite_loss", "error",
                     Sentence("the loss is {loss}", loss=loss[row]))
            for row in np.flatnonzero(~np.isfinite(loss))[since:].tolist()
        ]  # fmt: skip

    def model(self) -> RecordedModel:
        return RecordedModel(unavailable=L_("event files hold scalars only"))

    def tensors(self) -> dict[str, TensorHistory]:
        return {}

    def close(self) -> None:
        """Do nothing: the file is not held open."""

    def __enter__(self) -> ImportedRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _steps_table(self) -> dict[str, NDArray[np.float64]]:
        loss = self.chosen.get("loss")
        if loss is None:
            return {"step": np.empty(0)}
        table = {name: self.chosen[name].at(loss.step) for name in TABLES["steps"].columns if name in self.chosen}
        time_s = loss.wall_time_s - self.begin_s
        with np.errstate(all="ignore"):
            between = np.diff(time_s, prepend=np.nan) / np.diff(loss.step.astype(np.float64), prepend=np.nan)
        return {"step_s": between} | table | {"step": loss.step.astype(np.float64), "time_s": time_s}

    def _evaluation_table(self) -> dict[str, NDArray[np.float64]]:
        own = [self.chosen[name] for name in ("val_loss", "val_accuracy") if name in self.chosen]
        if not own:
            return {"step": np.empty(0)}
        steps = np.unique(np.concatenate([each.step for each in own]))
        first = own[0]
        times = np.interp(steps, first.step, first.wall_time_s) - self.begin_s
        columns = {name: self._logged(f"val_{name}", steps) for name in ("loss", "accuracy")}
        return columns | {"step": steps.astype(np.float64), "time_s": times}

    def _logged(self, name: str, steps: NDArray[np.int64]) -> NDArray[np.float64]:
        """Exactly what was logged at these steps, NaN at the others."""
        if name not in self.chosen:
            return np.full(len(steps), np.nan)
        own = self.chosen[name]
        return np.where(np.isin(steps, own.step), own.at(steps), np.nan)
