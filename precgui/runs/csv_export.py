"""Raw values of a run out to CSV: one file per table, nothing rounded, NaN and Inf kept as such."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, astuple, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precgui.events import HOST_SIGNALS, POWER_SIGNALS, RANK_SIGNALS, STATE_SIGNALS, TENSOR_STATS, Incident
from precgui.runs.csv_cells import write_table
from precgui.runs.errors import RunFileError
from precgui.runs.file.json_text import plain
from precgui.runs.file.reader import SavedRun
from precgui.runs.file.schema import TABLES
from precgui.runs.known_settings import known_config
from precgui.runs.tensors.record import TensorHistory
from precgui.sentences import Sentence

_WHOLE = {"step", "epoch", "skipped", "samples"}
_ROWS_AT_ONCE = 64


def export_csv(run: SavedRun, folder: Path) -> list[Path]:
    """Write steps, evaluation, power, devices, host, ranks, zeros, events and tensors as CSV, texts as JSON.

    Floats are written with as many digits as it takes to read the same value back, FP32 where that is how they are
    kept. Raises RunFileError when the folder cannot be written or holds one of the files already.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [
            *(_table(run, name, folder / f"{name}.csv") for name in ("steps", "evaluation")),
            _readings(run.power_devices(), run.power_column, POWER_SIGNALS, folder / "power.csv"),
            _readings(run.state_devices(), run.state_column, STATE_SIGNALS, folder / "devices.csv"),
            _host(run, folder / "host.csv"),
            *([_table(run, "zeros", folder / "zeros.csv")] if len(run.column("zeros", "step")) else []),
            *([_ranks(run, folder / "ranks.csv")] if len(run.column("ranks", "step")) else []),
            _events(run, folder / "events.csv"),
            *(path for record in run.tensors().values() for path in _tensors(record, folder)),
            _about(run, folder / "run.json"),
        ]
    except FileExistsError as error:
        raise RunFileError(Sentence("{file} already exists; choose another folder.", file=error.filename)) from None
    except OSError as error:
        raise RunFileError(
            Sentence("{folder} cannot be written: {why}; choose another folder.", folder=folder, why=error.strerror)
        ) from None


def about(run: SavedRun) -> dict[str, Any]:
    """All that is known of a run but its tables, in types that JSON knows."""
    known = {
        "run_id": run.run_id,
        "title": run.title,
        "created": run.created,
        "status": run.status,
        "message": run.message,
        "details": run.details,
        "config": known_config(run),
        "machine": run.machine,
        "environment": run.environment,
        "summary": run.summary,
        "model": asdict(run.model()),
    }
    return {key: plain(value) for key, value in known.items()}


def _table(run: SavedRun, name: str, path: Path) -> Path:
    names = list(TABLES[name].columns)
    columns = [run.column(name, column) for column in names]
    return _write(path, names, zip(*map(_texts, names, columns), strict=False))


def _readings(
    devices: Sequence[str], column: Callable[[str, str], NDArray[np.float64]], signals: Sequence[str], path: Path
) -> Path:
    names = ("time_s", *signals)
    rows: list[tuple[str, ...]] = []
    for device in devices:
        values = (_texts(name, column(device, name)) for name in names)
        rows += [(device, *row) for row in zip(*values, strict=False)]
    return _write(path, ("device", *names), rows)


def _host(run: SavedRun, path: Path) -> Path:
    names = ("time_s", *HOST_SIGNALS)
    columns = (_texts(name, run.column("host", name)) for name in names)
    return _write(path, names, zip(*columns, strict=False))


def _ranks(run: SavedRun, path: Path) -> Path:
    names = ("step", "time_s", "rank", *RANK_SIGNALS)
    columns = (_texts(name, run.column("ranks", name)) for name in names)
    return _write(path, names, zip(*columns, strict=False))


def _events(run: SavedRun, path: Path) -> Path:
    return _write(path, [field.name for field in fields(Incident)], map(astuple, run.events()))


def _tensors(record: TensorHistory, folder: Path) -> tuple[Path, Path]:
    """A row for each tensor in each recorded step, and one for each bin of its histogram that is not empty."""
    stats = _write(folder / f"{record.kind}.csv", ("step", "tensor", "stride", *TENSOR_STATS), _stat_rows(record))
    bins = _write(
        folder / f"{record.kind}-exponents.csv", ("step", "tensor", "bin", "elements"), _exponent_rows(record)
    )
    return stats, bins


def _stat_rows(record: TensorHistory) -> Iterator[list[Any]]:
    for start, steps, stats in _blocks(record, record.stats):
        strides = record.strides(start, start + len(steps))
        for row, tensor in zip(*_recorded(stats), strict=True):
            values = stats[row, tensor].astype(np.float32).astype(str).tolist()  # the shortest that read back
            yield [steps[row], record.names[tensor], strides[row, tensor], *values]


def _exponent_rows(record: TensorHistory) -> Iterator[tuple[int, str, int, int]]:
    for _, steps, exponents in _blocks(record, record.exponents):
        rows, tensors, bins = (place.tolist() for place in np.nonzero(exponents))
        elements = exponents[np.nonzero(exponents)].tolist()
        names = [record.names[tensor] for tensor in tensors]
        yield from zip([steps[row] for row in rows], names, bins, elements, strict=True)


def _blocks(record: TensorHistory, read: Any) -> Iterator[tuple[int, list[int], NDArray[Any]]]:
    """Rows of a record, some at a time: the first one's place, their steps, what `read` has of them."""
    steps = record.steps()
    for start in range(0, len(steps), _ROWS_AT_ONCE):
        values = read(start, start + _ROWS_AT_ONCE)
        values = values[:, : len(record.names)]  # a damaged file may have more
        yield start, steps[start : start + len(values)].tolist(), values


def _recorded(stats: NDArray[np.float64]) -> tuple[list[int], list[int]]:
    rows, tensors = np.nonzero(stats[:, :, TENSOR_STATS.index("count")] > 0)
    return rows.tolist(), tensors.tolist()


def _about(run: SavedRun, path: Path) -> Path:
    with path.open("x", encoding="utf-8") as file:
        json.dump(about(run), file, indent=2, ensure_ascii=False, allow_nan=False)
    return path


def _write(path: Path, header: Sequence[str], rows: Iterable[Iterable[Any]]) -> Path:
    with path.open("x", newline="", encoding="utf-8") as file:
        write_table(file, header, rows)
    return path


def _texts(name: str, values: NDArray[np.float64]) -> list[str]:
    """Shortest texts that read back to the same numbers."""
    numbers = values.tolist()
    whole = name in _WHOLE
    return [str(int(number)) if whole and math.isfinite(number) else repr(number) for number in numbers]
