"""Steps whose work is queued on a device, and numbers that are copied from it while the host goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from precgui.engine.tasks.base import Batch
from precgui.events import StepDone


@dataclass
class LaunchedStep:
    """A step all of whose work is queued; on the CPU it is done. `loss` and `norm` (of the gradients) have no axes."""

    number: int
    batches: Sequence[Batch]
    data_s: float  # that were spent waiting for them
    lr: float
    scale: float
    loss: Tensor
    norm: Tensor
    skipped: bool
    begin: ClockReading
    own_s: float  # of its launch
    memory_bytes: float


@dataclass(frozen=True)
class PendingStep:
    """A step that is read when the next one is queued. `ends` are the hooks' `end_step`; see `LoopHook.leave_step`."""

    step: LaunchedStep
    read: Callable[[], tuple[float, float]]
    ends: Sequence[Callable[[StepDone], None]]


@dataclass(frozen=True, order=True)
class ClockReading:
    """The clock, and the CPU time of the process, in seconds."""

    clock_s: float = field(default_factory=time.perf_counter)
    cpu_s: float = field(default_factory=time.process_time)
