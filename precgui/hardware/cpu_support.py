"""Support of each number format by a processor, from its instructions."""

from __future__ import annotations

from precgui.hardware.cpu import Cpu
from precgui.hardware.readings import Missing
from precgui.hardware.support import FORMATS, Level, Support, unknown
from precgui.sentences import L_, Sentence

_SOURCE = L_("Flags of the processor as the system tells them; what torch does with them was measured with torch 2.15")
_ROUNDED = L_("precgui rounds the operands to it and multiplies in FP32 to show its effect.")
_FP8 = ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz")
_PEAK = Missing(L_("peak unknown: no system tells the number of FMA units and the clock under load"))
_Entry = tuple[Level, str]


def cpu_row(cpu: Cpu) -> dict[str, Support]:
    """The row of a processor. Peaks stay unknown: no system reports clocks under load and the number of FMA units."""
    if isinstance(cpu.features, Missing):
        return unknown(
            Sentence("The instructions of this processor are not known: {reason}.", reason=cpu.features.reason)
        )
    nothing: _Entry = ("none", Sentence("No instruction and no arithmetic in torch; {rounded}", rounded=_ROUNDED))
    row: dict[str, _Entry] = dict.fromkeys(FORMATS, nothing)
    row |= {
        "fp64": ("native", Sentence("{vectors}, at half the rate of FP32.", vectors=_vectors(cpu))),
        "fp32": ("native", Sentence("{vectors}.", vectors=_vectors(cpu))),
        "tf32": _tf32(cpu),
        "bf16": _bf16(cpu),
        "fp16": _fp16(cpu),
        "int8": _int8(cpu),
        "int4": ("emulated", L_("Weights of 4 bits are unpacked before the product: it saves memory, not time.")),
        **dict.fromkeys(_FP8, _fp8(cpu)),
    }
    return {name: Support(level, reason, _SOURCE, peak=_PEAK) for name, (level, reason) in row.items()}


def matrix_units(cpu: Cpu) -> bool:
    """AMX tiles that this process may use."""
    return cpu.has("amx_tile") and cpu.amx_permitted is True


def _vectors(cpu: Cpu) -> str:
    for feature, words in (
        ("avx512f", L_("AVX-512 vector units")), ("avx2", L_("AVX2 vector units")), ("sve2", L_("SVE2 vector units")),
        ("sve", L_("SVE vector units")), ("neon", L_("NEON vector units")),
    ):  # fmt: skip
        if cpu.has(feature):
            return words
    return L_("Vector units")


def _amx(cpu: Cpu, feature: str) -> bool:
    return matrix_units(cpu) and cpu.has(feature)


def _tf32(cpu: Cpu) -> _Entry:
    if _amx(cpu, "amx_tf32"):
        return "native", "AMX-TF32 tiles."
    return "none", L_("No TF32 instruction: torch accepts the setting and computes in FP32, bit for bit the same.")


def _bf16(cpu: Cpu) -> _Entry:
    forbidden = ""
    if cpu.has("amx_tile", "amx_bf16"):
        if cpu.amx_permitted is True:
            return "native", L_("AMX-BF16 tiles (TDPBF16PS), FP32 accumulation; the kernel lets this process use them.")
        forbidden = L_("The processor has AMX-BF16 but the kernel does not let this process use it. ")
    if cpu.has("avx512_bf16"):
        return "native", Sentence(
            "{forbidden}AVX-512 BF16 dot products (VDPBF16PS), FP32 accumulation; no AMX tiles.", forbidden=forbidden
        )
    if cpu.has("arm_bf16"):
        return "native", L_("Arm BF16 matrix multiply (BFMMLA), FP32 accumulation.")
    return "emulated", Sentence(
        "{forbidden}No BF16 arithmetic: converted to FP32 and back, 2 to 200 times slower than FP32.",
        forbidden=forbidden,
    )


def _fp16(cpu: Cpu) -> _Entry:
    if _amx(cpu, "amx_fp16"):
        return "native", L_("AMX-FP16 tiles, FP32 accumulation, as this model has them (Linux does not list them).")
    if cpu.has("avx512_fp16"):
        rates = L_("torch multiplies in FP32 at its rate, weight gradients of convolutions are 100 times slower")
        return "native", Sentence(
            "AVX-512 FP16 vector units. But {rates}; precgui emulates FP16 training on a CPU.", rates=rates
        )
    if cpu.has("arm_fp16"):
        return "native", L_("Arm FP16 vector arithmetic, FP16 accumulation.")
    how = L_("F16C converts only") if cpu.has("f16c") else L_("No FP16 arithmetic")
    return (
        "emulated",
        Sentence(
            "{how}: the product is computed in FP32, and torch's kernels are up to 200 times slower than FP32.", how=how
        ),
    )


def _fp8(cpu: Cpu) -> _Entry:
    if _amx(cpu, "amx_fp8"):
        return "native", "AMX-FP8 tiles."
    if cpu.has("arm_fp8"):
        return "native", L_("Arm FP8 multiply-add (FMLA of FP8).")
    slow = L_("its scaled_mm is no faster than FP32, on some processors 1000 times slower")
    return "emulated", Sentence(
        "No FP8 instruction: torch stores and converts it, {slow}; {rounded}", slow=slow, rounded=_ROUNDED
    )


def _int8(cpu: Cpu) -> _Entry:
    if _amx(cpu, "amx_int8"):
        return "native", L_("AMX-INT8 tiles (TDPBUSD), INT32 accumulation; the kernel lets this process use them.")
    if cpu.has("avx512_vnni"):
        return "native", L_("AVX-512 VNNI dot products (VPDPBUSD), INT32 accumulation.")
    if cpu.has("avx_vnni_int8"):
        return "native", L_("AVX-VNNI-INT8 dot products (VPDPBSSD), INT32 accumulation, as this model has them.")
    if cpu.has("avx_vnni"):
        return "native", L_("AVX-VNNI dot products (VPDPBUSD), INT32 accumulation.")
    if cpu.has("arm_i8mm"):
        return "native", L_("Arm INT8 matrix multiply (SMMLA), INT32 accumulation.")
    if cpu.has("arm_dotprod"):
        return "native", L_("Arm INT8 dot products (SDOT), INT32 accumulation.")
    return "emulated", L_("No INT8 dot product: built from 16-bit multiply-add, which can saturate.")
