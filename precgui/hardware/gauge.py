"""The clock and its throttle reasons, read during a measurement; empty where there is no sensor."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import psutil

from precgui.hardware import nvml
from precgui.hardware.clock_reasons import CLOCK_REASONS
from precgui.hardware.device import Device
from precgui.hardware.device_readings import GpuReader
from precgui.hardware.readings import Missing, Reading, known
from precgui.sentences import L_, Sentence


class ClockProbe:
    """Reads the clock of the CPU, or the GPU with this UUID; other devices give no reading."""

    def __init__(self, device: Device) -> None:
        self.uuid = device.uuid
        self._on_cpu = device.kind == "cpu"
        self._session: Reading[nvml.NvmlSession] = Missing(L_("not opened"))
        self._reader: GpuReader | None = None

    def __enter__(self) -> ClockProbe:
        if self.uuid:
            self._session = nvml.open_session()
            self._reader = self._find()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._reader is not None:
            self._reader.close()
        if isinstance(self._session, nvml.NvmlSession):
            self._session.close()

    def _find(self) -> GpuReader | None:
        if isinstance(self._session, Missing):
            return None
        for gpu in self._session.gpus():
            if not isinstance(gpu, Missing) and known(gpu.ask("nvmlDeviceGetUUID")) == self.uuid:
                return GpuReader(gpu)
        return None

    def remarks(self) -> list[str]:
        """Sentences about what disturbs a measurement now: held clocks, other programs on the GPU."""
        if self._reader is None:
            return []
        reasons, processes = known(self._reader.reasons()) or (), known(self._reader.processes()) or ()
        held = [text for word, text, warns in CLOCK_REASONS.values() if warns and word in reasons]
        others = [process for process in processes if process.pid != os.getpid()]
        named = ", ".join(f"{process.name} ({process.pid})" for process in others)
        return [*held, *([Sentence("Other programs compute on this GPU: {named}.", named=named)] if others else [])]

    def read(self) -> Mapping[str, Any]:
        """`clock_mhz`, `temperature_c`, `power_w` and `reasons` (words), null where they are not known."""
        if self._reader is None:
            frequency = psutil.cpu_freq() if self._on_cpu else None
            clock = float(frequency.current) if frequency and frequency.current else None
            return {"clock_mhz": clock, "temperature_c": None, "power_w": None, "reasons": None}
        result = self._reader.everything()
        power = known(result.values["power_instant_w"])
        return {
            "clock_mhz": known(result.values["sm_clock_mhz"]),
            "temperature_c": known(result.values["temperature_c"]),
            "power_w": known(result.values["power_average_w"]) if power is None else power,
            "reasons": None if isinstance(result.reasons, Missing) else list(result.reasons),
        }
