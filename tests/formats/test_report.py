"""The full account of a number in a format, the stacks' conventions and numbers as text."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precgui.formats import text
from precgui.formats.conventions import PRESETS, library_table
from precgui.formats.parse import parse
from precgui.formats.real import ExtendedReal, finite, from_float
from precgui.formats.registry import formats, get
from precgui.formats.report import report, report_code
from precgui.formats.rounding import OVERFLOWS, ROUNDINGS, CastPolicy, Overflow, RoundingMode, interval_of

KEYS = {"format", "bits", "binary", "sign", "exponent", "mantissa", "value", "exact", "error", "ulp", "class"}


def test_that_a_tenth_in_fp16_is_described_exactly() -> None:
    row = report(parse("0.1"), get("fp16")).row()
    assert row["bits"] == "0x2e66"
    assert row["exact"] == "0.0999755859375"
    assert row["error"] == "-0.0000244140625"
    assert row["ulp"] == "0.00006103515625"
    assert row["error_ulp"] == -0.4
    assert (row["sign"], row["exponent"], row["mantissa"], row["class"]) == (0, 11, 0x266, "normal")


def test_that_the_error_of_a_third_is_a_fraction() -> None:
    assert report(parse("1/3"), get("fp16")).row()["error"] == "-1/12288"


def test_that_the_error_of_pi_is_given_to_forty_digits() -> None:
    assert str(report(parse("pi"), get("bf16")).row()["error"]).startswith("-0.00096765358979323846264338327950288419")


@pytest.mark.parametrize(
    "value", ["3.14159265", "65536", "1e-7", "1e40", "0.1", "-0", "nan", "464", "465", "pi", "-inf"]
)
def test_that_every_format_gives_a_complete_row_of_strict_json(value: str) -> None:
    for fmt in formats().values():
        row = report(parse(value), fmt).row()
        assert row.keys() >= KEYS
        json.dumps(row, allow_nan=False)


def test_that_neighbours_interval_and_probability_fit_together() -> None:
    result = report(parse("465"), get("e4m3fn"), CastPolicy("nearest_even", "saturate"))
    assert result.stored.real.value == 448
    assert result.neighbour(1) is None
    below = result.neighbour(-1)
    assert below is not None
    assert below.real.value == 416
    assert result.interval is not None
    assert (result.interval.low, result.interval.high) == (432, None)
    assert result.interval_text == "[432, ∞)"
    assert report(parse("1.03125"), get("e4m3fn")).probability_up == Fraction(1, 4)


@pytest.mark.parametrize(
    ("value", "name", "words"),
    [("65520", "fp16", "infinity"), ("1e-8", "fp16", "underflow"), ("nan", "e2m1", "no NaN"),
     ("500", "e4m3fn", "no infinity"),
     ("-1", "ue4m3", "no sign"), ("0", "e8m0", "no zero"), ("inf", "int8", "last value"), ("1000", "int8", "overflow"),
     ("1e-7", "fp16", "subnormal"), ("1", "fp16", "")],
)  # fmt: skip
def test_that_a_reader_is_told_what_happened(value: str, name: str, words: str) -> None:
    note = report(parse(value), get(name)).note
    assert words in note
    assert bool(words) == bool(note)


@pytest.mark.parametrize(
    ("value", "name", "cast_policy", "interval"),
    [("448", "e4m3fn", CastPolicy(), "[432, 464]"), ("-448", "e4m3fn", CastPolicy(), "[-464, -432]"),
     ("448", "e4m3fn", CastPolicy(overflow="nan"), "[432, 464]"), ("6", "e2m1", CastPolicy(), "(5, ∞)"),
     ("-6", "e2m1", CastPolicy(overflow="nan"), "(-∞, -5)"), ("65504", "fp16", CastPolicy("down"), "[65504, ∞)"),
     ("-65504", "fp16", CastPolicy("down"), "[-65504, -65472)"), ("127", "int8", CastPolicy(), "(126.5, ∞)"),
     ("0", "ue4m3", CastPolicy(overflow="saturate"), "(-∞, 0.0009765625]"),
     ("0", "ue4m3", CastPolicy(), "[-0.0009765625, 0.0009765625]"),
     ("1e-45", "e8m0", CastPolicy(), "(0, 8.8162076311671563e-39)")],
)  # fmt: skip
def test_that_the_last_value_takes_what_the_convention_gives_it(
    value: str, name: str, cast_policy: CastPolicy, interval: str
) -> None:
    assert report(parse(value), get(name), cast_policy).interval_text == interval


@pytest.mark.parametrize("overflow", OVERFLOWS)
@pytest.mark.parametrize("rounding", [each for each in ROUNDINGS if each != "stochastic"])
@pytest.mark.parametrize(
    "name", ["e4m3fn", "e2m1", "e5m2", "e4m3fnuz", "ue4m3", "e8m0", "int4", "uint4", "e0m3", "e3m2"]
)
def test_that_exactly_the_numbers_of_the_interval_are_stored_as_its_value(
    name: str, rounding: RoundingMode, overflow: Overflow
) -> None:
    fmt, cast_policy = get(name), CastPolicy(rounding, overflow)
    ends = [fmt.min_ordinal, fmt.min_ordinal + 1, -1, 0, 1, fmt.max_ordinal - 1, fmt.max_ordinal]
    ordinals = [each for each in ends if fmt.min_ordinal <= each <= fmt.max_ordinal]
    intervals = {each: interval_of(fmt, each, cast_policy) for each in ordinals}
    corners = {end for each in intervals.values() for end in (each.low, each.high) if end is not None}
    corners |= {fmt.value(each) for each in ordinals} | {2 * fmt.max_finite, -2 * fmt.max_finite}
    for value in {corner + shift for corner in corners for shift in (0, Fraction(1, 10**60), -Fraction(1, 10**60))}:
        stored = report(finite(value), fmt, cast_policy).stored
        found = stored.ordinal if stored.real.is_finite else None
        assert [each for each in ordinals if value in intervals[each]] == [each for each in ordinals if each == found]


def test_that_neighbours_in_the_widest_format_can_be_told_apart() -> None:
    result = report(parse("12"), get("e5m112"))
    low, high = result.interval_text.strip("[]()").split(", ")
    near = [result.neighbour(steps) for steps in (-1, 1)]
    shown = [text.short(each.real, result.digits) for each in near if each is not None]
    assert len({shown[0], low, "12", high, shown[1]}) == 5


def test_that_bits_that_are_already_there_have_no_error() -> None:
    assert report_code(0x3C01, get("fp16")).error == 0


def stored(word: str, name: str) -> dict[str, str]:
    """The value that each stack stores, exact; empty where it has no cast."""
    rows = library_table(parse(word), get(name))
    return {row.stack: text.exact(row.report.stored.real) if row.report else "" for row in rows}


def test_that_the_stacks_disagree_where_they_are_known_to() -> None:
    by_stack = stored("500", "e4m3fn")
    assert by_stack["torch >= 2.12"] == "448"
    assert by_stack["torch <= 2.11"] == "nan"
    assert by_stack["OCP saturating"] == "448"
    e5m2 = stored("1e6", "e5m2")
    assert (e5m2["torch >= 2.12"], e5m2["OCP saturating"]) == ("inf", "57344")
    fp4 = stored("nan", "e2m1")
    assert (fp4["CUDA satfinite"], fp4["IEEE 754 / ml_dtypes"]) == ("6", "-0")
    assert (fp4["torch >= 2.12"], stored("100", "e3m2")["torch <= 2.11"]) == ("", "")
    assert len({p.name for p in PRESETS}) == len(PRESETS)


@pytest.mark.parametrize("kind", ["e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0fnu"])
def test_that_the_row_of_torch_is_what_torch_stores(kind: str) -> None:
    torch = pytest.importorskip("torch")
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 12):
        pytest.skip("this torch is older than the row")
    dtype, tiny = f"float8_{kind}", 2.0**-127
    values = [0.0, -1.0, -3.0, tiny, 1.25 * tiny, 1.75 * tiny, tiny / 2, 1.5, 3.0, 3 * tiny, 465.0, 2.0**127]
    theirs = torch.tensor(values).to(getattr(torch, dtype)).view(torch.uint8).tolist()
    fmt = get(dtype)
    for value, code in zip(values, theirs, strict=True):
        row = next(row for row in library_table(from_float(value), fmt) if row.stack == "torch >= 2.12")
        assert row.report is not None
        assert row.report.stored.code == code, value


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_that_exact_text_agrees_with_numpy(value: float) -> None:
    ours = text.exact(from_float(value))
    assert float(ours) == value
    assert ours == np.format_float_positional(value, unique=False, precision=1100, trim="-")


@pytest.mark.parametrize(
    ("value", "expected"),
    [(Fraction(7, 8), "7*2^-3"), (Fraction(1), "1"), (Fraction(448), "7*2^6"), (Fraction(-1, 4), "-2^-2"),
     (Fraction(0), "0"),
     (Fraction(1, 3), "1/3")],
)  # fmt: skip
def test_that_powers_of_two_are_written_with_odd_factors(value: Fraction, expected: str) -> None:
    assert text.times_power_of_two(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1e40", "1e+40"),
        ("0.1", "0.1"),
        ("1/3", "0.333333333"),
        ("-0", "-0"),
        ("nan", "nan"),
        ("2**-149", "1.40129846e-45"),
    ],
)
def test_that_short_text_is_short(value: str, expected: str) -> None:
    assert text.short(parse(value)) == expected


def test_that_hexadecimal_text_is_that_of_python() -> None:
    assert float.fromhex(text.hex_float(Fraction(0.1))) == 0.1
    assert text.hex_float(Fraction(12)) == "0x1.8p+3"
    assert text.exact(ExtendedReal("inf", negative=True)) == "-inf"
