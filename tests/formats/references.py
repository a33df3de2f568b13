"""Other people's implementations that the formats are checked against."""

from __future__ import annotations

from typing import Any

import gfloat.formats
import ml_dtypes
import numpy as np
from gfloat import Domain, FormatInfo

ML_DTYPES: dict[str, Any] = {
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
    "e4m3fn": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e8m0": ml_dtypes.float8_e8m0fnu,
    "e4m3_ieee": ml_dtypes.float8_e4m3,
    "e3m4_ieee": ml_dtypes.float8_e3m4,
    "e4m3b11fnuz": ml_dtypes.float8_e4m3b11fnuz,
}
GFLOAT_TF32 = FormatInfo(
    "tf32", 19, 11, bias=127, is_signed=True, domain=Domain.Extended, has_nz=True,
    num_high_nans=2**10 - 1, has_subnormals=True, is_twos_complement=False,
)  # fmt: skip
GFLOAT = {
    "tf32": GFLOAT_TF32,
    "bf16": gfloat.formats.format_info_bfloat16,
    "fp16": gfloat.formats.format_info_binary16,
    "e4m3fn": gfloat.formats.format_info_ocp_e4m3,
    "e5m2": gfloat.formats.format_info_ocp_e5m2,
    "e3m2": gfloat.formats.format_info_ocp_e3m2,
    "e2m3": gfloat.formats.format_info_ocp_e2m3,
    "e2m1": gfloat.formats.format_info_ocp_e2m1,
}


def codes_of(name: str, values: Any) -> Any:
    """The codes that the reference stores for float32 values, as unsigned integers."""
    dtype = np.dtype(ML_DTYPES[name])
    with np.errstate(all="ignore"):
        stored = np.asarray(values, np.float32).astype(dtype)
    return stored.view(np.uint16 if dtype.itemsize == 2 else np.uint8)


def all_values(name: str, bits: int) -> Any:
    """The doubles that the reference reads from each code in turn."""
    dtype = np.dtype(ML_DTYPES[name])
    codes = np.arange(1 << bits, dtype=np.uint16 if dtype.itemsize == 2 else np.uint8)
    with np.errstate(all="ignore"):
        return codes.view(dtype).astype(np.float64)


def bits_equal(left: Any, right: Any) -> Any:
    """Elementwise: the same double, signed zeros apart, any NaN equal to any other."""
    with np.errstate(invalid="ignore"):
        left, right = np.asarray(left, np.float64), np.asarray(right, np.float64)
    return (np.isnan(left) & np.isnan(right)) | ((left == right) & (np.signbit(left) == np.signbit(right)))


def hard_inputs(values: Any, limit: int = 4000) -> Any:
    """float32 midpoints of neighbouring values, one float32 ulp to each side of them, and the special values."""
    finite = np.unique(values[np.isfinite(values)])
    middles = (finite[1:] + finite[:-1]) / 2
    if len(middles) > limit:
        middles = np.random.default_rng(0).choice(middles, limit, replace=False)
    ties = middles.astype(np.float32)
    top = np.abs(finite).max()
    edge = np.minimum([top, top * 1.04, top * 1.07, top * 2, 1e30], 3.4e38).astype(np.float32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 464, 465, 480, 65520, 61440], np.float32)
    parts = [
        ties,
        np.nextafter(ties, np.float32(np.inf)),
        np.nextafter(ties, np.float32(-np.inf)),
        edge,
        -edge,
        special,
    ]
    return np.concatenate([*parts, finite.astype(np.float32)])


def signal_to_noise_db(before: np.ndarray, after: np.ndarray) -> float:
    """10 log10(sum x^2 / sum (x - q)^2)."""
    return float(10 * np.log10(np.sum(before**2) / np.sum((before - after) ** 2)))
