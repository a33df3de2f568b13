"""What a run says while it works: small frozen messages, one union.

The engine emits them, the writer keeps them, a live run collects them, the window shows them.
They cross a process border, so every field holds built-in types only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["info", "warning", "error"]
Status = Literal["running", "completed", "stopped", "failed"]
IncidentKind = Literal[
    "nonfinite_loss",
    "nonfinite_gradient",
    "skipped_step",
    "scale_change",
    "emulated",
    "sensor",
    "recording_stopped",
    "failure",
    "note",
]


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The model is built and the first step is about to begin.

    `engine` holds what only the engine knows (device, threads, torch's switches, parameter count,
    a hash of the initial weights); it joins the `/environment` of the run file.
    """

    time_s: float
    total_steps: int
    steps_per_epoch: int
    device: str
    engine: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Facts:
    """What the engine learned about the run after its start; `values` joins `RunStarted.engine`."""

    time_s: float
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StepDone:
    """One optimiser step asked for; a skipped step is still a step.

    `loss` and `grad_norm` are unscaled and may be NaN or Inf. `scale` is the loss scale used in this step
    (1.0 without loss scaling). `memory_bytes` is the peak of the device's allocator, NaN when not measured.
    """

    step: int
    time_s: float
    loss: float
    scale: float
    skipped: bool
    lr: float
    grad_norm: float
    step_s: float
    data_s: float
    samples: int
    memory_bytes: float


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The validation set was evaluated after `step` steps; `accuracy` is a share of 1."""

    step: int
    epoch: int
    time_s: float
    loss: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class PowerRead:
    """One reading of one sensor; `energy_j` counts from the start of the run, NaN without a counter."""

    device: str
    time_s: float
    power_w: float
    energy_j: float


@dataclass(frozen=True, slots=True)
class Incident:
    """Something worth a mark on the time line: a row of `/events`."""

    time_s: float
    step: int
    kind: IncidentKind
    severity: Severity
    message: str
    module: str = ""


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The last message of a run. `details` is the traceback of a failure, or the last words of a process."""

    time_s: float
    status: Status
    message: str = ""
    details: str = ""


Event = RunStarted | Facts | StepDone | Evaluated | PowerRead | Incident | RunEnded
Emit = Callable[[Event], None]
