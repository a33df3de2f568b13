"""The events of a run: small frozen messages, one union.

The engine emits them, the writer keeps them, a live run collects them, the window shows them.
They cross a process border, so every field holds built-in types or a `Sentence`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["info", "warning", "error"]
Status = Literal["running", "completed", "stopped", "failed", "imported"]  # the last of other tools' runs only
IncidentKind = Literal[
    "nonfinite_loss",
    "nonfinite_gradient",
    "nonfinite_activation",
    "skipped_step",
    "scale_change",
    "precision_change",
    "emulated",
    "sensor",
    "recording_stopped",
    "resumed",
    "failure",
    "note",
]

TENSOR_KINDS = (
    "gradient", "weight", "update", "optimizer", "activation", "activation_gradient",
    "buffer", "ema",  # running statistics; copies of the weights, such as their moving average
)  # fmt: skip
# Of the finite elements: amax, amin_nonzero (NaN when there are none), mean, rms, l2; then counts; then shares of 1.
TENSOR_STATS = (
    "amax", "amin_nonzero", "mean", "rms", "l2", "zeros", "nan", "pos_inf", "neg_inf", "count",
    "changed", "lost_bf16", "lost_fp16", "lost_tf32", "lost_e4m3fn", "lost_e5m2",
)  # fmt: skip
EXPONENT_BINS = 256

# The signals that events bring. At every step, in the order of the file: `step` and `time_s` are the axes.
# The last two are not in files of early versions and then NaN.
STEP_SIGNALS = (
    "loss", "scale", "skipped", "lr", "grad_norm", "step_s", "data_s", "samples", "memory_bytes",
    "backward_passes", "optimizer_steps", "cpu_s",
)  # fmt: skip
EVALUATION_SIGNALS = ("val_loss", "val_accuracy")
HOST_SIGNALS = ("load", "cpu_pressure", "preemptions")  # the fields of HostRead
ZERO_SIGNALS = ("zeros_by_mask", "zeros_by_rounding")  # fields of ZerosCounted; of pruned runs only
# Of each process of a run on several; the fields of RankStep. `NAME` is that of the first, `NAME:2` of rank 2.
RANK_SIGNALS = (
    "rank_step_s", "rank_wait_s", "rank_cpu_s", "rank_memory_bytes", "sent_bytes", "interface_bytes", "gradient_error",
)  # fmt: skip
POWER_SIGNALS = ("power_w", "energy_j")
# What the devices did, read twice a second; the fields of DeviceRead.
STATE_SIGNALS = ("utilisation", "tensor_use", "sm_use", "dram_use", "clock_mhz", "temperature_c", "clock_reasons")


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The model is built and the first step is about to begin.

    `engine` holds what only the engine knows (device, threads, torch's switches, parameter count,
    a hash of the initial weights); it joins the `/environment` of the run file. `tensors` is how many parameters and
    modules there are to be recorded, 0 when that is not known.
    """

    time_s: float
    total_steps: int
    steps_per_epoch: int
    device: str
    engine: Mapping[str, Any] = field(default_factory=dict)
    tensors: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts that the engine learned after the start of the run; `values` joins `RunStarted.engine`."""

    time_s: float
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ModuleInfo:
    """A module of the model. `type` is its class with the Python module it is from: `torch.nn.modules.linear.Linear`.

    `forward_order` is its place, from 0, among the modules in the order in which they returned in the first step, -1
    where it did not run or the order was not recorded. The name of the model itself is ''.
    """

    name: str
    type: str
    forward_order: int = -1


ParameterRole = Literal["parameter", "buffer", "ema"]


@dataclass(frozen=True, slots=True)
class ParameterInfo:
    """A parameter, a buffer, or a copy of weights that is kept beside them (`ema`), as it was in the first step.

    `dtype` is a name of a format where it has one (`bf16`), else torch's (`int64`). `updated` says that an optimizer
    updates it. `backward_order` is its place, from 0, in the order in which the first backward pass completed
    gradients, -1 where it got none or the order was not recorded. Of several names a parameter has the first here.
    """

    name: str
    role: ParameterRole
    dtype: str
    shape: tuple[int, ...]
    requires_grad: bool
    updated: bool
    backward_order: int = -1


@dataclass(frozen=True, slots=True)
class ModelDescribed:
    """The modules and parameters of the model, once, after the first step (before the end in a run without one)."""

    time_s: float
    modules: tuple[ModuleInfo, ...]
    parameters: tuple[ParameterInfo, ...]


@dataclass(frozen=True, slots=True)
class StepDone:
    """One optimiser step asked for; a skipped step is still a step.

    `loss` and `grad_norm` are unscaled and may be NaN or Inf. `scale` is the loss scale used in this step
    (1.0 without loss scaling). `memory_bytes` is the peak of the device's allocator, NaN when not measured. `cpu_s` is
    the CPU time of the process, all threads, between begin and end of the step, NaN when not measured.
    `backward_passes` and `optimizer_steps` are how many of each ran in the step, NaN when not counted.
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
    backward_passes: float = math.nan
    optimizer_steps: float = math.nan
    cpu_s: float = math.nan


