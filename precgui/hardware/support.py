"""Support of each number format by a device: native, slow, emulated, none or unknown, with reason and source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from precgui.hardware import tables
from precgui.hardware.readings import Missing, Reading
from precgui.hardware.tables import Architecture, Unit
from precgui.sentences import L_, Sentence, together

Level = Literal["native", "slow", "emulated", "none", "unknown"]
LEVELS: tuple[Level, ...] = ("native", "slow", "emulated", "none", "unknown")
LEVEL_MEANING: dict[Level, str] = {
    "native": L_("The hardware multiplies it at a useful rate."),
    "slow": L_("The hardware can, at a rate that makes it pointless for training."),
    "emulated": L_("The result is right, but it is computed with other instructions: no gain in speed."),
    "none": L_("Neither the hardware nor torch multiplies it; precgui can still round to it and show its effect."),
    "unknown": L_("No evidence either way."),
}
_NATIVE, _STATUS = L_("{name}: matrix or vector units."), "{name}: {status}."
FORMATS = (
    "fp64", "fp32", "tf32", "bf16", "fp16", "e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e3m2", "e2m3", "e2m1",
    "mxfp8_e4m3", "mxfp6_e3m2", "mxfp4", "nvfp4", "int8", "int4", "int2", "int1",
)  # fmt: skip

_NVIDIA_UNITS: dict[str, tuple[str, ...]] = {
    "fp64": ("fp64_tc", "fp64"), "fp32": ("fp32",), "tf32": ("tf32_tc",), "bf16": ("bf16_tc",),
    "fp16": ("fp16_tc", "fp16_scalar"), "e4m3fn": ("fp8_e4m3_tc",), "e5m2": ("fp8_e5m2_tc",),
    "e3m2": ("fp6_tc",), "e2m3": ("fp6_tc",), "e2m1": ("fp4_plain_tc",), "mxfp8_e4m3": ("mxfp8_tc",),
    "mxfp6_e3m2": ("mxfp8_tc",), "mxfp4": ("mxfp4_tc",), "nvfp4": ("nvfp4_tc",), "int8": ("int8_tc", "int8_dp4a"),
    "int4": ("int4_tc",), "int1": ("int1_tc",),
}  # fmt: skip
_AMD_UNITS: dict[str, tuple[str, ...]] = {
    "fp64": ("fp64_matrix", "fp64"), "fp32": ("fp32_matrix", "fp32"), "tf32": ("tf32_matrix",),
    "bf16": ("bf16_matrix", "bf16_dot2"), "fp16": ("fp16_matrix", "fp16_dot2", "fp16_packed"),
    "e3m2": ("fp6_fp4_mx_matrix",), "e2m3": ("fp6_fp4_mx_matrix",), "e2m1": ("fp6_fp4_mx_matrix",),
    "mxfp8_e4m3": ("fp6_fp4_mx_matrix",), "mxfp6_e3m2": ("fp6_fp4_mx_matrix",), "mxfp4": ("fp6_fp4_mx_matrix",),
    "int8": ("int8_matrix", "int8_dot4"), "int4": ("int4_matrix", "int4_dot8"),
}  # fmt: skip
_NO_UNIT = {
    "int2": L_("No GPU multiplies 2-bit integers; the weights are unpacked to INT8 or FP16."),
    "int1": L_("No matrix instruction for single bits."),
    "nvfp4": L_("A format of NVIDIA's Blackwell."),
    "e4m3fnuz": L_("The FNUZ forms exist on AMD's CDNA 3 only."),
    "e5m2fnuz": L_("The FNUZ forms exist on AMD's CDNA 3 only."),
}
_BF16_BY_TORCH = L_(
    "Volta, Turing and older have no BF16 instruction; torch computes it by way of FP32 (9.9 TFLOPS against 89 in "
    "FP16 on a V100S), and torch.cuda.is_bf16_supported() is True all the same."
)
_HALF_RATE = L_(
    "GeForce accumulates in FP32 at half rate; in FP16 it is twice as fast "
    "(torch.backends.cuda.matmul.allow_fp16_accumulation)."
)
_E5M2_WITH_E4M3 = L_("torch multiplies it with E4M3, as for gradients, never two E5M2: cuBLASLt has no such product.")
_NO_TENSOR_CORES = L_("TU116 and TU117 report capability 7.5 but have no tensor cores.")


@dataclass(frozen=True, slots=True)
class Peak:
    """The theoretical dense rate of one format in 10^12 operations a second, and how it was computed."""

    tops: float
    formula: str
    datasheet_tops: float | None = None


_NO_RATE = Missing(L_("peak unknown: no rate is known for this device"))


@dataclass(frozen=True, slots=True)
class Support:
    """Support of one format by one device. `unit` is the key of the fact table that decided."""

    support: Level
    reason: str
    source: str = ""
    unit: str = ""
    peak: Reading[Peak] = _NO_RATE


def unknown(reason: str) -> dict[str, Support]:
    """The row of a device that no table knows."""
    return {name: Support("unknown", reason) for name in FORMATS}


def product_class(name: str, capability: str) -> str:
    """Which column of the rates a card is in: GeForce cards accumulate in FP32 at half rate. Empty when not known."""
    words = name.upper().replace("-", " ").split()
    if "GEFORCE" in words:
        return "geforce"
    if limited := next((card["units"] for card in tables.limited_cards() if card["name"] in words), ""):
        return limited
    if capability in ("12.0", "12.1"):
        return "rtx_pro_6000" if "PRO 6000" in name.upper() else ""
    return "pro"


def has_tensor_cores(name: str, capability: str) -> bool:
    """False for the GTX 16 series and its siblings, and before Volta."""
    words = name.upper().replace("-", " ").split()
    gtx_16 = any(a == "GTX" and b.startswith("16") for a, b in pairwise(words))
    small_turing = capability == "7.5" and (gtx_16 or not tables.words_without_tensor_cores().isdisjoint(words))
    return not small_turing and float(capability) >= 7.0


def nvidia(architecture: Architecture, name: str) -> dict[str, Support]:
    """The row of an NVIDIA card, without peaks. `name` decides where the capability alone does not."""
    units = dict(architecture.units)
    if not has_tensor_cores(name, architecture.capability):
        note = _NO_TENSOR_CORES if architecture.capability == "7.5" else ""
        units = {k: Unit("none", note=note) if "_tc" in k else u for k, u in units.items()}
    row = {fmt: _nvidia_format(fmt, units, architecture) for fmt in FORMATS}
    if row["bf16"].support == "none":
        row["bf16"] = Support("emulated", _BF16_BY_TORCH, tables.source_text(("ptx91", "m_bf16")), "bf16_tc")
    if product_class(name, architecture.capability) == "geforce" and row["fp16"].unit == "fp16_tc":
        row["fp16"] = replace(row["fp16"], reason=together(row["fp16"].reason, _HALF_RATE))
    if row["e5m2"].support == "native":
        row["e5m2"] = replace(row["e5m2"], reason=together(row["e5m2"].reason, _E5M2_WITH_E4M3))
    return row


def _nvidia_format(name: str, units: Mapping[str, Unit], architecture: Architecture) -> Support:
    key, unit = _best(_NVIDIA_UNITS.get(name, ()), units)
    if unit is None:
        return Support("none", _NO_UNIT.get(name, L_("No instruction for it.")))
    if unit.status in ("none", "unknown"):
        absent = Sentence(
            "No instruction in {name} ({capability}).", name=architecture.name, capability=architecture.capability
        )
        reason = unit.note or together(absent, _history(key))
    else:
        where = L_("Tensor cores") if "_tc" in key else L_("CUDA cores")
        how = unit.instruction or L_("by the toolchain")
        reason = together(Sentence("{where}: {instruction}.", where=where, instruction=how), unit.note)
    return Support(_level(unit), reason, tables.source_text(unit.sources), key)


def _history(key: str) -> str:
    """In which architectures the unit is native, for a card that lacks it."""
    native = [a for a in tables.architectures("nvidia") if a.units.get(key, Unit("none")).status == "native"]
    named = [f"{a.name} {a.capability}" for a in native]
    return Sentence("Native from {first} to {last}.", first=named[0], last=named[-1]) if named else ""


def amd(architecture: Architecture) -> dict[str, Support]:
    """The row of an AMD card, without peaks."""
    fp8 = ("e4m3fnuz", "e5m2fnuz") if architecture.fnuz else ("e4m3fn", "e5m2")
    keys = {**_AMD_UNITS, fp8[0]: ("fp8_matrix",), fp8[1]: ("bf8_matrix",)}
    return {name: _amd_format(name, keys.get(name, ()), architecture) for name in FORMATS}


def _amd_format(name: str, keys: tuple[str, ...], architecture: Architecture) -> Support:
    key, unit = _best(keys, architecture.units)
    if unit is None:
        other = L_("This card has the FNUZ forms of FP8, not the OCP ones.") if architecture.fnuz else ""
        return Support("none", _NO_UNIT.get(name) or other or L_("No instruction for it."))
    if unit.status == "none":
        reason = unit.note or Sentence(
            "No instruction in {name} ({capability}).", name=architecture.name, capability=architecture.capability
        )
    else:
        where = L_("Matrix cores") if key.endswith("matrix") else L_("Vector units")
        reason = together(Sentence("{where}: {instruction}.", where=where, instruction=unit.instruction), unit.note)
    return Support(_level(unit), reason, tables.source_text(unit.sources), key)


def by_list(architecture: Architecture) -> dict[str, Support]:
    """The row of an Intel or Apple GPU: what the vendor lists; the rest has no instruction."""
    row = {}
    for name in FORMATS:
        unit = architecture.units.get(name)
        if unit is None:
            row[name] = Support("none", Sentence("{name} lists no unit for it.", name=architecture.name))
        else:
            reason = unit.note or (_NATIVE if unit.status == "native" else _STATUS).format(
                name=architecture.name, status=unit.status
            )
            row[name] = Support(_level(unit), reason, tables.source_text(unit.sources), name)
    return row


def _best(keys: tuple[str, ...], units: Mapping[str, Unit]) -> tuple[str, Unit | None]:
    """The first unit, in order of preference, that the device has at all; among equals one with a known rate."""
    there = [key for key in keys if key in units]
    if not there:
        return "", None
    had = [key for key in there if units[key].status not in ("none", "unknown")] or there
    equals = [key for key in had if units[key].status == units[had[0]].status]
    key = next((key for key in equals if units[key].ops), equals[0])
    return key, units[key]


def _level(unit: Unit) -> Level:
    return next(level for level in LEVELS if level == unit.status)
