"""Arithmetic in a format against NumPy and ml_dtypes, which round each operation correctly."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from precgui.formats.arithmetic import ArithmeticFault, ArithmeticSettings, operate
from precgui.formats.lists import brief_list, parse_list
from precgui.formats.operations import square_root
from precgui.formats.parse import InputError, parse
from precgui.formats.real import finite, from_float, infinity, to_float
from precgui.formats.registry import get
from precgui.formats.rounding import CastPolicy
from tests.formats.references import bits_equal

TYPES = {"fp16": np.float16, "fp32": np.float32, "bf16": ml_dtypes.bfloat16, "e4m3fn": ml_dtypes.float8_e4m3fn}


@pytest.mark.parametrize("operation", ["add", "subtract", "multiply", "divide", "sqrt"])
@pytest.mark.parametrize("name", TYPES)
def test_that_each_operation_rounds_as_the_reference(name: str, operation: str) -> None:
    rng = np.random.default_rng(3)
    left, right = (rng.normal(size=200) * 10.0 ** rng.integers(-2, 3, 200) for _ in range(2))
    left[:6], right[:6] = [0.0, -0.0, np.inf, np.inf, 1.0, np.nan], [0.0, -0.0, -np.inf, np.inf, 0.0, 1.0]
    a, b = left.astype(TYPES[name]), right.astype(TYPES[name])
    with np.errstate(all="ignore"):
        theirs = {
            "add": a + b, "subtract": a - b, "multiply": a * b, "divide": a / b, "sqrt": np.sqrt(a)
        }[operation].astype(float)  # fmt: skip
    operands = [(x,) if operation == "sqrt" else (x, y) for x, y in zip(a.astype(float), b.astype(float), strict=True)]
    fmt = get(name)
    ours = [to_float(operate(operation, [[from_float(x)] for x in pair], fmt).rounded) for pair in operands]
    assert bits_equal(ours, theirs).all()


def test_that_a_fused_multiply_add_rounds_once() -> None:
    fp16, above, below = get("fp16"), finite(1 + Fraction(1, 1024)), finite(1 - Fraction(1, 1024))
    fused = operate("fma", [[above], [below], [finite(-1)]], fp16)
    product = operate("multiply", [[above], [below]], fp16).rounded
    apart = operate("subtract", [[product], [finite(1)]], fp16)
    assert fused.exact.value == fused.rounded.value == Fraction(-1, 2**20)
    assert apart.rounded.value == 0


def test_that_a_fused_multiply_add_agrees_with_double_arithmetic() -> None:
    rng = np.random.default_rng(5)
    fp16 = get("fp16")
    for a, b, c in rng.normal(size=(200, 3)).astype(np.float16).astype(float).tolist():
        found = operate("fma", [[from_float(x)] for x in (a, b, c)], fp16)
        assert to_float(found.rounded) == float(np.float16(a * b + c))  # exact in double, so rounded once


def test_that_a_sum_of_ones_stops_where_the_format_runs_out_of_integers() -> None:
    ones = [[finite(1)] * 3000]
    assert operate("sum", ones, get("fp16")).rounded.value == 2048
    assert operate("sum", [ones[0][:400]], get("bf16")).rounded.value == 256
    assert operate("sum", ones, get("fp16")).exact.value == 3000
    wide = operate("sum", ones, get("bf16"), ArithmeticSettings(accumulator=get("fp32"), output=get("bf16")))
    assert (wide.rounded.value, wide.stored.format.name) == (3008, "bf16")


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_that_a_sum_is_that_of_a_loop_in_the_reference(dtype: type) -> None:
    name = {np.float16: "fp16", ml_dtypes.bfloat16: "bf16", np.float32: "fp32"}[dtype]
    values = np.random.default_rng(8).normal(size=300).astype(dtype)
    running = dtype(0)
    for value in values:
        running = dtype(running + value)
    terms = [from_float(x) for x in values.astype(float).tolist()]
    assert to_float(operate("sum", [terms], get(name)).rounded) == float(running)


def test_that_kahan_pairwise_and_stochastic_sums_keep_growing() -> None:
    ones, bf16 = [[finite(1)] * 600], get("bf16")
    assert operate("sum", ones, bf16, ArithmeticSettings(order="kahan")).rounded.value == pytest.approx(600, abs=2)
    assert operate("sum", ones, bf16, ArithmeticSettings(order="pairwise")).rounded.value == 600
    random = [ArithmeticSettings(cast_policy=lambda _: CastPolicy("stochastic"), seed=seed) for seed in range(12)]
    spread = [float(operate("sum", ones, bf16, each).rounded.value) for each in random]
    assert np.mean(spread) == pytest.approx(600, rel=0.05)
    assert len(set(spread)) > 1


def test_that_a_dot_product_depends_on_its_accumulator() -> None:
    ones, e4m3fn = [[finite(1)] * 300] * 2, get("e4m3fn")
    assert operate("dot", ones, e4m3fn, ArithmeticSettings(accumulator=get("bf16"))).rounded.value == 256
    assert operate("dot", ones, e4m3fn, ArithmeticSettings(accumulator=get("fp32"))).rounded.value == 300
    rounded_products = ArithmeticSettings(accumulator=get("fp32"), product=get("fp16"))
    mixed = operate("dot", [[parse("0.1")], [parse("0.3")]], get("fp16"), rounded_products)
    assert mixed.meant.value == Fraction(3, 100)
    assert mixed.exact.value == mixed.operands[0][0].stored.real.value * mixed.operands[1][0].stored.real.value
    assert to_float(mixed.rounded) == float(np.float16(0.1) * np.float16(0.3))


def test_that_roots_are_exact_or_held_to_many_bits() -> None:
    assert square_root(finite(Fraction(9, 4))).value == Fraction(3, 2)
    root = square_root(finite(2)).value
    assert abs(root**2 - 2) < Fraction(1, 2**390)
    assert float(root) == math.sqrt(2)
    assert square_root(finite(-1)).kind == "nan"
    assert square_root(infinity()).kind == "inf"


@pytest.mark.parametrize(
    ("name", "operands", "words"),
    [("add", [[finite(1)]], "takes 2 numbers, not 1"), ("dot", [[finite(1)], [finite(1)] * 2], "differ in length"),
     ("add", [[finite(1)] * 2, [finite(1)]], "single numbers"), ("power", [[finite(1)]], "no operation"),
     ("sum", [[finite(Fraction(1, 3**n)) for n in range(0, 200_000, 9_000)]], "too many digits")],
)  # fmt: skip
def test_that_operands_that_do_not_fit_are_refused(name: str, operands: list, words: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ArithmeticFault, match=words):
        operate(name, operands, get("fp16"))


def test_that_lists_are_read_as_they_are_typed() -> None:
    assert [real.value for real in parse_list("1/3, nextup(1, fp16); -2\n repeat(2**-1, 3)")] == [
        Fraction(1, 3), 1 + Fraction(1, 1024), -2, *[Fraction(1, 2)] * 3
    ]  # fmt: skip
    assert brief_list(parse_list("repeat(0.1, 1000)")) == "1000 × 0.1"
    assert brief_list(parse_list("1,2,3,4,5,6")) == "1, 2, 3, 4, 5, … (6)"
    for typed, words in (("", "empty"), ("1, 😀", "number 2"), ("repeat(1, 99999)", "too many"), ("1,2)", "number 2"),
                         ("repeat(1, 9000), repeat(1, 9000)", "too long")):  # fmt: skip
        with pytest.raises(InputError, match=words):
            parse_list(typed)
