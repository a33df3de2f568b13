"""The cards that the tests know, as NVML shows them."""

from __future__ import annotations

from typing import Any

from tests.hardware.fake_nvml import NOT_SUPPORTED, UNKNOWN, Card, Fails

_ENERGY = {"nvmlDeviceGetTotalEnergyConsumption": 987_654_321}
_POWER = {185: 251_000, 186: 263_500}


def a100(**answers: Any) -> Card:
    more = {"nvmlDeviceGetEccMode": [1, 1], "nvmlDeviceGetMigMode": [0, 0], "nvmlDeviceGetEnforcedPowerLimit": 400_000}
    return Card("NVIDIA A100-SXM4-80GB", (8, 0), 6912, 81920, 1410, 1593, 5120, _ENERGY | more | answers, dict(_POWER))


def h100(**answers: Any) -> Card:
    more = {"nvmlDeviceGetEccMode": [1, 1], "nvmlDeviceGetMigMode": [0, 0], "nvmlDeviceGetEnforcedPowerLimit": 700_000}
    gpm = {2: 91.0, 3: 22.5, 5: 64.5, 6: 0.0, 7: 64.0, 9: 0.5, 10: 37.0, 11: 0.0, 12: 3.5, 13: 0.1}
    return Card(
        "NVIDIA H100 80GB HBM3", (9, 0), 16896, 81559, 1980, 2619, 5120, _ENERGY | more | answers, dict(_POWER), gpm
    )


def h200(**answers: Any) -> Card:
    card = h100(**answers)
    card.name, card.memory_mib, card.memory_clock_mhz, card.bus_width = "NVIDIA H200", 143771, 3201, 6144
    return card


def rtx_4090(**answers: Any) -> Card:
    more = {"nvmlDeviceGetEnforcedPowerLimit": 450_000, "nvmlDeviceGetEccMode": [0, 0]}
    return Card(
        "NVIDIA GeForce RTX 4090", (8, 9), 16384, 24564, 3105, 10501, 384, _ENERGY | more | answers, dict(_POWER)
    )


def v100(**answers: Any) -> Card:
    more = {"nvmlDeviceGetEccMode": [1, 1], "nvmlDeviceGetEnforcedPowerLimit": 300_000}
    return Card("Tesla V100-SXM2-32GB", (7, 0), 5120, 32768, 1530, 877, 4096, _ENERGY | more | answers, {186: 58_000})


def gtx_1660(**answers: Any) -> Card:
    more = {"nvmlDeviceGetEnforcedPowerLimit": 120_000}
    return Card("NVIDIA GeForce GTX 1660", (7, 5), 1408, 6144, 2145, 4001, 192, _ENERGY | more | answers)


def t4(**answers: Any) -> Card:
    more = {"nvmlDeviceGetEccMode": [1, 1], "nvmlDeviceGetEnforcedPowerLimit": 70_000}
    return Card("Tesla T4", (7, 5), 2560, 15360, 1590, 5001, 256, _ENERGY | more | answers, {186: 31_000})


def future(**answers: Any) -> Card:
    """A card that no table knows."""
    return Card("NVIDIA Z999", (19, 3), 40000, 400_000, 2900, 5000, 8192, _ENERGY | answers, dict(_POWER))


def a100_mig(**answers: Any) -> Card:
    hidden = {
        "nvmlDeviceGetUtilizationRates": Fails(NOT_SUPPORTED),
        "nvmlDeviceGetNumGpuCores": Fails(NOT_SUPPORTED),
        "nvmlDeviceGetMigMode": [1, 1],
        "nvmlDeviceGetMaxMigDeviceCount": 7,
    }
    card = a100(**(hidden | answers))
    card.mig = [
        {"name": "NVIDIA A100-SXM4-80GB MIG 3g.40gb", "sms": 42, "memory_mib": 40192},
        {"name": "NVIDIA A100-SXM4-80GB MIG 1g.10gb", "sms": 14, "memory_mib": 9728},
    ]
    return card


def wsl_laptop(**answers: Any) -> Card:
    """A laptop card under WSL: half of the calls fail, each in its own way."""
    failing = {
        "nvmlDeviceGetUtilizationRates": Fails(UNKNOWN),
        "nvmlDeviceGetEnforcedPowerLimit": Fails(NOT_SUPPORTED),
        "nvmlDeviceGetComputeRunningProcesses": Fails(NOT_SUPPORTED),
        "nvmlDeviceGetCurrentClocksEventReasons": Fails(13),
        "nvmlDeviceGetMemoryBusWidth": Fails(13),
        "nvmlDeviceGetTemperatureV": Fails(13),
    }
    return Card("NVIDIA GeForce RTX 4070 Laptop GPU", (8, 9), 4608, 8188, 3105, 8001, 128, failing | answers)
