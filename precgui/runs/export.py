"""Raw values of a run out to CSV: one file per table, nothing rounded, NaN and Inf kept as such."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

import numpy as np

from precgui.events import Incident
from precgui.runs.documents import plain
from precgui.runs.errors import RunFileError
from precgui.runs.reader import SavedRun
from precgui.runs.schema import TABLES

_WHOLE = {"step", "epoch", "skipped", "samples"}


def export_csv(run: SavedRun, folder: Path) -> list[Path]:
    """Write steps, evaluation, power and events as CSV and the texts as JSON; returns the files.

    Floats are written with as many digits as it takes to read the same value back.
    Raises RunFileError when the folder cannot be written or holds one of the files already.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [
            *(_table(run, name, folder / f"{name}.csv") for name in ("steps", "evaluation")),
            _power(run, folder / "power.csv"),
            _events(run, folder / "events.csv"),
            _about(run, folder / "run.json"),
        ]
    except FileExistsError as error:
        raise RunFileError(f"{error.filename} already exists; choose another folder.") from None
    except OSError as error:
        raise RunFileError(f"{folder} cannot be written: {error.strerror}; choose another folder.") from None


def _table(run: SavedRun, name: str, path: Path) -> Path:
    names = list(TABLES[name].columns)
    columns = [run.column(name, column) for column in names]
    return _write(path, names, zip(*map(_texts, names, columns), strict=False))


def _power(run: SavedRun, path: Path) -> Path:
    names = ("time_s", "power_w", "energy_j")
    rows: list[tuple[str, ...]] = []
    for device in run.power_devices():
        values = (_texts(name, run.power_column(device, name)) for name in names)
        rows += [(device, *row) for row in zip(*values, strict=False)]
    return _write(path, ("device", *names), rows)


def _events(run: SavedRun, path: Path) -> Path:
    return _write(path, [field.name for field in fields(Incident)], map(astuple, run.events()))


def _about(run: SavedRun, path: Path) -> Path:
    about = {
        "run_id": run.run_id,
        "title": run.title,
        "created": run.created,
        "status": run.status,
        "message": run.message,
        "details": run.details,
        "config": run.config.model_dump(mode="json"),
        "machine": run.machine,
        "environment": run.environment,
        "summary": run.summary,
    }
    with path.open("x", encoding="utf-8") as file:
        json.dump(plain(about), file, indent=2, ensure_ascii=False, allow_nan=False)
    return path


def _write(path: Path, header: Sequence[str], rows: Iterable[Iterable[Any]]) -> Path:
    with path.open("x", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    return path


def _texts(name: str, values: np.ndarray[Any, np.dtype[np.float64]]) -> list[str]:
    """Shortest texts that read back to the same numbers."""
    numbers = values.tolist()
    return [str(int(number)) for number in numbers] if name in _WHOLE else [repr(number) for number in numbers]
