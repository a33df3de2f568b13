"""Arithmetic in a format against NumPy and ml_dtypes, which round each operation correctly."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from precgui.formats.arithmetic import dot, kahan_total, operate, total
from precgui.formats.operations import square_root
from precgui.formats.parse import parse
from precgui.formats.real import finite, from_float, infinity, to_float
from precgui.formats.registry import get
from precgui.formats.rounding import Convention
from tests.formats.references import bits_equal

TYPES = {"fp16": np.float16, "fp32": np.float32, "bf16": ml_dtypes.bfloat16, "e4m3fn": ml_dtypes.float8_e4m3fn}


@pytest.mark.parametrize("operation", ["+", "-", "*", "/", "sqrt"])
@pytest.mark.parametrize("name", TYPES)
def test_that_each_operation_rounds_as_the_reference(name: str, operation: str) -> None:
    rng = np.random.default_rng(3)
    left, right = (rng.normal(size=200) * 10.0 ** rng.integers(-2, 3, 200) for _ in range(2))
    left[:6], right[:6] = [0.0, -0.0, np.inf, np.inf, 1.0, np.nan], [0.0, -0.0, -np.inf, np.inf, 0.0, 1.0]
    a, b = left.astype(TYPES[name]), right.astype(TYPES[name])
    with np.errstate(all="ignore"):
        theirs = {"+": a + b, "-": a - b, "*": a * b, "/": a / b, "sqrt": np.sqrt(a)}[operation].astype(float)
    operands = [(x,) if operation == "sqrt" else (x, y) for x, y in zip(a.astype(float), b.astype(float), strict=True)]
    fmt = get(name)
    ours = [to_float(operate(operation, [from_float(x) for x in pair], fmt).rounded) for pair in operands]
    assert bits_equal(ours, theirs).all()


def test_that_a_fused_multiply_add_rounds_once() -> None:
    fp16 = get("fp16")
    a = parse("nextup(1, fp16)")
    fused = operate("fma", [a, a, finite(-1)], fp16)
    apart = operate("-", [operate("*", [a, a], fp16).rounded, finite(1)], fp16)
    assert fused.exact.value == Fraction(2049, 2**20)
    assert fused.rounded.value == Fraction(2050, 2**20) or fused.rounded.value == Fraction(2048, 2**20)
    assert fused.rounded.value != apart.rounded.value or fused.rounded.value == Fraction(2048, 2**20)
    assert apart.rounded.value == Fraction(2048, 2**20)


def test_that_a_sum_of_ones_stops_where_the_format_runs_out_of_integers() -> None:
    ones = [finite(1)] * 3000
    assert total(ones, get("fp16")).rounded.value == 2048
    assert total(ones[:400], get("bf16")).rounded.value == 256
    assert total(ones, get("fp16")).exact.value == 3000
    assert total(ones, get("fp32")).rounded.value == 3000


def test_that_kahan_and_stochastic_sums_keep_growing() -> None:
    ones = [finite(1)] * 600
    assert kahan_total(ones, get("bf16")).rounded.value == pytest.approx(600, abs=2)
    spread = [float(total(ones, get("bf16"), Convention("stochastic"), seed).rounded.value) for seed in range(12)]
    assert np.mean(spread) == pytest.approx(600, rel=0.05)


def test_that_a_dot_product_depends_on_its_accumulator() -> None:
    left, right = [finite(1)] * 300, [finite(1)] * 300
    assert dot(left, right, get("e4m3fn"), get("bf16")).rounded.value == 256
    assert dot(left, right, get("e4m3fn"), get("fp32")).rounded.value == 300
    mixed = dot([parse("0.1")], [parse("0.3")], get("fp16"), get("fp32"), product=get("fp16"))
    assert mixed.exact.value == Fraction(3, 100)
    assert to_float(mixed.rounded) == float(np.float16(0.1) * np.float16(0.3))
    with pytest.raises(ValueError, match="differ in length"):
        dot(left, right[:1], get("fp16"), get("fp32"))


def test_that_roots_are_exact_or_held_to_many_bits() -> None:
    assert square_root(finite(Fraction(9, 4))).value == Fraction(3, 2)
    root = square_root(finite(2)).value
    assert abs(root**2 - 2) < Fraction(1, 2**390)
    assert float(root) == math.sqrt(2)
    assert square_root(finite(-1)).kind == "nan"
    assert square_root(infinity()).kind == "inf"


def test_that_the_wrong_number_of_operands_is_refused() -> None:
    with pytest.raises(ValueError, match="takes 2 numbers"):
        operate("+", [finite(1)], get("fp16"))
