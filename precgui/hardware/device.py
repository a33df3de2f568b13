"""One computing device: what it is and what it does with each format, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from precgui.citations import FactSource, sources_json
from precgui.hardware.readings import Missing, Reading
from precgui.hardware.support import Support
from precgui.sentences import L_

Kind = Literal["cpu", "cuda", "rocm", "xpu", "mps"]


@dataclass(frozen=True, slots=True)
class Device:
    """`id` is torch's name where torch can use it (`cpu`, `cuda:0`); `details` are rows for people, in order.

    `problem` is a sentence when something keeps the device from being used, empty otherwise. `sources` are those of the
    sheet of the card, empty where no sheet is used.
    """

    id: str
    kind: Kind
    name: str
    architecture: str
    capability: str
    formats: Mapping[str, Support]
    memory_bytes: Reading[int] = field(default_factory=lambda: Missing(L_("not told")))
    bandwidth_gbs: Reading[float] = field(default_factory=lambda: Missing(L_("not told")))
    details: tuple[tuple[str, Reading[str]], ...] = ()
    problem: str = ""
    uuid: str = ""
    sources: tuple[FactSource, ...] = ()

    def level(self, name: str) -> str:
        """The support of a format; `none` for a format that is not in the matrix."""
        return self.formats[name].support if name in self.formats else "none"


def device_json(device: Device) -> dict[str, Any]:
    """The device in built-in types; absent values are null, with their reason in `not_available`."""
    missing = {label: value.reason for label, value in device.details if isinstance(value, Missing)}
    return {
        "id": device.id,
        "kind": device.kind,
        "name": device.name,
        "architecture": device.architecture,
        "capability": device.capability,
        "memory_bytes": None if isinstance(device.memory_bytes, Missing) else device.memory_bytes,
        "bandwidth_gbs": None if isinstance(device.bandwidth_gbs, Missing) else round(device.bandwidth_gbs, 1),
        "problem": device.problem or None,
        "uuid": device.uuid or None,
        "details": {label: None if isinstance(value, Missing) else value for label, value in device.details},
        "not_available": missing,
        "sources": sources_json(device.sources),
        "formats": {name: support_json(support) for name, support in device.formats.items()},
    }


def support_json(support: Support) -> dict[str, Any]:
    """One cell of the matrix; `peak_tops` in 10^12 dense operations a second, null when unknown."""
    cell: dict[str, Any] = {
        "support": support.support, "reason": support.reason, "source": support.source, "unit": support.unit,
    }  # fmt: skip
    if isinstance(support.peak, Missing):
        return cell | {"peak_tops": None, "peak_reason": support.peak.reason}
    return cell | {
        "peak_tops": round(support.peak.tops, 3),
        "peak_formula": support.peak.formula,
        "datasheet_tops": support.peak.datasheet_tops,
    }
