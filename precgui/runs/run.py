"""The interface of a run, live or saved: plots, comparison and diagnosis know only this."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from precgui.config.tree import RunConfig
from precgui.events import Incident, Status
from precgui.runs.recorded_model import RecordedModel
from precgui.runs.signals import Axis, Series

if TYPE_CHECKING:
    from precgui.runs.tensors.record import TensorHistory


class SignalSource(Protocol):
    """The part of a run that plots draw. Arrays are float64 and read-only by agreement; NaN and Inf are kept."""

    @property
    def status(self) -> Status: ...
    @property
    def environment(self) -> Mapping[str, Any]: ...
    @property
    def total_steps(self) -> int: ...

    def series(self, name: str, over: Axis = "step") -> Series:
        """The signal as (x, value), both of length n. Readings of devices are placed on the step axis by their time.

        `power_w` is the first device's; `power_w:NAME` names one of `power_devices()`, `tensor_use:NAME` one of
        `state_devices()`.
        Raises KeyError for a name that is not in SIGNALS.
        """
        ...

    def power_devices(self) -> list[str]: ...
    def state_devices(self) -> list[str]: ...

    def events(self, kind: str | None = None, since: int = 0) -> list[Incident]:
        """Incidents in the order of the record: all, or those of one kind, without the first `since` of them."""
        ...


class Run(SignalSource, Protocol):
    """A run, live or saved."""

    @property
    def run_id(self) -> str: ...
    @property
    def path(self) -> Path | None: ...
    @property
    def title(self) -> str: ...
    @property
    def config(self) -> RunConfig: ...
    @property
    def created(self) -> str:
        """ISO 8601 with time zone."""
        ...

    @property
    def machine(self) -> Mapping[str, Any]: ...
    @property
    def device(self) -> str:
        """As torch names it; empty before the run starts."""
        ...

    @property
    def steps_per_epoch(self) -> int: ...

    def model(self) -> RecordedModel:
        """Modules with their classes, parameters, buffers and copies of weights; or why they are not available."""
        ...

    def tensors(self) -> Mapping[str, TensorHistory]:
        """Per kind of tensor (TENSOR_KINDS) what was recorded of it; only kinds with rows."""
        ...
