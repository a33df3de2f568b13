"""The processor: its name, its generation, and which instructions for number formats it has and may use."""

from __future__ import annotations

import ctypes
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from precgui.hardware.readings import Missing, Reading
from precgui.sentences import L_, Sentence

CPUINFO = Path("/proc/cpuinfo")

# Canonical names of what matters for number formats, by the flag of Linux (x86 `flags`, Arm `Features`).
_LINUX = {
    "f16c": "f16c", "avx2": "avx2", "avx512f": "avx512f", "avx512_vnni": "avx512_vnni", "avx_vnni": "avx_vnni",
    "avx_vnni_int8": "avx_vnni_int8", "avx_ne_convert": "avx_ne_convert", "avx512_bf16": "avx512_bf16",
    "avx512_fp16": "avx512_fp16", "amx_tile": "amx_tile", "amx_bf16": "amx_bf16", "amx_int8": "amx_int8",
    "amx_fp16": "amx_fp16", "amx_complex": "amx_complex", "amx_fp8": "amx_fp8", "amx_tf32": "amx_tf32",
    "avx10_1": "avx10_1", "avx10_2": "avx10_2", "avx512_vpopcntdq": "avx512_vpopcntdq",
    "asimd": "neon", "asimdhp": "arm_fp16", "asimddp": "arm_dotprod", "bf16": "arm_bf16", "i8mm": "arm_i8mm",
    "sve": "sve", "sve2": "sve2", "svebf16": "sve_bf16", "sme": "sme", "sme2": "sme2", "f8fma": "arm_fp8",
}  # fmt: skip
# The same by the key of torch.cpu.get_capabilities() where it differs, and of macOS's sysctl.
_TORCH = {"avx512_f": "avx512f", "fp16_arith": "arm_fp16", "dot": "arm_dotprod", "i8mm": "arm_i8mm",
          "bf16": "arm_bf16"}  # fmt: skip
_MACOS = {"FEAT_BF16": "arm_bf16", "FEAT_I8MM": "arm_i8mm", "FEAT_FP16": "arm_fp16", "FEAT_DotProd": "arm_dotprod",
          "FEAT_SME": "sme", "FEAT_SME2": "sme2"}  # fmt: skip

# Generation by (family, models); Intel is family 6 up to Granite Rapids.
_AMD_GENERATIONS = {
    23: [(range(0x30), "Zen"), (range(0x30, 0x100), "Zen 2")],
    25: [
        (range(0x10, 0x20), "Zen 4"), (range(0x60, 0x80), "Zen 4"), (range(0xA0, 0xB0), "Zen 4"),
        (range(0x60), "Zen 3"),
    ],
    26: [(range(0x50), "Zen 5"), (range(0x60, 0x80), "Zen 5")],
}  # fmt: skip
_INTEL_GENERATIONS = {
    63: "Haswell-EP", 79: "Broadwell-EP", 85: "Skylake-SP", 106: "Ice Lake-SP", 108: "Ice Lake-D", 125: "Ice Lake",
    126: "Ice Lake", 140: "Tiger Lake", 141: "Tiger Lake", 143: "Sapphire Rapids", 151: "Alder Lake",
    154: "Alder Lake", 167: "Rocket Lake", 170: "Meteor Lake", 172: "Meteor Lake", 173: "Granite Rapids",
    174: "Granite Rapids-D", 175: "Sierra Forest", 181: "Arrow Lake", 183: "Raptor Lake", 186: "Raptor Lake",
    189: "Lunar Lake", 190: "Alder Lake-N", 191: "Raptor Lake", 197: "Arrow Lake", 198: "Arrow Lake",
    204: "Panther Lake", 207: "Emerald Rapids", 221: "Clearwater Forest",
}  # fmt: skip
# A hypervisor may report the model number of an older generation beside AMX.
_HAVE_AMX = {"Sapphire Rapids", "Emerald Rapids", "Granite Rapids", "Granite Rapids-D"}
_ARM_PARTS = {
    ("0x41", "0xd0b"): "Cortex-A76", ("0x41", "0xd0c"): "Neoverse N1 (Graviton2, Altra)",
    ("0x41", "0xd40"): "Neoverse V1 (Graviton3)", ("0x41", "0xd49"): "Neoverse N2",
    ("0x41", "0xd4f"): "Neoverse V2 (Graviton4, Grace)", ("0x41", "0xd84"): "Neoverse V3",
    ("0x41", "0xd83"): "Neoverse V3AE", ("0x41", "0xd8e"): "Neoverse N3", ("0xc0", "0xac3"): "AmpereOne",
    ("0xc0", "0xac4"): "AmpereOne (A1A)", ("0x46", "0x001"): "A64FX",
}  # fmt: skip

# What Linux knows of but leaves out of /proc/cpuinfo (its names are empty in cpufeatures.h), by generation and by the
# listed feature without which a hypervisor has hidden it.
_UNLISTED = {
    "Granite Rapids": ("amx_tile", {"amx_fp16", "avx10_1"}),
    "Granite Rapids-D": ("amx_tile", {"amx_fp16", "amx_complex", "avx10_1"}),
    "Sierra Forest": ("avx_vnni", {"avx_vnni_int8", "avx_ne_convert"}),
    "Arrow Lake": ("avx_vnni", {"avx_vnni_int8", "avx_ne_convert"}),
    "Lunar Lake": ("avx_vnni", {"avx_vnni_int8", "avx_ne_convert"}),
}

