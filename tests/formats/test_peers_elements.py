"""Rounding of elements against pychop, qtorch and microxcaling, where they are installed, with their conventions.

pychop works in float64: one unit in the last place of a double below a power of two it takes the wrong binade (log2),
zero has no sign, the highest exponent is kept for infinity as in IEEE 754 and what is beyond becomes 0, and a directed
rounding takes numbers near the smallest ones of the host to 0: compared where none of these is met.
qtorch rounds ties away from zero, has no infinity, takes subnormals just below a tie for the tie, and compiles itself
at its first import with ninja and a C++ compiler: compared on normal values, and skipped without them.
microxcaling takes the float32 just below half the smallest subnormal for the tie: compared from that subnormal on; its
place: `tests/engine/quantize/test_peers_blocks.py`.
gfloat: conventions of E8M0 differ (ties alternate there and go up here, as in ml_dtypes), so it is left out.
"""

from __future__ import annotations

from typing import Any

import gfloat
import numpy as np
import pytest

from precgui.formats.arrays import quantize_array
from precgui.formats.registry import get
from precgui.formats.rounding import CastPolicy, RoundingMode
from tests.formats.references import GFLOAT, all_values, bits_equal, hard_inputs

RNG = np.random.default_rng(3)
FIELDS = {"bf16": (8, 7), "fp16": (5, 10), "e4m3fn": (4, 3), "e5m2": (5, 2), "e3m2": (3, 2), "e2m1": (2, 1)}
PYCHOP_ROUNDINGS: dict[RoundingMode, int] = {"nearest_even": 1, "up": 2, "down": 3, "toward_zero": 4}


def _in_range(name: str) -> Any:
    """Random values, ties and their neighbours that the format does not overflow on."""
    fmt = get(name)
    spread = (RNG.normal(size=20_000) * 2.0 ** RNG.integers(-8, 5, 20_000)).astype(np.float32)
    values = np.concatenate([spread, hard_inputs(all_values(name, fmt.bits))])
    return values[np.abs(values) <= np.float32(float(fmt.max_finite))]


def _rounded(name: str, values: Any, rounding: RoundingMode, *, saturate: bool = False) -> Any:
    return quantize_array(values, get(name), CastPolicy(rounding, "saturate" if saturate else "ieee"), 0)


@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize("name", ["bf16", "fp16", "e4m3fn", "e5m2", "e3m2", "e2m3", "e2m1"])
def test_that_values_are_those_of_gfloat(name: str, saturate: bool) -> None:
    fmt = get(name)
    values = hard_inputs(all_values(name, fmt.bits)).astype(np.float64)
    values = values[~np.isnan(values)]
    if not (saturate or fmt.has_nan):  # gfloat refuses overflow of a format without infinity and NaN
        values = values[np.abs(values) <= float(fmt.max_finite)]
    theirs = gfloat.round_ndarray(GFLOAT[name], values, gfloat.RoundMode.TiesToEven, saturate)
    ours = _rounded(name, values, "nearest_even", saturate=saturate)
    assert bits_equal(ours, theirs).all()


@pytest.mark.parametrize("rounding", PYCHOP_ROUNDINGS)
@pytest.mark.parametrize("name", FIELDS)
def test_that_values_are_those_of_pychop(name: str, rounding: RoundingMode) -> None:
    pychop = pytest.importorskip("pychop")
    exponent, mantissa = FIELDS[name]
    values = _in_range(name).astype(np.float64)
    top = (2 - 2.0**-mantissa) * 2.0 ** (2 ** (exponent - 1) - 1)  # of a format with infinity
    values = values[(np.abs(values) <= top) & ((values == 0) | (np.abs(values) > 2.0**-140))]
    pychop.backend("numpy")
    chop = pychop.Chop(exp_bits=exponent, sig_bits=mantissa, rmode=PYCHOP_ROUNDINGS[rounding], subnormal=True)
    theirs = np.asarray(chop(values))
    ours = _rounded(name, values, rounding)
    assert len(values) > 5_000
    assert (ours == theirs).all()


@pytest.mark.parametrize("name", FIELDS)
def test_that_values_are_those_of_qtorch(name: str) -> None:
    torch = pytest.importorskip("torch")
    try:
        quant: Any = pytest.importorskip("qtorch.quant")
    except (RuntimeError, OSError) as error:
        pytest.skip(f"qtorch does not compile here: {error}")
    exponent, mantissa = FIELDS[name]
    values = _in_range(name)
    values = values[np.abs(values) >= float(get(name).min_normal)]
    theirs = quant.float_quantize(torch.from_numpy(values), exponent, mantissa, "nearest").numpy()
    ours = _rounded(name, values, "nearest_away").astype(np.float32)
    within = np.isfinite(ours) & (np.abs(ours) < float(get(name).max_finite))
    assert (ours == theirs)[within].all()


@pytest.mark.parametrize("rounding", ["nearest_even", "nearest_away", "toward_zero"])
@pytest.mark.parametrize("name", FIELDS)
def test_that_values_are_those_of_microxcaling(name: str, rounding: RoundingMode) -> None:
    elemwise = pytest.importorskip("mx.elemwise_ops")
    torch = pytest.importorskip("torch")
    word = {"nearest_even": "even", "nearest_away": "nearest", "toward_zero": "floor"}[rounding]
    kind = {"bf16": "bfloat16", "fp16": "float16", "e4m3fn": "fp8_e4m3", "e5m2": "fp8_e5m2", "e3m2": "fp6_e3m2",
            "e2m1": "fp4_e2m1"}[name]  # fmt: skip
    values = _in_range(name)
    values = values[np.abs(values) >= float(get(name).min_subnormal)]
    theirs = elemwise._quantize_elemwise(torch.from_numpy(values), kind, round=word, allow_denorm=True).numpy()
    assert (_rounded(name, values, rounding) == theirs).all()
