"""A run out to a TensorBoard event file: scalars, histograms of exponents, events and the config as text."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from precgui.events import (
    EVALUATION_SIGNALS,
    EXPONENT_BINS,
    POWER_SIGNALS,
    STATE_SIGNALS,
    STEP_SIGNALS,
    TENSOR_STATS,
    ZERO_SIGNALS,
)
from precgui.runs.errors import RunFileError
from precgui.runs.file import json_text
from precgui.runs.file.reader import SavedRun
from precgui.runs.known_settings import known_config
from precgui.runs.tensorboard import event_file
from precgui.runs.tensors.record import TensorHistory
from precgui.runs.tensors.what_if import BIAS
from precgui.sentences import Sentence

ABOUT_TAG, EVENTS_TAG = "precgui/run", "precgui/events"
STEP_TAGS = {name: f"train/{name}" for name in STEP_SIGNALS}
EVALUATION_TAGS = {name: f"val/{name.removeprefix('val_')}" for name in EVALUATION_SIGNALS}
ZERO_TAGS = {name: f"weights/{name}" for name in ZERO_SIGNALS}
_LARGEST_FP32 = float(np.finfo(np.float32).max)
_DOUBLE, _STRING = 2, 7  # tensorflow/core/framework/types.proto
_AT_ONCE = 64  # rows of histograms


def export_events(run: SavedRun, folder: Path) -> list[Path]:
    """Write one event file into the folder and return it. Wall times are those of the run.

    Scalars are FP32, as the format has them, NaN and Inf included; a signal that leaves the range of FP32 is written
    as FP64 tensors. Raises RunFileError when the library is missing or the folder cannot be written.
    """
    event_type = event_file.event_type()
    begin_s = _begin_s(run)
    path = folder / f"events.out.tfevents.{int(begin_s):010d}.precgui"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            out = _Out(file, event_type, begin_s)
            out.write(0, 0.0, file_version="brain.Event:2")
            _write_run(run, out)
    except FileExistsError as error:
        raise RunFileError(Sentence("{file} already exists; choose another folder.", file=error.filename)) from None
    except OSError as error:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        raise RunFileError(
            Sentence("{folder} cannot be written: {why}; choose another folder.", folder=folder, why=error.strerror)
        ) from None
    return [path]


class _Out:
    """The event file that is being written."""

    def __init__(self, file: IO[bytes], event_type: Any, begin_s: float) -> None:
        self._file, self.event_type, self._begin_s = file, event_type, begin_s

    def write(self, step: int, time_s: float, **fields: Any) -> None:
        wall_time = self._begin_s + (time_s if math.isfinite(time_s) else 0.0)
        event = self.event_type(step=max(-_LARGEST_STEP, min(step, _LARGEST_STEP)), wall_time=wall_time, **fields)
        event_file.write_record(self._file, event.SerializeToString())

    def text(self, step: int, time_s: float, tag: str, text: str) -> None:
        said = text.encode(errors="replace")
        value = {
            "tag": tag,
            "metadata": {"plugin_data": {"plugin_name": "text"}},
            "tensor": {
                "dtype": _STRING,
                "tensor_shape": {"dim": [{"size": 1}]},
                "string_val": [said],
            },
        }
        self.write(step, time_s, summary={"value": [value]})


def _begin_s(run: SavedRun) -> float:
    try:
        return datetime.fromisoformat(run.created).timestamp()
    except ValueError:
        return run.path.stat().st_mtime


def _write_run(run: SavedRun, out: _Out) -> None:
    about = {
        "title": run.title,
        "config": known_config(run),
        "environment": run.environment,
        "steps_per_epoch": run.steps_per_epoch,
        "status": run.status,
    }
    out.text(0, 0.0, ABOUT_TAG, json_text.dump(about))
    _write_signals(out, _table(run, STEP_TAGS))
    _write_signals(out, _table(run, EVALUATION_TAGS))
    _write_signals(out, _table(run, ZERO_TAGS))
    for devices, names in ((run.power_devices(), POWER_SIGNALS), (run.state_devices(), STATE_SIGNALS)):
        for device in devices:
            _write_signals(out, _table(run, {f"{name}:{device}": f"{name}/{device}" for name in names}))
    for event in run.events():
        where = f" in {event.module}" if event.module else ""
        out.text(event.step, event.time_s, EVENTS_TAG, f"{event.severity}: {event.kind}{where}: {event.message}")
    for record in run.tensors().values():
        _write_tensors(run, out, record)


Signals = tuple[NDArray[np.float64], NDArray[np.float64], dict[str, NDArray[np.float64]]]


def _table(run: SavedRun, tags: dict[str, str]) -> Signals:
    """Steps, times and the values of each tag; what was never measured is left out."""
    names = list(tags)
    steps, time_s = run.series(names[0])[0], run.series(names[0], "time_s")[0]
    values = {tag: run.series(name)[1] for name, tag in tags.items()}
    rows = min(len(steps), len(time_s), *map(len, values.values()))
    measured = {tag: column[:rows] for tag, column in values.items() if not np.isnan(column).all() or tag in _ALWAYS}
    return steps[:rows], time_s[:rows], measured


_LARGEST_STEP = 2**63 - 1
_ALWAYS = {STEP_TAGS["loss"], EVALUATION_TAGS["val_loss"]}  # of which NaN is news


def _write_signals(out: _Out, signals: Signals) -> None:
    steps, time_s, values = signals
    wide = {tag for tag, column in values.items() if _leaves_fp32(column)}
    for row, step in enumerate(steps.tolist()):
        reported = [_scalar(tag, float(column[row]), wide=tag in wide) for tag, column in values.items()]
        if math.isfinite(step):  # in a damaged file it may be anything
            out.write(int(step), float(time_s[row]), summary={"value": reported})


def _leaves_fp32(values: NDArray[np.float64]) -> bool:
    finite = np.abs(values[np.isfinite(values)])
    return bool(finite.max(initial=0.0) > _LARGEST_FP32)


def _scalar(tag: str, value: float, *, wide: bool = False) -> dict[str, Any]:
    if not wide:
        return {"tag": tag, "simple_value": value}
    metadata = {"plugin_data": {"plugin_name": "scalars"}}
    return {"tag": tag, "metadata": metadata, "tensor": {"dtype": _DOUBLE, "double_val": [value]}}


def _write_tensors(run: SavedRun, out: _Out, record: TensorHistory) -> None:
    """One event a row of the record: a histogram of exponents and five scalars for each tensor."""
    known, time_s = run.series("loss")[0], run.series("loss", "time_s")[0]
    steps = record.steps()
    times = np.interp(steps, known, time_s) if len(known) else np.zeros(len(steps))
    for start in range(0, len(steps), _AT_ONCE):
        stats, exponents = record.stats(start, start + _AT_ONCE), record.exponents(start, start + _AT_ONCE)
        for row, (own, counts) in enumerate(zip(stats, exponents, strict=False)):
            reported = list(_tensor_values(record, own, counts))
            out.write(int(steps[start + row]), float(times[start + row]), summary={"value": reported})


def _tensor_values(
    record: TensorHistory, stats: NDArray[np.float64], exponents: NDArray[np.uint32]
) -> Iterator[dict[str, Any]]:
    for name, own, counts in zip(record.names, stats, exponents, strict=False):
        stat = dict(zip(TENSOR_STATS, own.tolist(), strict=True))
        if not stat["count"] > 0:
            continue
        displayed = defaultdict[str, float](float, amax=stat["amax"], rms=stat["rms"])
        displayed["zeros"] = stat["zeros"] / stat["count"]
        displayed["nonfinite"] = (stat["nan"] + stat["pos_inf"] + stat["neg_inf"]) / stat["count"]
        if record.kind == "update":
            displayed["changed"] = stat["changed"]
        yield from (_scalar(f"{record.kind}/{name}/{key}", value) for key, value in displayed.items())
        if (histogram := _histogram(counts)) is not None:
            yield {"tag": f"{record.kind}_exponents/{name}", "histo": histogram}


def _histogram(counts: NDArray[np.uint32]) -> dict[str, Any] | None:
    """The exponents of two as a histogram of log2 of the magnitude; zeros, NaN and Inf are in the scalars."""
    visited = np.flatnonzero(counts[1 : EXPONENT_BINS - 1]) + 1
    if not len(visited):
        return None
    bins = np.arange(visited[0], visited[-1] + 1)
    own = counts[bins].astype(np.float64)
    middle = bins - BIAS + 0.5
    return {
        "min": float(bins[0] - BIAS),
        "max": float(bins[-1] - BIAS + 1),
        "num": float(own.sum()),
        "sum": float(own @ middle),
        "sum_squares": float(own @ middle**2),
        "bucket_limit": (bins - BIAS + 1.0).tolist(),
        "bucket": own.tolist(),
    }
