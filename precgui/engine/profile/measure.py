"""The ledger of a step that is run: its parts from a tracked step, its peak from the allocator's own events."""

from __future__ import annotations

import gc

import torch

from precgui.config import RunConfig
from precgui.engine import device as devices
from precgui.engine.backend_flags import restored
from precgui.engine.errors import EngineError
from precgui.engine.memory import MemoryEvents, sizes_bytes, workspace_bytes
from precgui.engine.profile.account import StepPeak, ledger, peak
from precgui.engine.profile.one_step import StepParts, build_step, step, tracked
from precgui.planner.ledger import Ledger
from precgui.sentences import L_, Sentence, first_line

BY_EVENTS = L_("measured: the allocator's events (profiler)")
BY_CUDA = L_("measured: torch.cuda.max_memory_allocated")
BY_TRACKER = L_("measured: tensors only")


def measured_ledger(config: RunConfig) -> Ledger:
    """The ledger of the second step of `config`, run here. Raises EngineError for faults that the user can correct or
    what the model cannot do, and MemoryError when it does not fit."""
    with restored():
        devices.pin_threads(config.threads)
        parts = build_step(config)
        try:
            return ledger_of(parts)
        except (RuntimeError, ValueError) as error:
            if isinstance(error, RuntimeError) and devices.is_out_of_memory(error):
                raise MemoryError(devices.out_of_memory_text(error)) from error
            raise EngineError(Sentence("a step of this config fails: {error}", error=first_line(error, 200))) from error


def ledger_of(parts: StepParts) -> Ledger:
    """Three steps: one that makes the optimizer's state, one for the peak, one for whose it is."""
    step(parts)
    total, unused, method = peak_bytes(parts)
    with tracked(parts) as tracker:
        step(parts, tracker)
    trace = tracker.trace
    result = peak(trace)
    if total is None:
        return ledger(trace, result, BY_TRACKER, [L_("buffers inside of kernels are not counted on this device")])
    # the rest is allocated inside of kernels
    inside = max(0, total - result.total_bytes)
    whole = ledger(trace, StepPeak(result.total_bytes + inside, result.place, inside), method)
    whole.parts["fragmentation"] = unused
    return Ledger(
        whole.parts, sum(whole.parts.values()), whole.phase, method, whole.owners, whole.timeline, whole.phases,
        whole.notes,
    )  # fmt: skip


def _taken_on_cuda(parts: StepParts) -> tuple[int, int]:
    """Bytes that a step takes beyond those that are there before it, and that the allocator reserves beyond these.

    What else the process holds is no part of the step: steps of other configs, whose tensors wait for the garbage
    collector and whose blocks the allocator keeps, can be many times as large.
    """
    gc.collect()
    torch.cuda.synchronize(parts.device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(parts.device)
    before = torch.cuda.memory_stats(parts.device)
    step(parts)
    torch.cuda.synchronize(parts.device)
    after = torch.cuda.memory_stats(parts.device)
    taken, reserved = (
        int(after[f"{kind}_bytes.all.peak"]) - int(before[f"{kind}_bytes.all.current"])
        for kind in ("allocated", "reserved")
    )
    return taken, max(0, reserved - taken)


def peak_bytes(parts: StepParts) -> tuple[int | None, int, str]:
    """The peak of a step in bytes, what the allocator reserves beyond it, and how both were found."""
    parts.optimizer.zero_grad(set_to_none=True)
    held = sum(sizes_bytes({kind: list(named.values()) for kind, named in parts.held().items()}).values())
    if parts.device.type == "cuda":
        taken, unused = _taken_on_cuda(parts)
        return held + workspace_bytes(parts.device) + taken, unused, BY_CUDA
    if parts.device.type != "cpu":
        step(parts)
        return None, 0, ""
    events = MemoryEvents()
    events.start()
    try:
        step(parts)
    finally:
        inside = events.stop()
    return None if inside is None else held + inside, 0, BY_EVENTS
