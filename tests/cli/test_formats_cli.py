"""`precgui formats`, `encode` and `decode` as a user and as another program meet them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from precgui.cli.main import main

ROW_KEYS = {"format", "bits", "binary", "sign", "exponent", "mantissa", "value", "exact", "error", "ulp", "class"}


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_that_encode_prints_one_document_with_the_promised_keys(capsys: pytest.CaptureFixture[str]) -> None:
    document = _json(capsys, "encode", "3.14159265")
    assert document["input"] == "3.14159265"
    by_name = {row["format"]: row for row in document["results"]}
    assert {"fp64", "fp32", "tf32", "bf16", "fp16", "e4m3fn", "e5m2", "e2m1", "int8", "nf4"} <= by_name.keys()
    assert all(row.keys() >= ROW_KEYS for row in by_name.values())
    assert by_name["bf16"]["exact"] == "3.140625"
    assert by_name["bf16"]["error"] == "-0.00096765"
    assert by_name["fp16"]["bits"] == "0x4248"


@pytest.mark.parametrize(
    ("value", "name", "bits", "exact"),
    [("-0", "fp16", "0x8000", "-0"), ("-inf", "bf16", "0xff80", "-inf"), ("-1/3", "e5m2", "0xb5", "-0.3125"),
     ("-1e5", "fp16", "0xfc00", "-inf"), ("nan", "e4m3fn", "0x7f", "nan"), ("464", "e4m3fn", "0x7e", "448"),
     ("465", "e4m3fn", "0x7f", "nan"), ("1e40", "fp32", "0x7f800000", "inf"),
     ("fp16:0x3c01", "fp16", "0x3c01", "1.0009765625")],
)  # fmt: skip
def test_that_any_value_can_be_typed(
    capsys: pytest.CaptureFixture[str], value: str, name: str, bits: str, exact: str
) -> None:
    (row,) = _json(capsys, "encode", value, "--format", name)["results"]
    assert (row["bits"], row["exact"]) == (bits, exact)


def test_that_rounding_overflow_and_stack_are_switches(capsys: pytest.CaptureFixture[str]) -> None:
    def exact(*options: str) -> str:
        return str(_json(capsys, "encode", *options)["results"][0]["exact"])

    assert exact("0.1", "--format", "e5m2", "--rounding", "up") == "0.109375"
    assert exact("0.1", "--format", "e5m2", "--rounding", "down") == "0.09375"
    assert exact("1e9", "--format", "fp16", "--rounding", "toward_zero") == "65504"
    assert exact("1e9", "--format", "e4m3fn", "--overflow", "saturate") == "448"
    assert exact("1e9", "--format", "fp16", "--overflow", "nan") == "nan"
    assert exact("inf", "--format", "e4m3fn", "--stack", "torch >= 2.12") == "448"
    drawn = {exact("1.05", "--format", "e4m3fn", "--rounding", "stochastic", "--seed", str(s)) for s in range(12)}
    assert drawn == {"1", "1.125"}


def test_that_bits_are_read_as_those_of_the_named_format(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = _json(capsys, "encode", "0x3c00", "--from", "fp16", "--format", "bf16")["results"]
    assert row["exact"] == "1"


def test_that_decode_reads_bits(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = _json(capsys, "decode", "0x7fc1", "--format", "bf16")["results"]
    assert (row["class"], row["value"], row["exact"]) == ("quiet nan", None, "nan")
    (row,) = _json(capsys, "decode", "0b01111110", "--format", "fp8_e4m3fn")["results"]
    assert (row["format"], row["exact"]) == ("e4m3fn", "448")


def test_that_bits_are_decoded_in_all_formats_with_so_many_digits(capsys: pytest.CaptureFixture[str]) -> None:
    def names(bits: str, *options: str) -> dict[str, str]:
        return {row["format"]: row["exact"] for row in _json(capsys, "decode", bits, *options)["results"]}

    assert names("0x7e", "--format", "e4m3fn,e5m2") == {"e4m3fn": "448", "e5m2": "nan"}
    eight = names("0x7f")
    assert {"e4m3fn", "e5m2", "e4m3fnuz", "e8m0", "ue4m3", "int8"} <= eight.keys()
    assert not {"fp16", "e2m1", "e3m2", "fp64"} & eight.keys()
    assert set(names("0x3c00", "--format", "all")) == {"fp16", "bf16"}
    assert set(names("0b111")) > {"fp64", "e2m1"}
    assert main(["decode", "0x7f"]) == 0
    assert "e4m3fnuz" in capsys.readouterr().out


def test_that_the_table_of_formats_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {(row["name"], row["kind"]): row for row in _json(capsys, "formats")["formats"]}
    assert rows["fp16", "float"]["max_finite"] == "65504"
    assert rows["fp16", "float"]["min_subnormal"] == "0.000000059604644775390625"
    assert rows["nvfp4", "block"]["bits"] == 4.5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["encode", "1/0"], "division by zero"), (["encode", "1", "--format", "fp17"], "no number format"),
     (["encode", "😀"], "not part of a number"), (["decode", "12", "--format", "fp16"], "bit pattern"),
     (["decode", "0x1ff", "--format", "e5m2"], "does not fit"),
     (["decode", "0x1ffffffffffffffff"], "does not fit into any"), (["encode", "1", "--stack", "tape"], "no stack"),
     (["encode", "1", "--format", "mxfp4"], "block format"), (["arithmetic", "add", "1"], "takes 2 numbers"),
     (["arithmetic", "power", "1", "2"], "no operation"), (["arithmetic", "dot", "1,2", "3"], "differ in length"),
     (["arithmetic", "sum", "1,😀"], "number 2"), (["arithmetic", "add", "1", "2", "--output", "fp16"], "leave it out"),
     (["arithmetic", "sum", "1", "--accumulator", "fp17"], "no number format")],
)  # fmt: skip
def test_that_bad_input_is_one_line_and_exit_code_two(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert words in captured.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["formats"], "65504"), (["encode", "0.1"], "0x2e66"), (["encode", "500", "--format", "e4m3fn"], "torch >= 2.12"),
     (["encode", "1e-7", "--format", "fp16"], "subnormal"), (["decode", "0x7e01", "--format", "fp16"], "nan(0x1)"),
     (["encode", "nan"], "no NaN")],
)  # fmt: skip
def test_that_people_get_a_table(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert main(arguments) == 0
    assert words in capsys.readouterr().out


def test_that_encoding_loads_neither_torch_nor_qt() -> None:
    code = (
        "import sys; from precgui.cli.main import main; main(['encode', '0.1', '--json']); "
        "sys.exit(any(m in sys.modules for m in ('torch', 'PySide6', 'numba')))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_that_arithmetic_prints_the_rounded_and_the_exact_result(capsys: pytest.CaptureFixture[str]) -> None:
    document = _json(capsys, "arithmetic", "fma", "1/3", "3", "-1", "--format", "fp16,e4m3fn")
    assert (document["operation"], document["exact"]) == ("fma", "0")
    fp16, e4m3fn = document["results"]
    assert fp16.keys() >= ROW_KEYS
    assert (fp16["bits"], fp16["exact"], fp16["exact_of_operands"]) == ("0x8c00", "-0.000244140625", "-0.000244140625")
    assert fp16["operands"][0] == [{"bits": "0x3555", "exact": "0.333251953125"}]
    assert e4m3fn["error_from_input"] == "0.03125"


def test_that_sums_take_an_accumulator_an_order_and_an_output(capsys: pytest.CaptureFixture[str]) -> None:
    def row(*options: str) -> dict[str, Any]:
        return dict(_json(capsys, "arithmetic", *options, "--format", "bf16")["results"][0])

    assert row("sum", "repeat(1, 3000)")["exact"] == "256"
    assert row("sum", "repeat(1, 3000)", "--accumulator", "fp32")["exact"] == "3000"
    assert row("sum", "repeat(1, 3000)", "--order", "pairwise")["exact"] in ("2992", "3008")
    wide = row("dot", "repeat(1, 3000)", "repeat(1, 3000)", "--accumulator", "fp32", "--output", "bf16")
    assert (wide["exact"], wide["result_format"], wide["accumulator"]) == ("3008", "bf16", "fp32")
    assert row("-", "-1e5", "-inf")["exact"] == "inf"


def test_that_people_read_arithmetic_as_a_table_or_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["arithmetic", "dot", "0.1, 2", "3, 1/3", "--format", "fp16,bf16", "--accumulator", "fp32"]) == 0
    assert "0.96666" in capsys.readouterr().out
    assert main(["arithmetic", "divide", "1", "0", "--format", "e4m3fn", "--stack", "torch >= 2.12"]) == 0
    assert "0x7e" in capsys.readouterr().out


ENCODED = Path(__file__).parents[2] / "docs" / "formats-encoded.md"


@pytest.mark.parametrize("value", re.findall(r"^## `precgui encode (.+)`$", ENCODED.read_text("utf-8"), re.MULTILINE))
def test_that_the_documented_encodings_are_what_is_printed(capsys: pytest.CaptureFixture[str], value: str) -> None:
    section = ENCODED.read_text("utf-8").partition(f"## `precgui encode {value}`\n\n```\n")[2].partition("```")[0]
    assert main(["encode", value]) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert section.splitlines() == printed