_ARCH_GET_XCOMP_SUPP = 0x1021
_SYS_ARCH_PRCTL = 158
_XTILEDATA = 1 << 18


@dataclass(frozen=True, slots=True)
class Cpu:
    """A processor. `features` is Missing where this system does not list them."""

    name: str
    machine: str  # x86_64, aarch64 ...
    generation: str
    features: Reading[frozenset[str]]
    amx_permitted: Reading[bool]

    def has(self, *names: str) -> bool:
        """Whether all of these features are known to be present."""
        return not isinstance(self.features, Missing) and set(names) <= self.features


def parse_cpuinfo(text: str) -> tuple[str, str, frozenset[str]]:
    """(name, generation, features) from the first processor of a /proc/cpuinfo text; empty name for Arm."""
    first = text.strip().split("\n\n", 1)[0]
    entries = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}
    flags = (entries.get("flags") or entries.get("Features") or "").split()
    listed = frozenset(_LINUX[flag] for flag in flags if flag in _LINUX)
    generation = _generation(entries, listed)
    witness, unlisted = _UNLISTED.get(generation, ("", set()))
    return entries.get("model name", ""), generation, listed | unlisted if witness in listed else listed


def _generation(entries: Mapping[str, str], features: frozenset[str]) -> str:
    vendor, family, model = entries.get("vendor_id", ""), _int(entries, "cpu family"), _int(entries, "model")
    if vendor == "GenuineIntel" and family == 6:
        return _intel_generation(model, features)
    if vendor == "AuthenticAMD":
        return next((name for models, name in _AMD_GENERATIONS.get(family, ()) if model in models), "")
    return _ARM_PARTS.get((entries.get("CPU implementer", ""), entries.get("CPU part", "")), "")


def _intel_generation(model: int, features: frozenset[str]) -> str:
    named = _skylake_kind(features) if model == 85 else _INTEL_GENERATIONS.get(model, "")
    return L_("Sapphire Rapids or later") if "amx_tile" in features and named not in _HAVE_AMX else named


def _skylake_kind(features: frozenset[str]) -> str:
    """Model 85 is three generations, which differ in their added features."""
    if "avx512_bf16" in features:
        return "Cooper Lake"
    return "Cascade Lake" if "avx512_vnni" in features else "Skylake-SP"


def _int(entries: Mapping[str, str], key: str) -> int:
    text = entries.get(key, "")
    return int(text) if text.isdigit() else -1


def read_cpu(torch_features: Mapping[str, object] | None = None) -> Cpu:
    """The processor of this machine. Where the system lists no features, those of `torch.cpu.get_capabilities()` count,
    not before: torch claims AMX-FP16 on processors that lack it."""
    system, machine = platform.system(), platform.machine()
    reported = _from_torch(torch_features or {})
    if system == "Linux":
        name, generation, features = parse_cpuinfo(_cpuinfo())
        features = features or reported
        return Cpu(name or generation or machine, machine, generation, features, amx_permission(features))
    if system == "Darwin":
        name, result = _macos()
        return Cpu(name or machine, machine, name, result or reported, Missing(L_("macOS has no AMX of Intel's kind")))
    name = platform.processor() or machine
    supported_features: Reading[frozenset[str]] = reported or Missing(
        Sentence("{system} does not list them; `precgui detect` asks torch", system=system)
    )
    return Cpu(name, machine, "", supported_features, Missing(Sentence("{system} does not tell", system=system)))


def _cpuinfo() -> str:
    """The first processor's block: enough, and quick where there are hundreds."""
    lines: list[str] = []
    try:
        with CPUINFO.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                if not line.strip() and lines:
                    break
                lines.append(line)
    except OSError:
        return ""
    return "".join(lines)


def _from_torch(reported: Mapping[str, object]) -> frozenset[str]:
    named = {_TORCH.get(key, key) for key, value in reported.items() if value is True}
    return frozenset(named & {*_LINUX.values()})


def _macos() -> tuple[str, frozenset[str]]:
    command = ["/usr/sbin/sysctl", "machdep.cpu.brand_string", "hw.optional.arm"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=5).stdout
    entries = dict(line.split(": ", 1) for line in answer.splitlines() if ": " in line)
    features = {name for key, name in _MACOS.items() if entries.get(f"hw.optional.arm.{key}") == "1"}
    return entries.get("machdep.cpu.brand_string", ""), frozenset(features)


def amx_permission(features: frozenset[str]) -> Reading[bool]:
    """Whether the kernel lets a process use AMX tiles: it saves their state only for those that ask."""
    if "amx_tile" not in features:
        return Missing(L_("this processor has no AMX"))
    mask = ctypes.c_uint64(0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_SYS_ARCH_PRCTL, _ARCH_GET_XCOMP_SUPP, ctypes.byref(mask)):
        return False
    return bool(mask.value & _XTILEDATA)
