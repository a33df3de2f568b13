"""Stores events in the file: rows, texts, the end, and a disk that fills up."""

from __future__ import annotations

import contextlib
import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precgui.events import (
    Event,
    Facts,
    Incident,
    ModelDescribed,
    RunEnded,
    RunStarted,
    StepDone,
    TensorStats,
)
from precgui.runs.errors import RunFileError
from precgui.runs.file import disk, json_text, process
from precgui.runs.file.atomic import CAN_RENAME_OPEN, remove_stale
from precgui.runs.file.contents import RunFileView
from precgui.runs.file.earlier_part import EarlierPart
from precgui.runs.file.event_tables import EVENT_TABLES, by_type, event_rows
from precgui.runs.file.reader import SavedRun
from precgui.runs.file.schema import BEAT, TABLES, tensor_room
from precgui.runs.file.sentence_lines import SentenceWriter
from precgui.runs.file.table_file import Columns, DescriptorClosed, TableFile
from precgui.runs.recorded_model import model_columns
from precgui.runs.summary import summarise
from precgui.runs.tensors.record import Dtypes, Names, tensor_rows
from precgui.sentences import L_, Sentence, first_line, message_of

ABANDONED = L_("The recording was closed before the run had ended.")


class EventStore:
    """Stores batches of events in a new run file; used by one thread at a time.

    When the disk has less than `reserve_bytes` left, or refuses data all the same, recording stops for good;
    the status of the run can still be written, because its place was reserved at the start.
    """

    def __init__(
        self, path: Path, *, attributes: Mapping[str, str], texts: Mapping[str, str], reserve_bytes: int,
        earlier: EarlierPart | None = None,
    ) -> None:  # fmt: skip
        """Make the file; see TableFile. With an earlier part it goes on in its place. Raises RunFileError."""
        disk.require_room(path.parent, reserve_bytes)
        remove_stale(path.parent)
        self._devices = {
            table.names: {} if earlier is None else earlier.numbered(table.names)
            for table in EVENT_TABLES
            if table.names
        }
        known_names = () if earlier is None else tuple(earlier.numbered("tensors/names"))
        self._reserve_bytes = reserve_bytes
        self._new_file = partial(TableFile, path, attributes=attributes, texts=texts)
        self._ballast = disk.ReservedSpace(path.parent)
        try:
            if earlier is None:
                self.file = self._new_file()
                self.file.publish()
            else:
                self.file = self._continued(earlier)
        except RunFileError:
            self._ballast.drop()
            raise
        self._names, self._dtypes = Names(self.file.tensor_room), Dtypes()
        self._sentences = SentenceWriter()
        self._reported_left_out = 0
        self._started: dict[str, Any] = {} if earlier is None else earlier.started
        self._last_time_s, self._last_step = 0.0, 0
        if earlier is not None:
            self._names.axis(known_names)
            self._last_time_s, self._last_step = earlier.time_s, earlier.step
        self._recording, self._ended = True, False
        self._writer, self._beats = process.this_process(), 0
        self.fault = ""  # why the recording stopped
        self.identity = file_identity(path)

    def keep(self, events: Sequence[Event]) -> list[Incident]:
        """Store events, oldest first; returns incidents of the recording itself."""
        reported = self._store(events) if self._recording and not self._ended else []
        for event in events:
            if isinstance(event, RunEnded) and not self._ended:
                self._end(event)
        return reported

    def beat(self) -> None:
        """Write that this process lives, also where recording has stopped: other hosts cannot ask it.

        Readers compare a beat with the one before it, and its time with their clock only to know two hosts of one name.
        """
        if self._ended:
            return
        self._beats += 1
        now = datetime.now(UTC).isoformat(timespec="seconds")
        with contextlib.suppress(OSError, RuntimeError):  # the next rows find out
            self.file.write_text(BEAT, {**self._writer, "beats": self._beats, "time": now})

    def close(self) -> None:
        """Close the file; a run that has not ended is marked as failed."""
        if not self._ended:
            self._end(RunEnded(self._last_time_s, "failed", ABANDONED))
        self._ballast.drop()
        self.file.close()

    def _store(self, events: Sequence[Event]) -> list[Incident]:
        for event in events:
            if isinstance(event, RunStarted) and event.tensors and not self._started:
                self._make_room(event.tensors)
        batch = self._batch(events)
        reported = self._left_out()
        try:
            free = disk.free_bytes(self.file.path.parent)
            for event in events:
                if isinstance(event, RunStarted):
                    before = self._started.get("engine") or {}  # of the part before a break
                    self._started = asdict(event) | {"engine": {**before, **event.engine}}
                    self.file.write_text("engine", self._started)
                elif isinstance(event, Facts) and self._started:
                    self._started["engine"] = {**self._started["engine"], **event.values}
                    self.file.write_text("engine", self._started)
            self.file.append(batch)
            if reported:
                self.file.append(self._events(reported))
        except DescriptorClosed as error:
            return [*reported, self._stop(message_of(error), batch)]
        except (OSError, RuntimeError) as error:
            reason = Sentence("the disk did not take the data ({reason})", reason=_reason(error))
            return [*reported, self._stop(reason, batch)]
        if free < self._reserve_bytes:
            reported.append(self._stop(Sentence("only {size} MB are left on the disk", size=free >> 20), {}))
        return reported

    def _continued(self, earlier: EarlierPart) -> TableFile:
        """A file with the rows of the earlier part, in its place."""
        tensors = int(earlier.started.get("tensors") or 0)
        new = self._new_file(tensor_room=tensor_room(tensors))
        try:
            new.write_text("engine", earlier.started)
            new.take_over(earlier.view, earlier.keeps)
            new.publish(earlier.is_unchanged)
        except (OSError, RuntimeError) as error:
            new.discard()
            raise RunFileError(
                Sentence(
                    "{file} cannot go on: {reason}; free some space, or check it.",
                    file=new.path,
                    reason=_reason(error),
                )
            ) from None
        return new

    def _make_room(self, tensors: int) -> None:
        """Begin the file anew, now that it is known how many tensors there are; the rows so far are taken over.

        It takes the place of the old one in one piece. Where that fails, the old one goes on: it holds as much, only
        in more bytes.
        """
        if not CAN_RENAME_OPEN or any(self.file.rows[name] for name in TABLES if name.startswith("tensors")):
            return
        old, new = self.file, None
        try:
            if disk.free_bytes(old.path.parent) < self._reserve_bytes:
                return
            new = self._new_file(tensor_room=tensor_room(tensors))
            new.take_over(RunFileView(old.file))
            new.publish(old.has_its_name)
        except (RunFileError, OSError, RuntimeError):
            if new is not None:
                new.discard()
            return
        self.file, self._names, self._dtypes = new, Names(new.tensor_room), Dtypes()
        self.identity = file_identity(new.path)
        old.close()

    def _left_out(self) -> list[Incident]:
        """An incident when tensors have no room in the file, and again each time their number has doubled."""
        left_out = self._names.left_out
        if len(left_out) < max(2 * self._reported_left_out, 1):
            return []
        self._reported_left_out = len(left_out)
        message = Sentence(
            "The record has room for {room} tensors; {more} more, {tensor} first, are shown while the run goes on, but "
            "not kept in its file.",
            room=len(self._names.places),
            more=len(left_out),
            tensor=next(iter(left_out)),
        )
        return [Incident(self._last_time_s, self._last_step, "note", "warning", message)]

    def _stop(self, reason: str, batch: dict[str, Columns]) -> Incident:
        """Make room with the ballast, write what is at hand and record nothing more."""
        values = {"step": self._last_step, "reason": reason}
        message = Sentence("Recording stopped after step {step}: {reason}; the training goes on.", **values)
        incident = Incident(self._last_time_s, self._last_step, "recording_stopped", "error", message)
        self._recording = False
        self.fault = Sentence("Recording stopped after step {step}: {reason}.", **values)
        self._ballast.drop()
        try:
            self.file.append(batch)
            self.file.append(self._events([incident]))
        except (OSError, RuntimeError):
            self.file.abandon()
        return incident

    def _end(self, event: RunEnded) -> None:
        self._ended = True
        if self.fault and event.status != "failed":  # the training ended well, its record did not
            event = replace(event, status="failed", message=self.fault)
        try:
            self._write_end(event)
        except (OSError, RuntimeError) as error:
            fault = Sentence("The end of the run could not be written: {reason}.", reason=_reason(error))
            self.fault = self.fault or fault
            self.file.abandon()
        except Exception:
            self._ended = False  # a fault of precgui: the end that the recorder gives next says so
            raise

    def _write_end(self, event: RunEnded) -> None:
        end = asdict(event) | {"ended": datetime.now(UTC).isoformat(timespec="seconds")}
        self.file.write_text("end", end)
        try:
            if not self.file.abandoned:
                run = SavedRun(self.file.path, RunFileView(self.file.file))
                self.file.write_text("summary", summarise(run, event.status))
        finally:
            self.file.write_status(event.status)

    def _batch(self, events: Sequence[Event]) -> dict[str, Columns]:
        """The events as columns of the tables they belong to."""
        of = by_type(events)
        batch: dict[str, Columns] = {}
        for table in EVENT_TABLES:
            if not (own := of[table.event]):
                continue
            batch[table.path] = table.typed(own)
            if table.names:
                devices, names = _indices([event.device for event in own], self._devices[table.names], table.names)
                batch |= {table.path: {"device": devices, **batch[table.path]}, table.names: {"": names}}
        if steps := of[StepDone]:
            self._last_time_s, self._last_step = steps[-1].time_s, steps[-1].step
        for described in of[ModelDescribed]:
            batch |= model_columns(described)
        return batch | self._events(of[Incident]) | self._tensors(of[TensorStats])

    def _events(self, incidents: Sequence[Incident]) -> dict[str, Columns]:
        if not incidents:
            return {}
        rows, texts = event_rows(incidents, self.file.rows["texts"])
        return {"events": rows, "texts": texts, **self._sentences.rows(incident.message for incident in incidents)}

    def _tensors(self, events: Sequence[TensorStats]) -> dict[str, Columns]:
        if not events:
            return {}
        of: defaultdict[str, list[TensorStats]] = defaultdict(list)
        for event in events:
            of[event.kind].append(event)
        known = len(self._names.places)
        tables: dict[str, Columns] = {f"tensors/{kind}": tensor_rows(own, self._names) for kind, own in of.items()}
        tables["tensors/names"] = {"": _texts(list(self._names.places)[known:], "tensors/names")}
        if rows := self._dtypes.new_rows([event for own in of.values() for event in own], self._names):
            kinds = TABLES["tensors/dtypes"].columns
            columns = {name: np.array(values, kinds[name].dtype) for name, values in rows.items()}
            tables["tensors/dtypes"] = columns
        return tables


def file_identity(path: Path) -> tuple[int, int] | None:
    """Device and number of the file, None when it is gone."""
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_dev, state.st_ino


def _indices(devices: Sequence[str], known: dict[str, int], table: str) -> tuple[NDArray[np.int32], NDArray[np.bytes_]]:
    """The number of each device, and the names that are new; they join `known`."""
    before = len(known)
    for device in devices:
        known.setdefault(device, len(known))
    of = np.array([known[device] for device in devices], "<i4")
    return of, _texts(list(known)[before:], table)


def _texts(names: Sequence[str], table: str) -> NDArray[np.bytes_]:
    """Names in the type of their table."""
    kind = TABLES[table].columns[""].dtype
    return np.array([json_text.cut(name, kind.itemsize).encode() for name in names], kind)


def _reason(error: Exception) -> str:
    """The system's words for the error; HDF5 buries the number in a long text."""
    number = re.search(r"errno = (\d+)", str(error))
    return os.strerror(int(number[1])) if number else first_line(error)
