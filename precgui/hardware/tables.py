"""The fact tables: the formats that each architecture computes in hardware, and the rates on datasheets of cards."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from precgui.citations import FactSource, source_keys, sources_of
from precgui.paths import resources
from precgui.sentences import together

# Words of a driver's name that do not distinguish cards. Anything else, such as Laptop or SUPER, does.
_PLAIN_WORDS = {
    "NVIDIA", "TESLA", "GEFORCE", "QUADRO", "RTX", "GPU", "GENERATION", "WORKSTATION", "EDITION", "AMD",
    "INSTINCT", "RADEON", "RX", "AI", "PRO", "INTEL", "DATA", "CENTER", "GRAPHICS", "ARC",
}  # fmt: skip
_MEMORY_SPREAD = 0.15  # between the memory on a sheet and that of the driver: ECC, reserved parts, GB for GiB
_MEMORY_SIZE = re.compile(r"\d+GB")


@dataclass(frozen=True, slots=True)
class Unit:
    """One way in which an architecture computes a format. `ops` counts a multiply and an add as two, per clock and SM,
    for all product classes (`all`) or by class (`geforce`, `pro`)."""

    status: str
    instruction: str = ""
    note: str = ""
    sources: tuple[str, ...] = ()
    ops: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Architecture:
    """A line of the table. `capability` is "9.0" for NVIDIA, "gfx942" for AMD, empty elsewhere."""

    name: str
    capability: str
    units: Mapping[str, Unit]
    sources: tuple[FactSource, ...]
    fp32_per_sm: int | None = None
    fnuz: bool = False
    match: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A datasheet: dense peaks in TFLOPS (TOPS for integers) at the boost clock, by the unit's name.

    `sources` are the documents that give the figures; `note` says which are disputed, computed or not confirmed.
    """

    name: str
    match: tuple[str, ...]
    capability: str
    peak_tops: Mapping[str, float]
    sources: tuple[FactSource, ...]
    sms: int | None = None
    boost_mhz: float | None = None
    memory_gb: float | None = None
    bandwidth_gbs: float | None = None
    tdp_w: float | None = None
    note: str = ""


@cache
def _facts(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((resources() / "facts" / name).read_text(encoding="utf-8"))
    return loaded


@cache
def architectures(vendor: str) -> tuple[Architecture, ...]:
    """All architectures of `nvidia`, `amd`, `intel` or `apple`, oldest first."""
    return tuple(_architecture(entry) for entry in _facts("architectures.json")[vendor])


def _architecture(entry: Mapping[str, Any]) -> Architecture:
    units = {key: Unit(**{**unit, "sources": tuple(unit["sources"])}) for key, unit in entry["units"].items()}
    return Architecture(
        entry["architecture"],
        entry.get("capability", ""),
        units,
        sources_of(entry["source"]),
        entry.get("fp32_per_sm"),
        entry.get("fnuz", False),
        tuple(entry.get("match", ())),
    )


def by_capability(vendor: str, capability: str) -> Architecture | None:
    """The architecture with exactly this capability. Nothing near counts: a newer one is no superset of an older."""
    return next((a for a in architectures(vendor) if a.capability == capability), None)


def by_name(vendor: str, name: str) -> Architecture | None:
    """The first architecture one of whose `match` texts is in the device's name as whole words."""
    plain = _plain(name)
    for architecture in architectures(vendor):
        if any(re.search(rf"\b{re.escape(_plain(text))}(?![A-Z])", plain) for text in architecture.match):
            return architecture
    return None


def source_text(keys: tuple[str, ...]) -> str:
    """Where a fact comes from, in words. Raises KeyError for a key that sources.json lacks."""
    return together(*(source.reference for source in source_keys(keys)), between="; ")


def autocast_operations() -> dict[str, list[str]]:
    """Operations by what CUDA autocast does: lower precision, fp32, an fp32 result, the widest operand's type."""
    return {key: value for key, value in _facts("autocast_ops.json").items() if key not in ("about", "source")}


def autocast_source() -> str:
    """Where the lists of autocast come from: each list names the macro that it repeats."""
    return " ".join(sources_of(named)[0].sentence for named in _facts("autocast_ops.json")["source"].values())


@cache
def cards() -> tuple[GpuModel, ...]:
    """Every card of the table, oldest first."""
    return tuple(_card(entry) for entry in _facts("gpus.json")["gpus"])


def _card(entry: Mapping[str, Any]) -> GpuModel:
    row = {**entry, "match": tuple(entry["match"]), "sources": sources_of(entry["source"])}
    del row["source"]
    return GpuModel(**row)


def limited_cards() -> list[dict[str, str]]:
    """Cards that their maker runs below the rate of their SMs: word of the name, class of limited units, source."""
    limited: list[dict[str, str]] = _facts("gpus.json")["limited"]
    return limited


def words_without_tensor_cores() -> frozenset[str]:
    """Words in names of cards that report capability 7.5 and have no tensor cores (TU116 and TU117)."""
    return frozenset(_facts("gpus.json")["no_tensor_cores"]["words"])


def card(name: str) -> GpuModel | None:
    """The card of exactly this name as a driver spells it; None rather than a near one (Laptop, SUPER, Max-Q, A10G)."""
    words = _words(name)
    best: tuple[int, GpuModel | None] = (0, None)
    for known in cards():
        for text in known.match:
            requested = _words(text)
            if len(requested) > best[0] and _contains(words, requested):
                best = (len(requested), known)
    return best[1]


def is_sheet_of(sheet: GpuModel, sms: int | None, memory_bytes: int | None) -> bool:
    """Whether a card with so many SMs and so much memory can be that of the sheet; None is not known.

    A name may stand for several cards: a GeForce RTX 3080 has 68 SMs and 10 GB or 70 SMs and 12 GB.
    """
    if sms is not None and sheet.sms is not None and sms != sheet.sms:
        return False
    if memory_bytes is None or not sheet.memory_gb:
        return True
    return abs(memory_bytes / 2**30 / sheet.memory_gb - 1) < _MEMORY_SPREAD


def _plain(name: str) -> str:
    return re.sub(r"\((R|TM|C)\)", "", name, flags=re.IGNORECASE).upper()


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[\s\-/]+", _plain(name)) if word]


def _contains(words: list[str], requested: list[str]) -> bool:
    """`requested` in one piece inside `words`, and around it only words that do not distinguish cards."""
    for start in range(len(words) - len(requested) + 1):
        if words[start : start + len(requested)] == requested:
            remainder = words[:start] + words[start + len(requested) :]
            return all(word in _PLAIN_WORDS or _MEMORY_SIZE.fullmatch(word) for word in remainder)
    return False
