"""Devices that are not in this machine, such as a V100, from their datasheets."""

from __future__ import annotations

from functools import cache

from precgui.hardware import support, tables
from precgui.hardware.device import Device, Kind
from precgui.hardware.peak import with_peaks
from precgui.hardware.readings import Missing, Reading
from precgui.hardware.support import Support
from precgui.hardware.tables import Architecture, GpuModel
from precgui.sentences import L_

_NOT_GIVEN = Missing(L_("the datasheet does not give it"))


@cache
def datasheet_devices() -> tuple[Device, ...]:
    """Every card of the table as a device, oldest first; ids begin with `card:`."""
    return tuple(device_of_card(card) for card in tables.cards())


def device_of_card(card: GpuModel) -> Device:
    """The device that a card would be, with the peaks of its datasheet."""
    kind, architecture, row = _row(card)
    memory: Reading[int] = _NOT_GIVEN if card.memory_gb is None else int(card.memory_gb * 10**9)
    bandwidth: Reading[float] = _NOT_GIVEN if card.bandwidth_gbs is None else float(card.bandwidth_gbs)
    details = (
        ("SMs", _number(card.sms, "")),
        (L_("Boost clock"), _number(card.boost_mhz, "MHz")),
        ("Power (TDP)", _number(card.tdp_w, "W")),
    )
    return Device(
        f"card:{card.name}", kind, card.name, architecture, card.capability, row, memory, bandwidth, details,
        sources=card.sources,
    )  # fmt: skip


def _row(card: GpuModel) -> tuple[Kind, str, dict[str, Support]]:
    """(kind, architecture's name, matrix with datasheet peaks)."""
    if card.capability.startswith("gfx"):
        kind: Kind = "rocm"
        architecture = tables.by_capability("amd", card.capability)
        row = support.amd(architecture) if architecture else None
    elif card.capability:
        kind = "cuda"
        architecture = tables.by_capability("nvidia", card.capability)
        row = support.nvidia(architecture, card.name) if architecture else None
    else:
        kind = "xpu"
        architecture = tables.by_name("intel", card.name)
        row = support.by_list(architecture) if architecture else None
    if architecture is None or row is None:
        return kind, "", support.unknown(L_("No table knows this architecture."))
    printed = with_peaks(row, architecture, "", _NOT_GIVEN, _NOT_GIVEN, card)
    return kind, architecture.name, printed | _computed(printed, row, architecture, card)


def _computed(
    printed: dict[str, Support], row: dict[str, Support], architecture: Architecture, card: GpuModel
) -> dict[str, Support]:
    """Peaks by SMs, boost clock and rate for the formats that the datasheet leaves out."""
    sms: Reading[int] = card.sms or _NOT_GIVEN
    clock_mhz: Reading[float] = card.boost_mhz or _NOT_GIVEN
    product_class = support.product_class(card.name, card.capability)
    computed = with_peaks(row, architecture, product_class, sms, clock_mhz, card)
    return {name: cell for name, cell in computed.items() if isinstance(printed[name].peak, Missing)}


def _number(value: float | None, unit: str) -> Reading[str]:
    return _NOT_GIVEN if value is None else f"{value:g} {unit}".strip()