@dataclass(frozen=True, slots=True)
class RankStep:
    """One process (rank) of a run on several of them, in one step; NaN is what was not measured.

    `step_s` is its time until the ranks met at the end of the step, `wait_s` the part in which backward only waited for
    gradients of others. `memory_bytes` is the peak of its device's allocator, on the CPU the memory of the process.
    `sent_bytes` are the bytes of gradients that it sent, by the algorithm of the collective, `interface_bytes` what
    all processes of the host sent through the interface since the step before.
    `gradient_error` is the L2 norm of the reduced gradient minus its FP32 sum, over that of the sum.
    """

    step: int
    time_s: float
    rank: int
    step_s: float
    wait_s: float
    cpu_s: float
    memory_bytes: float
    sent_bytes: float
    interface_bytes: float
    gradient_error: float


NO_METRIC = "none"  # the name of the metric of a task that gives no score


@dataclass(frozen=True)
class Metric:
    """The figure of merit of a task, as `RunStarted.engine["metric"]` has it.

    `unit` is % for a share of 1, which is kept as that and shown times 100; empty for a plain number.
    """

    name: str
    title: str
    about: str
    of_outputs: bool = True  # it follows from what the model says to given inputs, so any model can be scored on them
    unit: str = "%"
    higher_is_better: bool = True


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The validation set was evaluated after `step` steps; `accuracy` is the task's metric, a share of 1 for most."""

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
class DeviceRead:
    """Activity of a device since the reading before, about twice a second; NaN for values that it does not report.

    Shares of 1: `utilisation` is the time in which anything ran; `tensor_use`, `sm_use` and `dram_use` are that in
    which the tensor cores, the SMs and the memory did. `clock_reasons` are bits of NVML's clock event reasons.
    """

    device: str
    time_s: float
    utilisation: float
    tensor_use: float
    sm_use: float
    dram_use: float
    clock_mhz: float
    temperature_c: float
    clock_reasons: float


@dataclass(frozen=True, slots=True)
class HostRead:
    """Load of the host, about twice a second; NaN for readings that the system does not provide.

    `load` is the load average of the last minute. `cpu_pressure` is the share of the time since the reading before in
    which some process waited for a CPU. `preemptions` counts the times in which this process had to give up its CPU
    since then.
    """

    time_s: float
    load: float
    cpu_pressure: float
    preemptions: float


@dataclass(frozen=True, slots=True)
class ZerosCounted:
    """Weights of linear and convolutional layers that take no part after `step` updates, as shares of 1 of all of them.

    `by_mask` are those that pruning holds at zero. `by_rounding` are others that are not zero where the optimizer keeps
    them, and zero in the product: lost to the format. NaN where the rounding of a layer is not known.
    """

    step: int
    time_s: float
    by_mask: float
    by_rounding: float


@dataclass(frozen=True, slots=True)
class CheckpointDue:
    """A checkpoint of the run after `step` is about to get its name: the record is written out before."""

    step: int
    time_s: float


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
class TensorStats:
    """Statistics of the tensors of one kind (one of TENSOR_KINDS) after one step, unscaled.

    `stats` are float64 [tensor, TENSOR_STATS] and `exponents` uint32 [tensor, EXPONENT_BINS] as bytes: how many of the
    sampled elements have which FP32 exponent field. Of tensor t, every `strides[t]`-th block was sampled.
    `dtypes` are those of the tensors, as `ParameterInfo` names them; empty where not recorded. Weights of step 0 are
    those before the first update.
    """

    step: int
    time_s: float
    kind: str
    names: tuple[str, ...]
    strides: tuple[int, ...]
    stats: bytes
    exponents: bytes
    dtypes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The last message of a run. `details` is the traceback of a failure, or the last words of a process."""

    time_s: float
    status: Status
    message: str = ""
    details: str = ""


Event = (
    RunStarted | Facts | ModelDescribed | StepDone | RankStep | Evaluated
    | PowerRead | DeviceRead | HostRead | ZerosCounted | CheckpointDue | Incident | TensorStats | RunEnded
)  # fmt: skip
Emit = Callable[[Event], None]
