"""Data of the Hardware panel: the machine, as far as it has answered, and the kept measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal

from precgui.gui.answer import Answer, child, thread
from precgui.hardware import measured
from precgui.hardware.datasheet import datasheet_devices
from precgui.hardware.detect import Machine, best_device, detect
from precgui.hardware.device import Device

ASK_TORCH_AFTER_MS = 3000  # the window starts first, and a run has the machine to itself


class HardwareModel(QObject):
    """Driver and system are asked in a thread at once, torch in a process of its own a little later.

    `machine_changed` comes after each answer, `results_changed` when measurements were read or added.
    """

    machine_changed = Signal()
    results_changed = Signal()
    measuring = Signal(bool)  # a measurement starts or ends
    idle = Signal()  # no run trains any more
    run_requested = Signal(object, str)  # a RunConfig for the form of Run, and where it comes from
    sixteen_bits_requested = Signal(object, str)  # as run_requested, for the study of FP16 and BF16
    tab_requested = Signal(str)  # a tab of Hardware, by its title in lower case
    job_requested = Signal(object, object)  # a NamedPlace and the JobLine of a run there that is to be followed
    claims_requested = Signal(str)  # the claims of guides about a precision

    def __init__(self, busy: Callable[[], bool], parent: QObject | None = None) -> None:
        """`busy` returns whether a run trains now: then torch is imported later."""
        super().__init__(parent)
        self._busy = busy
        self.machine: Machine | None = None
        self.results: list[dict[str, Any]] = []
        self.torch_problem = ""
        self._facts: Mapping[str, Any] | None = None
        self._asked_torch = False
        self._detection = Answer(self, answered=self._take_machine)
        self._torch = Answer(self, progress=self._take_facts, ended=self._torch_ended)
        self._reading = Answer(self, answered=self._take_results)
        self._ask_machine()
        self.read_results()

    def _ask_machine(self) -> None:
        self._detection.ask(thread(detect, self._facts))

    def _take_machine(self, machine: Machine) -> None:
        if self.machine is not None and self.machine.torch is not None and machine.torch is None:
            return  # the answer with torch was faster
        self.machine = machine
        self.machine_changed.emit()

    @property
    def is_busy(self) -> bool:
        """Whether a run trains now."""
        return self._busy()

    def read_results(self) -> None:
        """Read the kept measurements again."""
        self._reading.ask(thread(measured.kept))

    def _take_results(self, results: list[dict[str, Any]]) -> None:
        self.results = results
        self.results_changed.emit()

    def ask_torch(self) -> None:
        """Ask torch for its devices, once, when the panel is shown."""
        if not self._asked_torch:
            self._asked_torch = True
            QTimer.singleShot(ASK_TORCH_AFTER_MS, self, self._start_torch)

    def _start_torch(self) -> None:
        if self._busy():
            QTimer.singleShot(ASK_TORCH_AFTER_MS, self, self._start_torch)
            return
        self._torch.ask(child("precgui.engine.torch_facts:serve"))

    def _take_facts(self, facts: Mapping[str, Any]) -> None:
        self._facts = facts
        self._ask_machine()

    def _torch_ended(self, problem: str) -> None:
        if problem and self._facts is None:
            self.torch_problem = problem
            self.machine_changed.emit()

    @property
    def devices(self) -> tuple[Device, ...]:
        return self.machine.devices if self.machine else ()

    def best(self) -> Device | None:
        """The device on which a run goes by default; before torch has answered, the first without a problem."""
        if self.machine is None:
            return None
        if self.machine.torch is None:
            return next((device for device in self.devices if not device.problem), None)
        return best_device(self.devices)

    def find(self, device_id: str) -> Device | None:
        """A device of the machine, or a card of the table (`card:...`)."""
        return next((d for d in (*self.devices, *datasheet_devices()) if d.id == device_id), None)

    def result_of(self, device: Device) -> Mapping[str, Any] | None:
        """The newest measurement of a device with this name."""
        return next(iter(measured.of_device(device.name, self.results)), None)

    def gain_of(self, device: Device) -> float | None:
        """Measured rate of BF16 over FP32."""
        return measured.gain(device.name, self.results)
