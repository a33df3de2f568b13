"""What a person may type, and what it says to nonsense."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precgui.formats.parse import InputError, parse
from precgui.formats.real import from_float, to_float
from precgui.formats.registry import get
from precgui.formats.text import exact, hex_float, nan_text


@pytest.mark.parametrize(
    ("text", "value"),
    [("0.1", Fraction(1, 10)), ("1/3", Fraction(1, 3)), ("2**-14 + 2**-24", Fraction(1025, 2**24)), ("0x1.8p3", 12),
     ("1e40", 10**40), ("-1.5e-3", Fraction(-3, 2000)), ("2^10", 1024), ("0b101", 5), ("1_000", 1000),
     (".5", Fraction(1, 2)),
     ("nextup(1, fp16)", 1 + Fraction(1, 1024)), ("nextup(1)", 1 + Fraction(1, 2**52)), ("fp16.max", 65504),
     ("-2**2", -4), ("2**3**2", 512), ("2**-1", Fraction(1, 2)), ("(1+2)*3", 9), ("round(0.1, e2m1)", 0),
     ("sqrt(9/4)", 1.5),
     ("fp16:0x3c00", 1), ("e4m3fn:0b01111110", 448), ("1 − 3", -2), ("2×3", 6), ("max(1, 2, 3)", 3), ("+7", 7),
     ("bf16.eps", Fraction(1, 128)), ("0x.8p1", 1), ("abs(-3)", 3)],
)  # fmt: skip
def test_that_numbers_are_read_exactly(text: str, value: Fraction) -> None:
    real = parse(text)
    assert real.value == value
    assert real.exact


@given(st.floats())
def test_that_every_double_survives_its_own_text(value: float) -> None:
    assert repr(to_float(parse(repr(value)))) == repr(value)
    if value == value and abs(value) != float("inf"):
        assert parse(hex_float(Fraction(value))).value == Fraction(value)
        assert parse(exact(from_float(value))).value == Fraction(value)


def test_that_constants_have_enough_digits() -> None:
    pi = parse("pi")
    assert not pi.exact
    digits = 31415926535897932384626433832795028841971693993751058209749445923078164062862089986280348253421170679
    assert pi.value * 10**100 // 1 == digits
    assert abs(parse("exp(1)").value - parse("e").value) < Fraction(1, 10**300)
    assert abs(parse("log2(8)").value - 3) < Fraction(1, 10**300)
    assert abs(parse("2**0.5").value ** 2 - 2) < Fraction(1, 10**300)


def test_that_zero_infinity_and_nan_keep_their_signs_and_payloads() -> None:
    assert parse("-0").negative
    assert parse("-0.0").is_zero
    assert (parse("-inf").kind, parse("-inf").negative) == ("inf", True)
    for text in ("nan", "-nan", "nan(0x2a)", "snan(0x1)", "-snan(0x3)"):
        assert nan_text(parse(text)) == text
    assert parse("inf - inf").kind == "nan"


def test_that_bits_belong_to_the_format_that_is_asked_about() -> None:
    assert parse("0x3c00", get("fp16")).value == 1
    assert parse("0x3c00").value == 0x3C00
    assert parse("-0x3c00", get("fp16")).value == -1


@pytest.mark.parametrize(
    ("text", "words"),
    [("1e999999", "out of reach"), ("1/0", "division by zero"), ("😀", "not part of a number"),
     ("", "nothing was typed"),
     ("1 2", "not expected"), ("foo", "not known"), ("9**9**9", "out of reach"), ("2**(2**40)", "out of reach"),
     ("sin(1)", "no function"), ("(1", "missing at the end"), ("1+", "ends too early"),
     ("e5m99999:0x1", "no number format"),
     ("e4m3fn:0x1ff", "does not fit"), ("log(-1)", "no real value"), ("(" * 9000, "nested"),
     ("-" * 19000 + "1", "nested"),
     ("exp(1e30)", "out of reach"), ("1" * 30_000, "too many"), ("__import__('os')", "not"),
     ("fp16.nonsense", "no property"),
     ("nextup(1, 2, 3)", "no number format"), ("sqrt(1, 2)", "one number"),
     ("*".join(["(9**30000)"] * 90), "out of reach"),
     ("nan(x)", "no integer"), (")", "stands where"), ("0**-1", "division by zero"), ("(-2)**0.5", "no real value")],
)  # fmt: skip
def test_that_nonsense_gets_one_clear_sentence(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        parse(text)
    message = str(caught.value)
    assert len(message) < 220
    assert "\n" not in message


@given(st.text(max_size=30))
def test_that_no_text_breaks_the_parser(text: str) -> None:
    try:
        parse(text)
    except InputError as error:
        assert str(error)


def test_that_ten_thousand_digits_are_read() -> None:
    assert parse("1" * 10_000).value == (10**10_000 - 1) // 9
    assert exact(parse("1" * 10_000)) == "1" * 10_000
