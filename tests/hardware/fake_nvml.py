"""A stand-in for the module `pynvml`: the outermost door, with the answers of chosen cards.

Every function answers from the card's table; a number wrapped in `Fails` raises NVMLError with that code, and a
function or field that the table lacks is "not supported", as on a real card. The answers follow the datasheets and
`nvidia-smi -q` listings of these cards; times, powers and counters are set by the test.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND = 3, 4, 9, 12
FUNCTION_NOT_FOUND, GPU_IS_LOST, MISMATCH, UNKNOWN = 13, 15, 18, 999
_GPM_MAX = 333
RESERVED = 600 << 20  # bytes that the driver keeps for itself: used in the first version of memory info only


@dataclass(frozen=True)
class Fails:
    """An answer that is an error code."""

    code: int


@dataclass
class Card:
    """One GPU: the answers of its functions (a value, `Fails`, or a callable of the arguments) and of its fields."""

    name: str
    cc: tuple[int, int]
    cores: int
    memory_mib: int
    sm_clock_mhz: int
    memory_clock_mhz: int = 1000
    bus_width: int = 256
    answers: dict[str, Any] = field(default_factory=dict)
    fields: dict[int, float | Fails] = field(default_factory=dict)
    gpm: dict[int, float] | None = None
    mig: list[dict[str, Any]] = field(default_factory=list)

    def answer(self, function: str, *arguments: Any) -> Any:
        given = {**self._common(), **self.answers}.get(function, Fails(NOT_SUPPORTED))
        return given(*arguments) if callable(given) else given

    def _common(self) -> dict[str, Any]:
        used = 3 << 30
        return {
            "nvmlDeviceGetName": self.name,
            "nvmlDeviceGetUUID": f"GPU-{abs(hash(self.name)) % 10**8:08d}",
            "nvmlDeviceGetCudaComputeCapability": self.cc,
            "nvmlDeviceGetNumGpuCores": self.cores,
            "nvmlDeviceGetMemoryInfo": lambda version=0: SimpleNamespace(
                total=self.memory_mib << 20, used=used + (0 if version else RESERVED), free=0
            ),
            "nvmlDeviceGetMemoryBusWidth": self.bus_width,
            "nvmlDeviceGetMaxClockInfo": lambda kind: self.memory_clock_mhz if kind == 2 else self.sm_clock_mhz,
            "nvmlDeviceGetClockInfo": lambda kind: self.memory_clock_mhz if kind == 2 else self.sm_clock_mhz - 120,
            "nvmlDeviceGetTemperatureV": 47,
            "nvmlDeviceGetTemperature": 47,
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=83, memory=41),
            "nvmlDeviceGetPowerUsage": 123_400,
            "nvmlDeviceGetEnforcedPowerLimit": 300_000,
            "nvmlDeviceGetPersistenceMode": 1,
            "nvmlDeviceGetCurrentClocksEventReasons": 0,
            "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=4242, usedGpuMemory=used)],
        }


class _Value(ctypes.Union):
    _fields_ = (
        ("dVal", ctypes.c_double), ("uiVal", ctypes.c_uint), ("ulVal", ctypes.c_ulong), ("ullVal", ctypes.c_ulonglong),
        ("sllVal", ctypes.c_longlong), ("siVal", ctypes.c_int), ("usVal", ctypes.c_ushort),
    )  # fmt: skip


class NVMLError(Exception):
    """As in the real binding: the code is `value`."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return f"NVML error {self.value}"


def module(
    *cards: Card, driver: str = "580.95.05", cuda: int = 13000, init: int = 0, system: Mapping[str, Any] | None = None
) -> Any:
    """A module that answers like pynvml on a machine with these cards; `init` is the error code of nvmlInit."""
    fake: Any = ModuleType("pynvml")
    given: dict[str, Any] = {
        "nvmlSystemGetDriverVersion": driver,
        "nvmlSystemGetCudaDriverVersion": cuda,
        "nvmlDeviceGetCount": len(cards),
        **(system or {}),
    }

    def nvml_init() -> None:
        if init:
            raise NVMLError(init)
        fake.open_sessions += 1

    def nvml_shutdown() -> None:
        fake.open_sessions -= 1

    fake.open_sessions = 0
    fake.nvmlMemory_v2 = 0x2000028
    fake.NVMLError = NVMLError
    fake.nvmlInit, fake.nvmlShutdown = nvml_init, nvml_shutdown
    for function, answer in given.items():
        setattr(fake, function, lambda answer=answer: _checked(answer))
    fake.nvmlDeviceGetHandleByIndex = lambda index: _checked(cards[index].answers.get("open", cards[index]))
    fake.nvmlDeviceGetFieldValues = _field_values
    fake.nvmlDeviceGetMigDeviceHandleByIndex = _mig_handle
    _add_gpm(fake)
    fake.__getattr__ = lambda name: _device_function(name)
    return fake


