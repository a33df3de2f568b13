"""The one face of a run, live or saved: plots, comparison and diagnosis know only this."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from precgui.config import RunConfig
from precgui.events import Incident, Status

if TYPE_CHECKING:
    from precgui.runs.tensors.record import TensorHistory

Axis = Literal["step", "time_s"]
Series = tuple[NDArray[np.float64], NDArray[np.float64]]

# Signals recorded at every step, in the order of the file. `step` and `time_s` are the axes.
STEP_SIGNALS = ("loss", "scale", "skipped", "lr", "grad_norm", "step_s", "data_s", "samples", "memory_bytes")
EVALUATION_SIGNALS = ("val_loss", "val_accuracy")
POWER_SIGNALS = ("power_w", "energy_j")
# What the devices did, read twice a second; the fields of `events.DeviceRead`.
STATE_SIGNALS = ("utilisation", "tensor_use", "sm_use", "dram_use", "clock_mhz", "temperature_c", "clock_reasons")
# samples / (step_s + data_s), and 1 where `clock_reasons` say that power, heat or a limit holds the clock down
DERIVED_SIGNALS = ("samples_per_s", "clock_held")
SIGNALS = STEP_SIGNALS + EVALUATION_SIGNALS + POWER_SIGNALS + STATE_SIGNALS + DERIVED_SIGNALS


class Run(Protocol):
    """A run as it is seen. Arrays are float64 and read-only by agreement; NaN and Inf are kept."""

    @property
    def run_id(self) -> str: ...
    @property
    def path(self) -> Path | None: ...
    @property
    def title(self) -> str: ...
    @property
    def config(self) -> RunConfig: ...
    @property
    def status(self) -> Status: ...
    @property
    def created(self) -> str:
        """ISO 8601 with time zone."""
        ...

    @property
    def environment(self) -> Mapping[str, Any]: ...
    @property
    def machine(self) -> Mapping[str, Any]: ...
    @property
    def total_steps(self) -> int: ...
    @property
    def steps_per_epoch(self) -> int: ...

    def series(self, name: str, over: Axis = "step") -> Series:
        """The signal as (x, value), both of length n. Readings of devices are placed on the step axis by their time.

        `power_w` is the first device's; `power_w:NAME` names one of `power_devices()`, `tensor_use:NAME` one of
        `state_devices()`.
        Raises KeyError for a name that is not in SIGNALS.
        """
        ...

    def power_devices(self) -> list[str]: ...
    def state_devices(self) -> list[str]: ...

    def events(self, kind: str | None = None) -> list[Incident]: ...

    def tensors(self) -> Mapping[str, TensorHistory]:
        """Per kind of tensor (TENSOR_KINDS) what was recorded of it; only kinds with rows."""
        ...
