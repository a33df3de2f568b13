"""The power limit of an NVIDIA GPU: read, and set where the driver allows it."""

from __future__ import annotations

from dataclasses import dataclass

from precgui.hardware import nvml
from precgui.hardware.readings import Missing, Reading, known
from precgui.sentences import L_

ADMINISTRATOR = L_(
    "the driver lets an administrator alone set it (run as root, or ask for sudo nvidia-smi -pl {watts:g})"
)


@dataclass(frozen=True, slots=True)
class PowerLimit:
    """The limit of one GPU now, and the range in which it may be set, in watts."""

    uuid: str
    name: str
    present_w: float
    least_w: float
    most_w: float


def power_limits() -> Reading[list[PowerLimit]]:
    """The limits of all GPUs that report one; Missing, with the reason, where none does."""
    with nvml.session() as opened:
        if isinstance(opened, Missing):
            return opened
        limits = [gpu if isinstance(gpu, Missing) else _limit(gpu) for gpu in opened.gpus()]
    there = [limit for limit in limits if not isinstance(limit, Missing)]
    return there or next(
        (limit for limit in limits if isinstance(limit, Missing)), Missing(L_("the driver lists no GPU"))
    )


def set_power_limit(uuid: str, watts: float) -> Missing | None:
    """Set the limit of the GPU with this UUID, as NVML or torch gives it; the reason where that is refused."""
    with nvml.session() as opened:
        gpu = opened if isinstance(opened, Missing) else _find(opened, uuid)
        if isinstance(gpu, Missing):
            return gpu
        answer = gpu.ask("nvmlDeviceSetPowerManagementLimit", round(1e3 * watts))
    if not isinstance(answer, Missing):
        return None
    return Missing(ADMINISTRATOR.format(watts=watts)) if answer.reason == nvml.NO_RIGHTS else answer


def find_power_limit(uuid: str) -> Reading[PowerLimit]:
    """The limit of the GPU with this UUID, or why it is not known."""
    with nvml.session() as opened:
        gpu = opened if isinstance(opened, Missing) else _find(opened, uuid)
        return gpu if isinstance(gpu, Missing) else _limit(gpu)


def _find(opened: nvml.NvmlSession, uuid: str) -> Reading[nvml.Gpu]:
    for gpu in opened.gpus():
        if not isinstance(gpu, Missing) and nvml.bare_uuid(str(known(gpu.ask("nvmlDeviceGetUUID")))) == nvml.bare_uuid(
            uuid
        ):
            return gpu
    return Missing(L_("NVML does not list this GPU"))


def _limit(gpu: nvml.Gpu) -> Reading[PowerLimit]:
    present = gpu.ask("nvmlDeviceGetPowerManagementLimit")
    if isinstance(present, Missing):
        return present
    ends = gpu.ask("nvmlDeviceGetPowerManagementLimitConstraints")
    if isinstance(ends, Missing):
        return ends
    uuid = str(known(gpu.ask("nvmlDeviceGetUUID")) or "")
    return PowerLimit(uuid, gpu.name(), 1e-3 * present, 1e-3 * ends[0], 1e-3 * ends[1])
