"""Encoding and decoding against ml_dtypes, NumPy and gfloat."""

from __future__ import annotations

import gfloat
import numpy as np
import pytest

from precgui.formats.codec import canonical_nan, decode, encode, ordinal_of, step
from precgui.formats.real import from_float, nan, to_float
from precgui.formats.registry import formats, get
from precgui.formats.rounding import CastPolicy, RoundingMode
from tests.formats.references import GFLOAT, ML_DTYPES, all_values, bits_equal, codes_of, hard_inputs

E8M0_WRONG_IN_ML_DTYPES = np.float32(1.5 * 2.0**-127)


@pytest.mark.parametrize("name", ML_DTYPES)
def test_that_every_code_means_what_ml_dtypes_reads_from_it(name: str) -> None:
    fmt = get(name)
    ours = [to_float(decode(code, fmt).real) for code in range(1 << fmt.bits)]
    assert bits_equal(ours, all_values(name, fmt.bits)).all()


@pytest.mark.parametrize("name", ML_DTYPES)
def test_that_values_ties_and_their_neighbours_encode_as_in_ml_dtypes(name: str) -> None:
    fmt = get(name)
    inputs = hard_inputs(all_values(name, fmt.bits), limit=1500)
    if fmt.bits == 16:
        inputs = inputs[:: max(1, len(inputs) // 8000)]
    if name == "e8m0":  # ml_dtypes rounds subnormal float32 just below this tie upwards
        inputs = inputs[inputs != np.nextafter(E8M0_WRONG_IN_ML_DTYPES, np.float32(0))]
    ours = [encode(from_float(float(value)), fmt) for value in inputs]
    assert np.array_equal(ours, codes_of(name, inputs))


@pytest.mark.parametrize("rounding", ["toward_zero", "up", "down", "nearest_away", "nearest_even"])
@pytest.mark.parametrize("name", GFLOAT)
def test_that_the_rounding_modes_agree_with_gfloat(name: str, rounding: RoundingMode) -> None:
    modes = {
        "toward_zero": gfloat.RoundMode.TowardZero, "up": gfloat.RoundMode.TowardPositive,
        "down": gfloat.RoundMode.TowardNegative, "nearest_even": gfloat.RoundMode.TiesToEven,
        "nearest_away": gfloat.RoundMode.TiesToAway,
    }  # fmt: skip
    fmt, info = get(name), GFLOAT[name]
    sat = not fmt.has_nan
    rng = np.random.default_rng(7)
    top = min(fmt.emax + 2, 127)
    inputs = rng.uniform(-1, 1, 300) * 2.0 ** rng.uniform(fmt.emin - fmt.mantissa_bits - 2, top, 300)
    cast_policy = CastPolicy(rounding, overflow="saturate" if sat else "ieee")
    ours = [to_float(decode(encode(from_float(v), fmt, cast_policy), fmt).real) for v in inputs]
    theirs = [gfloat.round_float(info, v, modes[rounding], sat) for v in inputs]
    assert bits_equal(ours, theirs).all()


def test_that_fp32_and_fp64_agree_with_numpy_on_random_bit_patterns() -> None:
    words = np.random.default_rng(1).integers(0, 2**64, 3000, dtype=np.uint64)
    doubles = words.view(np.float64)
    fp64, fp32 = get("fp64"), get("fp32")
    with np.errstate(all="ignore"):
        singles = doubles.astype(np.float32)
    for word, double, single in zip(words.tolist(), doubles.tolist(), singles, strict=True):
        assert bits_equal(to_float(decode(word, fp64).real), double)
        assert bits_equal(to_float(decode(encode(from_float(double), fp32), fp32).real), float(single))


@pytest.mark.parametrize("name", [n for n, f in formats().items() if f.bits <= 10])
def test_that_every_finite_value_encodes_to_itself_in_every_rounding(name: str) -> None:
    fmt = get(name)
    for code in range(fmt.finite_values if name == "nf4" else 1 << fmt.bits):
        real = decode(code, fmt).real
        if real.is_finite:
            for rounding in ("nearest_even", "toward_zero", "up", "down", "to_odd", "stochastic"):
                assert encode(real, fmt, CastPolicy(rounding), random=0) == code


def test_that_a_nan_keeps_its_sign_its_kind_and_its_payload() -> None:
    fp32 = get("fp32")
    for code in (0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FC12345, 0xFF812345):
        assert encode(decode(code, fp32).real, fp32) == code
    assert decode(0x7F800001, fp32).category == "signalling nan"
    assert encode(nan(), fp32) == canonical_nan(fp32) == 0x7FC00000


@pytest.mark.parametrize(
    ("value", "default", "saturated"), [(464, 448, 448), (465, np.nan, 448), (np.inf, np.nan, 448)]
)
def test_that_overflow_of_e4m3fn_follows_the_switch(value: float, default: float, saturated: float) -> None:
    fmt = get("e4m3fn")
    kept = decode(encode(from_float(value), fmt), fmt).real
    cut = decode(encode(from_float(value), fmt, CastPolicy(overflow="saturate")), fmt).real
    assert bits_equal(to_float(kept), default)
    assert to_float(cut) == saturated


def test_that_overflow_to_nan_takes_infinity_along() -> None:
    fmt, cast_policy = get("fp16"), CastPolicy(overflow="nan")
    for value in (65520.0, -1e9, np.inf):
        assert decode(encode(from_float(value), fmt, cast_policy), fmt).real.kind == "nan"
    assert encode(from_float(65504.0), fmt, cast_policy) == 0x7BFF


@pytest.mark.parametrize("name", ["fp16", "e4m3fn", "e4m3fnuz", "e2m1", "int4", "nf4", "e8m0"])
def test_that_stepping_visits_every_value_once_in_order(name: str) -> None:
    fmt = get(name)
    code = encode(from_float(-1e9), fmt, CastPolicy(overflow="saturate"))
    seen = [ordinal_of(fmt, code)]
    for _ in range(fmt.finite_values - 1):
        code = step(fmt, code, 1)
        seen.append(ordinal_of(fmt, code))
    assert seen == list(range(fmt.min_ordinal, fmt.max_ordinal + 1))


def test_that_stepping_reaches_infinity_and_comes_back() -> None:
    fp16 = get("fp16")
    assert step(fp16, 0x7BFF, 1) == 0x7C00
    assert step(fp16, 0x7C00, 5) == 0x7C00
    assert step(fp16, 0x7C00, -1) == 0x7BFF
    assert step(fp16, 0xFC00, 1) == 0xFBFF
    assert step(fp16, 0x7E00, 1) == 0x7E00


def test_that_a_code_too_wide_for_the_format_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit into the 8 bits of e5m2"):
        decode(0x100, get("e5m2"))
