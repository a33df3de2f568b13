"""Data of the Hardware panel: a machine, this one or that of a place, and what was measured on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal

from precgui.errors import SentenceError
from precgui.gui.answer import Answer, child, thread
from precgui.hardware import measured
from precgui.hardware.datasheet import datasheet_devices
from precgui.hardware.detect import Machine, best_device, detect
from precgui.hardware.device import Device
from precgui.places.machine import MachineThere, ask_machine, machine_asked
from precgui.places.settings import NamedPlace
from precgui.sanitize import one_line
from precgui.words import _, error_text

ASK_TORCH_AFTER_MS = 3000  # the window starts first, and a run has the machine to itself


@dataclass
class _Known:
    """A machine as far as it has answered; `fault` says why a place did not."""

    machine: Machine | None = None
    results: list[dict[str, Any]] = field(default_factory=list)
    torch_problem: str = ""
    fault: str = ""


class HardwareModel(QObject):
    """Driver and system are asked in a thread at once, torch in a process of its own a little later. A place is asked
    when it is chosen; `place` is None for this machine.

    `machine_changed` comes after each answer, `results_changed` when measurements were read or added.
    """

    machine_changed = Signal()
    results_changed = Signal()
    place_changed = Signal()  # another machine was chosen, or the asking of its place began or ended
    places_changed = Signal()  # a place was added or removed
    place_requested = Signal(str)  # the machine of a place of this name shall be shown
    measuring = Signal(bool)  # a measurement on this machine starts or ends
    holding = Signal(bool)  # a measurement starts or ends, during which no other machine is shown
    idle = Signal()  # no run trains any more
    run_requested = Signal(object, str)  # a RunConfig for the form of Run, and where it comes from
    sixteen_bits_requested = Signal(object, str)  # as run_requested, for the study of FP16 and BF16
    tab_requested = Signal(str)  # a tab of Hardware, by its title in lower case
    job_requested = Signal(object, object)  # a NamedPlace and the JobLine of a run there that is to be followed
    file_requested = Signal(object)  # the path of a run file that is to be opened
    claims_requested = Signal(str)  # the claims of guides about a precision

    def __init__(
        self, busy: Callable[[], bool], parent: QObject | None = None, *, trains_at: Callable[[], str] = str
    ) -> None:
        """`busy` returns whether a run trains now: then torch is imported later. `trains_at` is the name of its place,
        empty for this machine."""
        super().__init__(parent)
        self._busy, self._trains_at = busy, trains_at
        self.place: NamedPlace | None = None
        self._here = self._shown = _Known()
        self._facts: Mapping[str, Any] | None = None
        self._asked_torch = False
        self._detection = Answer(self, answered=self._take_machine)
        self._torch = Answer(self, progress=self._take_facts, ended=self._torch_ended)
        self._reading = Answer(self, answered=self._take_results)
        self._asking = Answer(self, answered=self._take_place, title="Asking a place")
        self._asking.changed.connect(self.place_changed)
        self._ask_machine()
        self.read_results()

    # The chosen machine

    @property
    def machine(self) -> Machine | None:
        return self._shown.machine

    @property
    def results(self) -> list[dict[str, Any]]:
        return self._shown.results

    @property
    def torch_problem(self) -> str:
        return self._shown.torch_problem

    @property
    def place_name(self) -> str:
        """The name of the chosen place, empty for this machine."""
        return self.place.name if self.place is not None else ""

    @property
    def waiting_text(self) -> str:
        """Why there is no machine to show yet."""
        if self.place is None:
            return _("Asking the machine…")
        asking = _("Asking {name} for its devices, which takes some seconds…").format(name=self.place.name)
        return self._shown.fault or asking

    @property
    def is_asking(self) -> bool:
        """Whether a place is being asked."""
        return self._asking.busy

    def set_place(self, place: NamedPlace | None) -> None:
        """Show the machine of a place, or this one."""
        if place == self.place:
            return
        self.place, known = place, machine_asked(place) if place is not None else None
        if place is None:
            self._shown = self._here
        else:
            self._shown = _Known() if known is None else _Known(known.machine, known.results, known.torch_problem)
        self._tell_all()
        if place is not None and known is None:
            self.ask_place()

    def ask_place(self) -> None:
        """Ask the chosen place anew."""
        if self.place is not None:
            self._shown.fault = ""
            self._asking.ask(thread(_asked, self.place), latest_only=True)
            self.machine_changed.emit()

    def _take_place(self, answer: MachineThere | tuple[NamedPlace, str]) -> None:
        if isinstance(answer, tuple):
            place, fault = answer
            if place == self.place:
                self._shown.fault = fault
                self._tell_all()
        elif answer.place == self.place:
            self._shown = _Known(answer.machine, answer.results, answer.torch_problem)
            self._tell_all()

    def _tell_all(self) -> None:
        self.place_changed.emit()
        self.machine_changed.emit()
        self.results_changed.emit()

    # This machine

    def _ask_machine(self) -> None:
        self._detection.ask(thread(detect, self._facts))

    def _take_machine(self, machine: Machine) -> None:
        known = self._here.machine
        if known is not None and known.torch is not None and machine.torch is None:
            return  # the answer with torch was faster
        self._here.machine = machine
        self.machine_changed.emit()

    @property
    def is_busy(self) -> bool:
        """Whether a run trains now on the chosen machine."""
        return self._busy() and self._trains_at() == self.place_name

    def read_results(self) -> None:
        """Read the kept measurements again."""
        if self.place is not None:
            self.ask_place()
        else:
            self._reading.ask(thread(measured.kept))

    def _take_results(self, results: list[dict[str, Any]]) -> None:
        self._here.results = results
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
            self._here.torch_problem = problem
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


def _asked(place: NamedPlace) -> MachineThere | tuple[NamedPlace, str]:
    """The machine of a place, or the place and why it did not answer."""
    try:
        return ask_machine(place)
    except SentenceError as error:
        return place, one_line(error_text(error), 400)
