"""Events into columns: what the writer stores and a live run collects, a batch at a time."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from precgui.events import DeviceRead, Evaluated, HostRead, Incident, PowerRead, RankStep, StepDone, ZerosCounted
from precgui.runs.file import json_text
from precgui.runs.file.schema import EVENT_ROW, TABLES
from precgui.runs.file.table_file import Columns
from precgui.runs.signals import HOST_SIGNALS, POWER_SIGNALS, STATE_SIGNALS

STEP_COLUMNS = tuple(TABLES["steps"].columns)
EVALUATION_COLUMNS = tuple(TABLES["evaluation"].columns)
POWER_COLUMNS = ("time_s", *POWER_SIGNALS)
STATE_COLUMNS = ("time_s", *STATE_SIGNALS)
HOST_COLUMNS = ("time_s", *HOST_SIGNALS)
ZERO_COLUMNS = tuple(TABLES["zeros"].columns)
RANK_COLUMNS = tuple(TABLES["ranks"].columns)

_step_row = attrgetter(*STEP_COLUMNS)
_evaluation_row = attrgetter(*EVALUATION_COLUMNS)
_power_row = attrgetter(*POWER_COLUMNS)
_state_row = attrgetter(*STATE_COLUMNS)
_host_row = attrgetter(*HOST_COLUMNS)
_zero_row = attrgetter(*ZERO_COLUMNS)

_rank_row = attrgetter(
    "step", "time_s", "rank", "step_s", "wait_s", "cpu_s", "memory_bytes", "sent_bytes", "interface_bytes",
    "gradient_error",
)  # fmt: skip

_LONGEST_TEXT = 1 << 16


def step_matrix(steps: Sequence[StepDone]) -> NDArray[np.float64]:
    """One row per column of STEP_COLUMNS, shape (columns, steps); exact for steps and samples below 2^53."""
    return np.array([_step_row(step) for step in steps], np.float64).reshape(-1, len(STEP_COLUMNS)).T


def evaluation_matrix(evaluations: Sequence[Evaluated]) -> NDArray[np.float64]:
    """One row per column of EVALUATION_COLUMNS, shape (columns, evaluations)."""
    rows = [_evaluation_row(evaluation) for evaluation in evaluations]
    return np.array(rows, np.float64).reshape(-1, len(EVALUATION_COLUMNS)).T


def power_matrix(readings: Sequence[PowerRead]) -> NDArray[np.float64]:
    """One row per column of POWER_COLUMNS, shape (columns, readings)."""
    return np.array([_power_row(reading) for reading in readings], np.float64).reshape(-1, len(POWER_COLUMNS)).T


def state_matrix(readings: Sequence[DeviceRead]) -> NDArray[np.float64]:
    """One row per column of STATE_COLUMNS, shape (columns, readings)."""
    return np.array([_state_row(reading) for reading in readings], np.float64).reshape(-1, len(STATE_COLUMNS)).T


def host_matrix(readings: Sequence[HostRead]) -> NDArray[np.float64]:
    """One row per column of HOST_COLUMNS, shape (columns, readings)."""
    return np.array([_host_row(reading) for reading in readings], np.float64).reshape(-1, len(HOST_COLUMNS)).T


def zero_matrix(counts: Sequence[ZerosCounted]) -> NDArray[np.float64]:
    """One row per column of ZERO_COLUMNS, shape (columns, counts)."""
    return np.array([_zero_row(count) for count in counts], np.float64).reshape(-1, len(ZERO_COLUMNS)).T


def rank_matrix(steps: Sequence[RankStep]) -> NDArray[np.float64]:
    """One row per column of RANK_COLUMNS, shape (columns, steps x ranks)."""
    return np.array([_rank_row(step) for step in steps], np.float64).reshape(-1, len(RANK_COLUMNS)).T


def rank_columns(steps: Sequence[RankStep]) -> Columns:
    return _typed("ranks", RANK_COLUMNS, rank_matrix(steps))


def step_columns(steps: Sequence[StepDone]) -> Columns:
    return _typed("steps", STEP_COLUMNS, step_matrix(steps))


def evaluation_columns(evaluations: Sequence[Evaluated]) -> Columns:
    return _typed("evaluation", EVALUATION_COLUMNS, evaluation_matrix(evaluations))


def power_columns(readings: Sequence[PowerRead]) -> Columns:
    """All columns of `power` but `device`."""
    return _typed("power", POWER_COLUMNS, power_matrix(readings))


def host_columns(readings: Sequence[HostRead]) -> Columns:
    return _typed("host", HOST_COLUMNS, host_matrix(readings))


def zero_columns(counts: Sequence[ZerosCounted]) -> Columns:
    return _typed("zeros", ZERO_COLUMNS, zero_matrix(counts))


def state_columns(readings: Sequence[DeviceRead]) -> Columns:
    """All columns of `power/state` but `device`."""
    return _typed("power/state", STATE_COLUMNS, state_matrix(readings))


def _typed(table: str, names: Sequence[str], matrix: NDArray[np.float64]) -> Columns:
    """The rows of a matrix as columns of a table, each in the type of the file."""
    columns = TABLES[table].columns
    return {name: row.astype(columns[name].dtype) for name, row in zip(names, matrix, strict=True)}


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
