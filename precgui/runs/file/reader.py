"""A saved run: a run file read lazily, whether finished, being written, killed or damaged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import h5py
import numpy as np

from precgui.config.tree import RunConfig
from precgui.config.validation import ConfigError, build_accepted
from precgui.events import Incident, IncidentKind, Severity, Status
from precgui.runs import signals
from precgui.runs.errors import RunFileError
from precgui.runs.file import process, safe_hdf5
from precgui.runs.file.contents import RunFileView, decoded
from precgui.runs.file.schema import SCHEMA, STATUS
from precgui.runs.file.sentence_lines import SentenceReader
from precgui.runs.file.user_notes import read_notes
from precgui.runs.growable import GrowableArray, Values
from precgui.runs.recorded_model import RecordedModel, read_model
from precgui.runs.recorded_precision import with_recorded_precision
from precgui.runs.signals import Axis, Series
from precgui.runs.tensors.record import TensorHistory, tensor_records
from precgui.runs.tensors.weight_norm import WeightNorms
from precgui.sanitize import one_line, sanitize
from precgui.sentences import L_, Sentence, filled, kept_text

_MOST_MESSAGE = 4000
END_UNKNOWN = L_("Whether this run has ended can no longer be read; it is taken for one that broke off.")
ENDED = ("completed", "stopped", "failed")
_DEFAULTS = L_("The config cannot be read; defaults are shown in its place.")
BROKEN_OFF = L_("The process that wrote this run ended without saying so; its last second may be missing.")


def open_run(path: str | Path) -> SavedRun:
    """Open a run file for reading; needs neither torch nor a finished run.

    Raises RunFileError, one sentence with the cure, when nothing of it can be shown. What could not be read
    of an otherwise usable file is described in `notes`.
    """
    path = Path(path)
    contents = RunFileView.open(path)
    try:
        return SavedRun(path, contents)
    except RunFileError:
        contents.file.close()
        raise


class SavedRun:
    """A run file as a Run. Texts are read at once, columns when they are asked for; never writes.

    Close it, or use it in a `with`, to let go of the file.
    """

    def __init__(self, path: Path, contents: RunFileView) -> None:
        _check_schema(path, contents.file)
        self.path: Path = path
        self.status: Status = "running"
        self.title = ""
        self._started: dict[str, Any] = {}
        self._end: dict[str, Any] = {}
        self._summary: dict[str, Any] = {}
        self._contents = contents
        self._columns: dict[tuple[str, str], GrowableArray] = {}
        self._names: dict[str, list[str]] = {}
        self._weight_norms = WeightNorms()
        self._events: list[Incident] = []
        self._sentences = SentenceReader()
        self.run_id = contents.attribute("run_id")
        self.created = one_line(contents.attribute("created"))
        self.config = _read_config(contents)
        self._own_title = one_line(contents.attribute("title") or self.config.display_title)
        self._machine = contents.document("machine")
        self._environment = contents.document("environment")
        self._odd = contents.notes  # on what is read once; the contents forget their notes when refreshed
        self._read_progress(writer_gone=False)
        self._check_left()
        if self.status == "running" and self._is_gone():
            self.refresh()

    @property
    def notes(self) -> list[str]:
        """Sentences on what is missing or odd in the file."""
        return list(dict.fromkeys(self._odd + self._contents.notes))

    @property
    def damage(self) -> str:
        """Why the recorded steps and validations are not whole, as far as they were read; empty where they are."""
        return self._contents.damage("steps", "evaluation", "events")

    @property
    def environment(self) -> Mapping[str, Any]:
        """The environment of the run, joined by the facts that only the engine knows."""
        engine = self._started.get("engine")
        return {**self._environment, **(engine if isinstance(engine, dict) else {})}

    @property
    def machine(self) -> Mapping[str, Any]:
        return self._machine

    @property
    def device(self) -> str:
        """The device that the run used; empty before its start."""
        return one_line(str(self._started.get("device") or ""))

    @property
    def total_steps(self) -> int:
        return _count(self._started.get("total_steps"))

    @property
    def steps_per_epoch(self) -> int:
        return _count(self._started.get("steps_per_epoch"))

    @property
    def steps(self) -> int:
        """Steps recorded so far; reads no column."""
        return self._contents.rows("steps")

    @property
    def message(self) -> str:
        """The last words of a run that has ended."""
        message = self._end.get("message") or ""
        return one_line(kept_text(message), _MOST_MESSAGE)

    @property
    def details(self) -> str:
        """The traceback of a failure, or the last words of a process."""
        return sanitize(str(self._end.get("details") or ""))

    @property
    def summary(self) -> Mapping[str, Any]:
        """The figures written when the run ended, empty before; see `runs.summary`."""
        return self._summary

    @property
    def written_by(self) -> str:
        """The process that is still writing the run, as "process N on HOST"; empty when none is."""
        writer = self._environment.get("writer")
        if self.status != "running" or not isinstance(writer, dict):
            return ""
        return Sentence("process {pid} on {host}", pid=str(writer.get("pid")), host=one_line(str(writer.get("host"))))

    @property
    def cannot_ask_writer(self) -> bool:
        """Whether the process that writes the run is of another machine or container, so that nothing here says
        whether it has ended."""
        return self.status == "running" and self._is_gone() is None

    @property
    def beat(self) -> Mapping[str, Any]:
        """Of a run that is being written: host, pid and, on Linux, boot_id of its process, the number of `beats` so far
        and the `time` of the last one by the clock of that host. Empty in files of older versions."""
        return self._contents.beat() if self.status == "running" else {}

    def refresh(self) -> bool:
        """Read what has been written since, to the file or to the notes next to it; True when the run went on.

        Raises RunFileError when the file is gone; what was read stays.
        """
        if self.status != "running":
            self.title = read_notes(self.path).title or self._own_title
            return False
        before = self._contents.counters()
        gone = self._is_gone() is True  # asked first, so that its last rows are read
        self._contents.refresh()
        self._read_progress(gone)
        return self.status != "running" or before != self._contents.counters()

    def _is_gone(self) -> bool | None:
        """Whether the process that writes the file has ended, see `process.is_gone`."""
        writer = self._environment.get("writer")
        return process.is_gone({**writer, **self._contents.beat()}) if isinstance(writer, dict) else None

    def _read_progress(self, writer_gone: bool) -> None:
        """The texts that change while a run goes on."""
        self.title = read_notes(self.path).title or self._own_title
        self._started = self._contents.document("engine")
        self.config = with_recorded_precision(self.config, self._started.get("engine"))
        self._end = self._contents.document("end")
        status = self._contents.text(STATUS)
        if status in ENDED:
            self.status = cast(Status, status)
            self._summary = self._contents.document("summary")
        elif writer_gone:
            self.status = "failed"
            self._odd.append(BROKEN_OFF)
        elif self._contents.is_lost(STATUS) and self._is_gone() is not False:
            self.status = "failed"
            self._odd.append(END_UNKNOWN)
        if self.status != "running":
            self._contents.open_on_demand()

    def _check_left(self) -> None:
        """Raises RunFileError where nothing is left to be shown: defaults would stand in the place of the run."""
        if self.steps or not (self._contents.is_lost("config") and self._contents.is_lost(STATUS)):
            return
        text = L_("{file} is damaged: neither its settings nor its steps can be read; restore a copy.")
        if self._contents.is_cut_short:
            text = L_("{file} is cut short: neither its settings nor its steps are left; restore a copy.")
        raise RunFileError(filled(text, file=self.path))

    def series(self, name: str, over: Axis = "step") -> Series:
        x, values = signals.series(self, name, over)
        rows = min(len(x), len(values))  # a damaged column may have ended the table early
        return x[:rows], values[:rows]

    def column(self, table: str, name: str) -> Values:
        """All valid rows of a column of `runs.schema.TABLES` as float64, shape (rows,)."""
        kept = self._columns.setdefault((table, name), GrowableArray())
        if len(kept) < self._contents.rows(table):
            kept.append(self._contents.read(table, name, len(kept), self._contents.rows(table)))
        return kept.view[: self._contents.rows(table)]

    def power_devices(self) -> list[str]:
        return self._texts("sensors")

    def power_column(self, device: str, name: str) -> Values:
        """The readings of one device, shape (readings,)."""
        return self._own("power", name, self.power_devices().index(device))

    def state_devices(self) -> list[str]:
        """The devices whose use was read; none in files of older versions."""
        return self._texts("power/state/names")

    def state_column(self, device: str, name: str) -> Values:
        """The readings of one device, shape (readings,)."""
        return self._own("power/state", name, self.state_devices().index(device))

    def weight_norms(self) -> Series:
        history = self.tensors().get("weight")
        if history is not None:
            self._weight_norms.read(history)
        return self._weight_norms.series()

    def _texts(self, table: str) -> list[str]:
        known, rows = self._names.setdefault(table, []), self._contents.rows(table)
        if len(known) < rows:
            known += [decoded(name) for name in self._contents.read(table, "", len(known), rows)]
        return known[:rows]

    def _own(self, table: str, name: str, index: int) -> Values:
        values, owner = self.column(table, name), self.column(table, "device")
        own: Values = values[: len(owner)][owner[: len(values)] == index]
        return own

    def events(self, kind: str | None = None, since: int = 0) -> list[Incident]:
        known, rows = len(self._events), self._contents.rows("events")
        if known < rows:
            self._sentences.read(self._contents)
            self._events += [self._incident(row) for row in self._contents.read("events", "", known, rows)]
        if kind is None:
            return self._events[since:]
        return [event for event in self._events if event.kind == kind][since:]

    def model(self) -> RecordedModel:
        """Modules and parameters; `unavailable` says why there are none."""
        return read_model(self._contents, running=self.status == "running")

    def tensors(self) -> dict[str, TensorHistory]:
        """Per kind of tensor what was recorded of it, read when asked for; empty when nothing was."""
        return tensor_records(self._contents)

    def close(self) -> None:
        """Let go of the file; what was read so far stays. Idempotent."""
        self._contents.close()

    def __enter__(self) -> SavedRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _incident(self, row: np.void) -> Incident:
        return Incident(
            time_s=float(row["time_s"]),
            step=int(row["step"]),
            kind=cast(IncidentKind, decoded(row["kind"])),
            severity=cast(Severity, decoded(row["severity"])),
            message=self._sentences.sentence(self._message(row)),
            module=decoded(row["module"]),
        )

    def _message(self, row: np.void) -> str:
        """The whole message, which lies in `texts` when the row has no room for it."""
        start, length = int(row["text_start"]), int(row["text_length"])
        if length > 0 and start >= 0 and start + length <= self._contents.rows("texts"):
            return sanitize(self._contents.read("texts", "", start, start + length).tobytes().decode(errors="replace"))
        return decoded(row["message"])


def _check_schema(path: Path, file: h5py.File) -> None:
    schema = safe_hdf5.attribute(file, "schema")
    if schema is None or schema.shape != () or schema.dtype.kind not in "iu":
        raise RunFileError(Sentence("{file} is an HDF5 file, but not a run of precgui; choose another.", file=path))
    if int(schema) != SCHEMA:
        raise RunFileError(
            Sentence(
                "{file} has schema {schema}, this precgui reads schema {own}; update precgui.",
                file=path,
                schema=int(schema),
                own=SCHEMA,
            )
        )


def _read_config(contents: RunFileView) -> RunConfig:
    """The config; settings that this version does not know or accept are left out and noted."""
    try:
        config, refused = build_accepted(contents.document("config"))
    except ConfigError:
        contents.note("config", _DEFAULTS)
        return RunConfig()
    if contents.is_lost("config"):
        contents.note("settings", _DEFAULTS)
    for path in refused:
        text = Sentence("The setting {setting} of the config is not known here and is left out.", setting=path)
        contents.note(path, text)
    return config


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0
