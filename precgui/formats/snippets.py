"""A stored value as text for other programs: Python, C, NumPy, torch, hexadecimal, decimal."""

from __future__ import annotations

from precgui.formats import text
from precgui.formats.model import FloatFormat, Format
from precgui.formats.report import Report
from precgui.sentences import L_

_NUMPY = {"fp64": "uint64).view(np.float64", "fp32": "uint32).view(np.float32", "fp16": "uint16).view(np.float16"}
_ML_DTYPES = {
    "bf16": ("uint16", "bfloat16"), "e4m3fn": ("uint8", "float8_e4m3fn"), "e5m2": ("uint8", "float8_e5m2"),
    "e4m3fnuz": ("uint8", "float8_e4m3fnuz"), "e5m2fnuz": ("uint8", "float8_e5m2fnuz"),
    "e8m0": ("uint8", "float8_e8m0fnu"), "e3m2": ("uint8", "float6_e3m2fn"), "e2m3": ("uint8", "float6_e2m3fn"),
    "e2m1": ("uint8", "float4_e2m1fn"),
}  # fmt: skip
_TORCH = {
    "fp64": ("int64", "float64"), "fp32": ("int32", "float32"), "fp16": ("int16", "float16"),
    "bf16": ("int16", "bfloat16"), "e4m3fn": ("uint8", "float8_e4m3fn"), "e5m2": ("uint8", "float8_e5m2"),
    "e4m3fnuz": ("uint8", "float8_e4m3fnuz"), "e5m2fnuz": ("uint8", "float8_e5m2fnuz"),
}  # fmt: skip


def copies(report: Report) -> dict[str, str]:
    """Texts to copy, by the name of the form; only forms that give back exactly this value."""
    results = {
        L_("Hexadecimal"): report.bits,
        L_("Binary"): f"0b{report.binary}",
        L_("Exact decimal"): text.exact(report.stored.real),
    }
    real = report.stored.real
    if real.is_finite:
        results["n*2^k"] = text.times_power_of_two(real.value)
    if python := _python(report):
        results["Python"] = python
    if c := _c(report):
        results["C"] = c
    results |= _libraries(report.format, report.stored.code)
    return results


def _python(report: Report) -> str | None:
    real = report.stored.real
    if not real.is_finite:
        return f"float('{text.exact(real)}')"
    if real.is_zero:
        return "-0.0" if real.negative else "0.0"
    return f"float.fromhex('{text.hex_float(real.value)}')" if _fits_double(report.format) else None


def _fits_double(fmt: Format) -> bool:
    if not isinstance(fmt, FloatFormat):
        return True
    return fmt.mantissa_bits <= 52 and fmt.emax <= 1023 and fmt.emin - fmt.mantissa_bits >= -1074


def _fits_single(fmt: Format) -> bool:
    """Whether every value of the format is a C float."""
    if not isinstance(fmt, FloatFormat):
        return True
    return fmt.mantissa_bits <= 23 and fmt.emax <= 127 and fmt.emin - fmt.mantissa_bits >= -149


def _c(report: Report) -> str | None:
    real, sign = report.stored.real, "-" if report.stored.real.negative else ""
    if real.kind != "finite":
        return f"{sign}{'INFINITY' if real.kind == 'inf' else 'NAN'}"
    if not _fits_double(report.format):
        return None
    suffix = "f" if _fits_single(report.format) else ""
    return f"{sign}0.0{suffix}" if real.is_zero else f"{text.hex_float(real.value)}{suffix}"


def _libraries(fmt: Format, code: int) -> dict[str, str]:
    results = {}
    if fmt.name in _NUMPY:
        results["NumPy"] = f"np.array({code:#x}, np.{_NUMPY[fmt.name]})"
    if fmt.name in _ML_DTYPES:
        word, dtype = _ML_DTYPES[fmt.name]
        results["ml_dtypes"] = f"np.array({code:#x}, np.{word}).view(ml_dtypes.{dtype})"
    if fmt.name in _TORCH:
        word, dtype = _TORCH[fmt.name]
        bits = int(word[-2:].lstrip("t")) if word != "uint8" else 8
        signed = code - (1 << bits) if word != "uint8" and code >> (bits - 1) else code
        results["torch"] = f"torch.tensor({signed:#x}, dtype=torch.{word}).view(torch.{dtype})"
    return results
