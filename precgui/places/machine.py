"""The machine of a place, as `precgui detect` and `precgui bench` there describe it: data that are read strictly."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr, ValidationError

from precgui.citations import FactSource
from precgui.hardware import measured
from precgui.hardware.detect import Machine
from precgui.hardware.device import Device, Kind
from precgui.hardware.power import SensorReport
from precgui.hardware.readings import Missing, Reading
from precgui.hardware.support import Level, Peak, Support
from precgui.places.command import document_there
from precgui.places.placed_job import JobError
from precgui.places.settings import NamedPlace
from precgui.sentences import L_, Sentence

_MOST_RESULTS = 200
_NO_BANDWIDTH = Missing(L_("no system tells it; Measure measures it"))
_SWITCHES = tuple(
    f"backends.{part}.fp32_precision" for part in ("cuda.matmul", "cudnn.conv", "mkldnn.matmul")
)  # that the window shows


class _Read(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Cell(_Read):
    support: Level
    reason: StrictStr
    source: StrictStr = ""
    unit: StrictStr = ""
    peak_tops: StrictFloat | StrictInt | None = None
    peak_reason: StrictStr = L_("peak unknown")
    peak_formula: StrictStr = ""
    datasheet_tops: StrictFloat | StrictInt | None = None

    def support_of(self) -> Support:
        peak: Reading[Peak] = Missing(self.peak_reason)
        if self.peak_tops is not None:
            peak = Peak(self.peak_tops, self.peak_formula, self.datasheet_tops)
        return Support(self.support, self.reason, self.source, self.unit, peak)


class _Source(_Read):
    title: StrictStr
    address: StrictStr
    place: StrictStr
    was_read: StrictBool
    checked: StrictStr


class _Device(_Read):
    id: StrictStr = Field(pattern=r"^[a-z]{2,8}(:\d{1,3})?$")
    kind: Kind
    name: StrictStr
    architecture: StrictStr
    capability: StrictStr
    memory_bytes: StrictInt | None
    bandwidth_gbs: StrictFloat | StrictInt | None
    problem: StrictStr | None
    uuid: StrictStr | None
    details: dict[str, StrictStr | None]
    not_available: dict[str, StrictStr]
    formats: dict[str, _Cell]
    sources: list[_Source] = []

    def device(self) -> Device:
        details = tuple(
            (label, Missing(self.not_available.get(label, L_("not told"))) if value is None else value)
            for label, value in self.details.items()
        )
        return Device(
            self.id, self.kind, self.name, self.architecture, self.capability,
            {name: cell.support_of() for name, cell in self.formats.items()},
            Missing(L_("not told")) if self.memory_bytes is None else self.memory_bytes,
            _NO_BANDWIDTH if self.bandwidth_gbs is None else self.bandwidth_gbs,
            details, self.problem or "", self.uuid or "", tuple(FactSource(**dict(each)) for each in self.sources),
        )  # fmt: skip


class _Sensor(_Read):
    source: StrictStr
    device: StrictStr
    found: StrictBool
    message: StrictStr


class _Host(_Read):
    host: StrictStr
    os: StrictStr
    python: StrictStr
    memory_bytes: StrictInt | None
    nvidia_driver: StrictStr | None
    versions: dict[str, StrictStr | None]
    sensors: list[_Sensor]


class _Torch(_Read):
    """`problem` alone where torch cannot be imported there."""

    problem: StrictStr = ""
    version: StrictStr = ""
    cuda: StrictStr | None = None
    hip: StrictStr | None = None
    architectures: list[StrictStr] = []
    threads: StrictInt = 0
    switches: dict[str, StrictStr | StrictBool | StrictInt | None] = {}


class _Document(_Read):
    devices: list[_Device] = Field(min_length=1, max_length=100)
    host: _Host
    torch: _Torch


@dataclass(frozen=True, slots=True)
class MachineThere:
    """The machine of a place, why torch cannot be imported there, and what was measured there, the newest first."""

    place: NamedPlace
    machine: Machine
    torch_problem: str
    results: list[dict[str, Any]]


def ask_machine(place: NamedPlace, look: Callable[[], object] = lambda: None) -> MachineThere:
    """Ask a place for its machine and its kept measurements; some seconds. Raises ContactError, JobError."""
    machine, problem = machine_of(document_there(place, ("detect", "--json"), look=look), place.name)
    found = MachineThere(place, machine, problem, results_there(place, look))
    with _lock:
        _asked[place] = found
    return found


def machine_asked(place: NamedPlace) -> MachineThere | None:
    """The last answer of a place to this process; None before the first."""
    with _lock:
        return _asked.get(place)


def results_there(place: NamedPlace, look: Callable[[], object] = lambda: None) -> list[dict[str, Any]]:
    """The measurements that a place has kept, the newest first. Raises ContactError, JobError."""
    results = document_there(place, ("bench", "--list", "--json"), look=look)
    return [each for each in results if measured.is_result(each)][:_MOST_RESULTS] if isinstance(results, list) else []


def measure_there(place: NamedPlace, device: str, look: Callable[[], object] = lambda: None) -> None:
    """Measure a device of a place, which keeps the result; a minute or more. Raises as `document_there`, and what
    `look` raises: the measurement is stopped then."""
    if not measured.is_result(document_there(place, ("bench", "--device", device, "--json"), look=look)):
        raise JobError(Sentence("{name} printed no measurement; upgrade precgui there", name=place.name))


def machine_of(document: object, name: str) -> tuple[Machine, str]:
    """The machine of a document of `precgui detect --json`, and why there is no torch. Raises JobError."""
    try:
        read = _Document.model_validate(document)
    except ValidationError:
        raise JobError(
            Sentence(
                "{name} did not describe its machine as this precgui reads it; upgrade precgui there",
                name=name,
            )
        ) from None
    sensors = tuple(SensorReport(each.source, each.device, each.found, each.message) for each in read.host.sensors)
    host: Mapping[str, Any] = read.host.model_dump(exclude={"sensors"})
    facts = read.torch.model_dump(exclude={"problem"})
    facts["switches"] = dict.fromkeys(_SWITCHES, "none") | facts["switches"]
    machine = Machine(
        tuple(each.device() for each in read.devices), host, sensors, facts if read.torch.version else None
    )
    return machine, read.torch.problem


_lock = threading.Lock()
_asked: dict[NamedPlace, MachineThere] = {}
