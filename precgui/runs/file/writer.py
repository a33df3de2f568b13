"""The writer of a run: one more `emit`, called from any thread, that keeps every event in the run file."""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from precgui.config.tree import RunConfig
from precgui.events import CheckpointDue, Event, Incident, RunEnded, RunStarted
from precgui.runs.file import disk, json_text, process
from precgui.runs.file.earlier_part import EarlierPart
from precgui.runs.file.event_store import EventStore, file_identity
from precgui.sentence_keys import with_keys
from precgui.sentences import L_, filled

FLUSH_S = 0.7  # within the second that a kill may cost, and seldom: each flush takes 2 ms
BEAT_S = 5.0  # a sign of life for other hosts, also while nothing happens that is recorded
LATEST_S = 0.8  # on a busy machine the flusher may get its turn late: the thread that emits then flushes by itself


class RunWriter:
    """Keeps a run in a new file while it goes on: `writer(event)` for every event, then `writer.close()`.

    Events are buffered and reach the operating system every FLUSH_S seconds by a thread, or else by the thread that
    emits, before the oldest event that is not in the file is older than LATEST_S when the next one comes, as far as the
    last interval foretells it. Where a flush takes longer, `writer(event)` waits for it. So a kill loses less than a
    second of steps. `RunStarted` is written at once: what it says of the number of tensors sets their room. So is
    `RunEnded`, with status and summary; what comes after it is ignored. With `earlier` the file of that part goes on.
    `on_incident` gets incidents of the recording itself, in any thread. When the disk has less than
    `reserve_bytes` left, or other code closes the file, recording stops with an Incident of kind `recording_stopped`:
    later events are swallowed, the file stays readable.
    Raises RunFileError when the file exists or the folder is missing, full or not writable.
    """

    def __init__(
        self,
        path: Path,
        config: RunConfig,
        *,
        run_id: str,
        created: str,
        machine: Mapping[str, Any],
        environment: Mapping[str, Any],
        on_incident: Callable[[Incident], None] | None = None,
        reserve_bytes: int = disk.RESERVE_BYTES,
        earlier: EarlierPart | None = None,
    ) -> None:
        self.path = Path(path)
        self._recording = EventStore(
            self.path,
            attributes={"run_id": run_id, "title": config.display_title, "created": created},
            texts={
                "config": json_text.dump(config.model_dump(mode="json")),
                "machine": json_text.dump(with_keys(machine)),
                "environment": json_text.dump(with_keys({**environment, "writer": process.this_process()})),
            },
            reserve_bytes=reserve_bytes,
            earlier=earlier,
        )
        self._on_incident = on_incident
        self._pending: list[Event] = []
        self._pending_since_s = self._unflushed_since_s = math.inf  # the latter also of events that are being written
        self._latest_event_s = time.monotonic()
        self._pending_lock, self._file_lock = threading.Lock(), threading.Lock()
        self._closed = False
        self._error: Exception | None = None  # of the thread that flushes
        self._owner = os.getpid()  # the file is none of a forked process, though it has this object, too
        self._closing = threading.Event()
        self._flusher = threading.Thread(target=self._flush_regularly, name="run-file-flush", daemon=True)
        self._flusher.start()
        atexit.register(self.close)

    def __call__(self, event: Event) -> None:
        if os.getpid() != self._owner:
            return
        error, self._error = self._error, None
        if error is not None:
            raise error
        now_s = time.monotonic()
        with self._pending_lock:
            self._pending.append(event)
            self._pending_since_s = min(self._pending_since_s, now_s)
            self._unflushed_since_s = min(self._unflushed_since_s, now_s)
            next_event_s = now_s + (now_s - self._latest_event_s)
            self._latest_event_s = now_s
            is_late = next_event_s - self._unflushed_since_s > LATEST_S
        if is_late or isinstance(event, (RunStarted, CheckpointDue, RunEnded)):
            self.flush()

    @property
    def flushed_steps(self) -> int:
        """Steps that the operating system has: they survive the end of this process."""
        return self._recording.file.rows["steps"]

    def fault(self) -> str:
        """Why the file does not hold the whole run, as a sentence; empty when it does."""
        if self._recording.fault:
            return self._recording.fault
        now = file_identity(self.path)
        if now == self._recording.identity:
            return ""
        if now is None:
            text = L_("The run was not kept as {file}: the file was removed or renamed while it was written.")
        else:
            text = L_("The run was not kept as {file}: another file took its place while it was written.")
        return filled(text, file=self.path)

    def flush(self) -> None:
        """Hand everything emitted so far to the operating system."""
        if os.getpid() != self._owner:
            return
        with self._file_lock:
            with self._pending_lock:
                events, self._pending = self._pending, []
                self._pending_since_s = math.inf
            reported = self._recording.keep(events) if events and not self._closed else []
            with self._pending_lock:
                self._unflushed_since_s = self._pending_since_s
        if self._on_incident is not None:
            for incident in reported:
                self._on_incident(incident)

    def close(self) -> None:
        """Write what is left and close the file; a run that has not ended is marked as failed. Idempotent."""
        if os.getpid() != self._owner:
            return
        self._closing.set()
        if threading.current_thread() is not self._flusher:
            self._flusher.join()
        atexit.unregister(self.close)
        try:
            self.flush()
        finally:
            with self._file_lock:
                if not self._closed:
                    self._closed = True
                    self._recording.close()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _flush_regularly(self) -> None:
        beat_s = -math.inf
        while not self._closing.wait(FLUSH_S):
            try:
                self.flush()
                if time.monotonic() - beat_s >= BEAT_S:
                    beat_s = time.monotonic()
                    with self._file_lock:
                        self._recording.beat()
            except Exception as error:  # noqa: BLE001 - the thread that emits raises it
                self._error = error
                return
