"""The explorer without a window: bits in, bits out, undo, special values, text for other programs, claims."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from precgui.formats.catalogue import catalogue
from precgui.formats.claims import CLAIMS
from precgui.formats.codec import decode
from precgui.formats.explorer import Explorer, nan_with, special_values
from precgui.formats.model import FloatFormat
from precgui.formats.parse import InputError, parse
from precgui.formats.real import to_float
from precgui.formats.registry import blocks, formats, get
from precgui.formats.report import report
from precgui.formats.snippets import copies
from tests.formats.references import bits_equal

SMALL = [name for name, fmt in formats().items() if fmt.bits <= 10]


@pytest.mark.parametrize("name", SMALL)
def test_that_every_code_can_be_stored_and_is_shown_again(name: str) -> None:
    explorer = Explorer("0", (name,))
    fmt = get(name)
    for code in range(fmt.finite_values if name == "nf4" else 1 << fmt.bits):
        explorer.store(name, code)
        assert explorer.report(name).stored.code == code


def test_that_undo_and_redo_walk_through_the_texts() -> None:
    explorer = Explorer("1")
    explorer.type("2")
    explorer.type("2.5", joined=True)
    explorer.toggle("fp16", 0)
    with pytest.raises(InputError):
        explorer.type("1/0")
    assert explorer.text == "fp16:0x4101"
    explorer.undo()
    assert explorer.text == "2.5"
    explorer.undo()
    assert explorer.text == "1"
    explorer.undo()
    assert explorer.text == "1", "nothing is left to undo"
    explorer.redo()
    assert explorer.text == "2.5"
    explorer.type("3")
    explorer.redo()
    assert explorer.text == "3", "nothing is left to redo"


@pytest.mark.parametrize("name", [*formats(), "e5m7", "e0m4", "e15m112"])
def test_that_special_values_are_what_they_are_called(name: str) -> None:
    fmt = get(name)
    found = {words: decode(code, fmt).real for words, code in special_values(fmt)}
    assert found
    for words, real in found.items():
        if words == "largest finite":
            assert real.value == fmt.max_finite
        if words == "NaN":
            assert real.kind == "nan"
        if words == "smallest normal" and isinstance(fmt, FloatFormat):
            assert real.value == fmt.min_normal


def test_that_nan_codes_are_put_together_and_refused() -> None:
    fp32 = get("fp32")
    assert isinstance(fp32, FloatFormat)
    assert nan_with(fp32, 0x2A, quiet=True, negative=True) == 0xFFC0002A
    assert nan_with(fp32, 1, quiet=False, negative=False) == 0x7F800001
    with pytest.raises(ValueError, match="needs a payload"):
        nan_with(fp32, 0, quiet=False, negative=False)
    with pytest.raises(ValueError, match="does not fit"):
        nan_with(fp32, 1 << 22, quiet=True, negative=False)


@pytest.mark.parametrize("value", ["0.1", "-0", "65504", "2**-24", "inf", "-inf", "nan", "-1.5"])
@pytest.mark.parametrize("name", ["fp64", "fp32", "fp16", "bf16", "e4m3fn", "e5m2", "e2m1"])
def test_that_what_is_copied_gives_the_value_back(name: str, value: str) -> None:
    explorer = Explorer(value, (name,))
    stored = explorer.report(name)
    forms = copies(stored)
    names = {"np": np, "ml_dtypes": ml_dtypes, "float": float}
    wanted = to_float(stored.stored.real)
    for form in ("Python", "NumPy", "ml_dtypes"):
        if form in forms:
            with np.errstate(all="ignore"):
                back = float(eval(forms[form], {"__builtins__": {}}, names))
            assert bits_equal(back, wanted)
    assert int(forms["Hexadecimal"], 16) == int(forms["Binary"], 2) == stored.stored.code


def test_that_claims_are_refuted_by_bits() -> None:
    evidence = {claim.claim: claim.evidence() for claim in CLAIMS}
    assert evidence["The smallest positive FP16 value is 6.1e-5."] == ["2**-24 in fp16: 0x0001 = 5.96046447754e-08"]
    assert any("0x7f800000 = inf" in line for line in evidence["FP32 and BF16 can hold 1e40."])
    assert any("0x4049 = 3.140625" in line for line in evidence["BF16 holds 6 significant decimal digits."])


def test_that_the_catalogue_has_every_format_once() -> None:
    rows = catalogue()
    assert [row["name"] for row in rows] == [*formats(), *blocks()]
    fp16 = next(row for row in rows if row["name"] == "fp16")
    assert (fp16["max_finite"], fp16["overflow_from"], fp16["bytes"]) == ("65504", "65520", 2.0)


def test_that_c_literals_are_floats_only_where_a_float_holds_the_format() -> None:
    assert copies(report(parse("1/3"), get("fp16")))["C"].endswith("f")
    assert not copies(report(parse("1/3"), get("e9m30")))["C"].endswith("f")
    assert "C" not in copies(report(parse("1/3"), get("e15m112")))
    assert copies(report(parse("1/3"), get("fp64")))["C"] == "0x1.5555555555555p-2"


def test_that_every_alias_names_its_format() -> None:
    for fmt in formats().values():
        for alias in fmt.aliases:
            assert get(alias) is fmt
    assert get("binary16").name == "fp16"
    assert get("torch.float8_e4m3fn").name == "e4m3fn"
