"""Block formats and affine quantisation: by hand, by property, and against gfloat."""

from __future__ import annotations

import gfloat
import gfloat.formats
import numpy as np
import pytest

from precgui.formats.affine import choose_scale, quantize_affine
from precgui.formats.arrays import quantize_array, values_of
from precgui.formats.blocks import (
    SCALE_RULES,
    ScaleRule,
    code_book_blocks,
    mx_exponents,
    quantize_blocks_array,
)
from precgui.formats.model import CodeBook, IntFormat
from precgui.formats.registry import UnknownFormatError, blocks, get
from tests.formats.references import signal_to_noise_db

NORMAL = np.random.default_rng(0).normal(size=(64, 128)).astype(np.float32)
MX = [name for name in blocks() if name != "nvfp4"]


@pytest.mark.parametrize("name", ["mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp4"])
def test_that_the_floor_rule_agrees_with_gfloat(name: str) -> None:
    info = getattr(gfloat.formats, "format_info_" + {"mxfp4": "mxfp4_e2m1"}.get(name, name))
    rows = NORMAL[:8].astype(np.float64).reshape(-1, 32) * 10.0 ** np.arange(-16, 16)[:, None]
    ours = quantize_blocks_array(rows, name).values
    theirs = [gfloat.quantize_block(info, row, gfloat.compute_scale_amax) for row in rows]
    assert np.array_equal(ours, np.array(theirs))


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("floor", [-2, -2, -1, 0]), ("ceil", [-2, -1, 0, 1]), ("even", [-2, -2, 0, 0]), ("rceil", [-2, -2, 0, 1])],
)
def test_that_the_scale_rules_follow_their_formulas(rule: ScaleRule, expected: list[int]) -> None:
    peak = np.array([1.0, 1.4, 3.6, 6.1])
    assert mx_exponents(peak, get("e2m1"), rule).tolist() == expected


@pytest.mark.parametrize("rule", SCALE_RULES)
@pytest.mark.parametrize("name", MX)
def test_that_elements_times_scale_are_the_values(name: str, rule: ScaleRule) -> None:
    result = quantize_blocks_array(NORMAL, name, rule)
    element = get(blocks()[name].element)
    assert np.isin(result.elements, values_of(element)).all()
    assert np.array_equal((result.elements * result.scales[:, None]).reshape(NORMAL.shape), result.values)
    assert (np.frexp(result.scales)[0] == 0.5).all()
    if rule in ("ceil", "rceil"):
        assert not result.clipped.any()


def test_that_a_rule_that_never_clips_costs_what_is_published_for_it() -> None:
    """Signal-to-noise of MXFP4 on normal data: 18.8, 19.0, 18.7 and 16.8 dB for the four rules (torchao)."""
    data = np.random.default_rng(1).normal(size=(512, 512))
    found = {rule: signal_to_noise_db(data, quantize_blocks_array(data, "mxfp4", rule).values) for rule in SCALE_RULES}
    assert found["floor"] == pytest.approx(18.79, abs=0.1)
    assert found["even"] == pytest.approx(19.02, abs=0.1)
    assert found["rceil"] == pytest.approx(18.74, abs=0.1)
    assert found["ceil"] == pytest.approx(16.82, abs=0.1)
    assert signal_to_noise_db(data, quantize_blocks_array(data, "nvfp4").values) == pytest.approx(20.43, abs=0.1)


def test_that_nvfp4_uses_both_levels_of_scale() -> None:
    result = quantize_blocks_array(NORMAL * 1e-6, "nvfp4")
    local = result.scales / result.tensor_scale
    assert np.allclose(local.max(), 448, rtol=1e-6)
    nearest = quantize_array(local, get("ue4m3"))
    assert np.allclose(local, nearest, rtol=1e-6)
    assert signal_to_noise_db(NORMAL * 1e-6, result.values) > 19


@pytest.mark.parametrize("name", blocks())
def test_that_zeros_odd_sizes_and_poison_are_survived(name: str) -> None:
    assert not quantize_blocks_array(np.zeros((3, 40)), name).values.any()
    assert quantize_blocks_array(np.ones((2, 3, 37)), name).values.shape == (2, 3, 37)
    assert quantize_blocks_array(np.ones((0, 32)), name).values.shape == (0, 32)
    assert quantize_blocks_array(1.0, name).values.shape == ()
    poisoned = np.ones((2, 64))
    poisoned[0, 5], poisoned[1, 40] = np.nan, np.inf
    values = quantize_blocks_array(poisoned, name).values
    block = blocks()[name].block
    assert np.isnan(values[0, :block]).all()
    assert np.isfinite(values[0, block:]).all()
    assert np.isnan(values[1, 40])


def test_that_unknown_names_and_rules_are_refused() -> None:
    with pytest.raises(UnknownFormatError, match="no block format"):
        quantize_blocks_array(NORMAL, "mxfp5")
    with pytest.raises(ValueError, match="no scale rule"):
        quantize_blocks_array(NORMAL, "mxfp4", "round")


def test_that_nf4_maps_the_largest_value_of_each_block_onto_one() -> None:
    book = get("nf4")
    assert isinstance(book, CodeBook)
    result = code_book_blocks(NORMAL, book)
    assert (np.abs(result.elements).max(axis=1) == 1).all()
    assert signal_to_noise_db(NORMAL, result.values) > 19


def _int(name: str) -> IntFormat:
    fmt = get(name)
    assert isinstance(fmt, IntFormat)
    return fmt


def test_that_affine_scales_follow_the_textbook() -> None:
    scale, zero = choose_scale(-1.0, 3.0, _int("uint8"), symmetric=False)
    assert (float(scale), int(zero)) == (4 / 255, 64)
    scale, zero = choose_scale(-1.0, 3.0, _int("int8"), symmetric=True)
    assert (float(scale), int(zero)) == (3 / 127, 0)


@pytest.mark.parametrize("name", ["int8", "int4", "int2", "uint8", "uint4"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_that_affine_errors_stay_within_half_a_step(name: str, symmetric: bool) -> None:
    fmt = _int(name)
    for options in ({}, {"axis": 1}, {"group": 32}):
        result = quantize_affine(NORMAL, fmt, symmetric=symmetric, **options)
        kept = ~result.clipped
        assert (np.abs(result.values - NORMAL)[kept] <= result.scale.max() / 2 + 1e-9).all()
        assert result.codes.min() >= fmt.min_ordinal
        assert result.codes.max() <= fmt.max_ordinal
        assert np.array_equal(result.values == 0, result.zeroed | (NORMAL == 0))
    with pytest.raises(ValueError, match="does not divide"):
        quantize_affine(NORMAL, fmt, group=33)


def test_that_a_given_scale_and_zero_point_are_used() -> None:
    result = quantize_affine([0.0, 0.26, 1.0, 100.0], _int("uint4"), scale=0.25, zero_point=3)
    assert result.codes.tolist() == [3, 4, 7, 15]
    assert result.values.tolist() == [0.0, 0.25, 1.0, 3.0]
    assert result.clipped.tolist() == [False, False, False, True]