def install(monkeypatch: pytest.MonkeyPatch, *cards: Card, **options: Any) -> Any:
    """Put the fake in the place of pynvml for one test."""
    fake = module(*cards, **options)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def _checked(answer: Any) -> Any:
    if isinstance(answer, Fails):
        raise NVMLError(answer.code)
    return answer


def _device_function(name: str) -> Callable[..., Any]:
    if not name.startswith(("nvmlDeviceGet", "nvmlDeviceSet")):
        raise AttributeError(name)
    return lambda card, *arguments: _checked(card.answer(name, *arguments))


def _field_values(card: Card, wanted: list[tuple[int, int]]) -> list[Any]:
    _checked(card.answers.get("nvmlDeviceGetFieldValues"))
    return [_field_value(card.fields.get(number, Fails(NOT_SUPPORTED))) for number, _scope in wanted]


def _field_value(answer: float | Fails | Callable[[], float | Fails]) -> SimpleNamespace:
    answer = answer() if callable(answer) else answer
    if isinstance(answer, Fails):
        return SimpleNamespace(nvmlReturn=answer.code, valueType=0, value=_Value())
    return SimpleNamespace(nvmlReturn=0, valueType=1, value=_Value(uiVal=int(answer)))


def _mig_handle(card: Card, index: int) -> Card:
    if index >= len(card.mig):
        raise NVMLError(6)
    slice_ = card.mig[index]
    attributes = SimpleNamespace(multiprocessorCount=slice_["sms"], memorySizeMB=slice_["memory_mib"])
    answers = {"nvmlDeviceGetAttributes": attributes, "nvmlDeviceGetUUID": f"MIG-{index}"}
    return Card(slice_["name"], card.cc, 0, slice_["memory_mib"], card.sm_clock_mhz, answers=answers)


class _GpmMetric(ctypes.Structure):
    _fields_ = (("metricId", ctypes.c_uint), ("nvmlReturn", ctypes.c_uint), ("value", ctypes.c_double))


def _add_gpm(fake: Any) -> None:
    class MetricsGet(SimpleNamespace):
        def __init__(self) -> None:
            super().__init__(version=0, numMetrics=0, sample1=None, sample2=None)
            self.metrics = (_GpmMetric * _GPM_MAX)()

    def sample_get(card: Card, sample: SimpleNamespace) -> SimpleNamespace:
        _checked(card.answers.get("nvmlGpmSampleGet"))
        sample.card = card
        return sample

    def metrics_get(request: MetricsGet) -> MetricsGet:
        card = request.sample2.card
        for metric in request.metrics[: request.numMetrics]:
            values = card.gpm or {}
            metric.nvmlReturn = 0 if metric.metricId in values else NOT_SUPPORTED
            metric.value = values.get(metric.metricId, 0.0)
        return request

    fake.freed_samples = fake.taken_samples = 0

    def sample_free(_sample: SimpleNamespace) -> None:
        fake.freed_samples += 1

    def sample_alloc() -> SimpleNamespace:
        fake.taken_samples += 1
        return SimpleNamespace(card=None)

    fake.NVML_GPM_METRICS_GET_VERSION = 1
    fake.c_nvmlGpmMetricsGet_t = MetricsGet
    fake.nvmlGpmQueryDeviceSupport = lambda card: SimpleNamespace(isSupportedDevice=int(card.gpm is not None))
    fake.nvmlGpmSampleAlloc = sample_alloc
    fake.nvmlGpmSampleFree = sample_free
    fake.nvmlGpmSampleGet = sample_get
    fake.nvmlGpmMetricsGet = metrics_get
