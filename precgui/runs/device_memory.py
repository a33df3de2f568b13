"""The memory of the device of a run: its size, the peak that the run took, and the largest batch that it would take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from precgui.runs.run import Run


def largest_batch(run: Run) -> float | None:
    """Samples of a batch: what is left beside weights, gradients and optimizer, over what a sample took; None: unknown.

    Gradients count as much as weights. Everything else in the peak is taken to grow with the batch, so the estimate is
    low for small batches; `precgui plan --search` makes the steps.
    """
    memory, size, peak = run.environment.get("memory"), device_bytes(run), peak_bytes(run)
    if not isinstance(memory, Mapping) or size is None or peak is None:
        return None
    held = [memory.get(f"{name}_bytes") for name in ("weights", "weights", "optimizer", "average")]
    known = [part for part in held if isinstance(part, int) and part >= 0]
    if len(known) < len(held):
        return None
    fixed = sum(known)
    if not fixed < peak <= size:
        return None
    return float((size - fixed) * run.config.data.batch_size // (peak - fixed))


def peak_bytes(run: Run) -> float | None:
    """The peak of the device's allocator, or of the one measured step."""
    memory = run.environment.get("memory")
    recorded = memory.get("peak_bytes") if isinstance(memory, Mapping) else None
    series = run.series("memory_bytes")[1]
    peaks = [float(value) for value in (recorded,) if isinstance(value, int | float)]
    peaks += series[np.isfinite(series)].tolist()
    return max(peaks, default=None)


def device_bytes(run: Run) -> float | None:
    """The memory of the device of the run: of its GPU, or the main memory."""
    kind, _, index = str(run.environment.get("device", "")).partition(":")
    machine: Mapping[str, Any] = run.machine
    if kind == "cuda":
        gpus = machine.get("gpus")
        place = int(index) if index.isdecimal() else 0
        machine = gpus[place] if isinstance(gpus, list) and place < len(gpus) else {}
    size = machine.get("memory_bytes") if isinstance(machine, Mapping) else None
    return float(size) if isinstance(size, int | float) else None
