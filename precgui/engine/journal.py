"""Emits the events of a run with the time since its start."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precgui.events import Emit, Facts, Incident, IncidentKind, Severity


class Journal:
    """Hands events on; times are seconds since it was made, or since `start_s` of `time.perf_counter`.

    `run_id` is that of the run file, empty for a run without one. `run_file` is its path where the run may write
    checkpoints beside it.
    """

    def __init__(
        self, emit: Emit, start_s: float | None = None, run_id: str = "", run_file: Path | None = None
    ) -> None:
        self._start = time.perf_counter() if start_s is None else start_s
        self.emit, self.run_id, self.run_file = emit, run_id, run_file

    def now(self) -> float:
        return time.perf_counter() - self._start

    def facts(self, values: Mapping[str, Any]) -> None:
        self.emit(Facts(self.now(), values))

    def incident(self, step: int, kind: IncidentKind, severity: Severity, message: str, module: str = "") -> None:
        self.emit(Incident(self.now(), step, kind, severity, message, module))

    def note(self, step: int, message: str) -> None:
        self.incident(step, "note", "info", message)
