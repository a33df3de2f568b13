"""`precgui quantise` as a user and as another program meet it, beside torch, ml_dtypes and the formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from precgui.cli.main import main
from precgui.formats.codec import decode
from precgui.formats.registry import blocks, get

VALUES = "0.1,-0.7,1/3,2.5,-1e-3,0.02,6,-4"


def _results(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert main(["quantise", *arguments, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document["results"]


def _column(result: dict[str, Any], key: str) -> list[Any]:
    return [row[key] for row in result["values"]]


def test_that_a_scale_of_ones_own_gives_the_codes_of_the_text_books(capsys: pytest.CaptureFixture[str]) -> None:
    (result,) = _results(capsys, "0.1,0.5,0.9,1.2", "--format", "uint8", "--scale", "2/255", "--zero-point", "0")
    assert _column(result, "code") == [13, 64, 115, 153]
    (signed,) = _results(capsys, "0.1,0.5,0.9,1.2", "--format", "int8", "--scale", "2/255", "--zero-point", "0")
    assert _column(signed, "code") == [13, 64, 115, 127]
    assert _column(signed, "clipped") == [False, False, False, True]


@pytest.mark.parametrize(("name", "least", "largest"), [("int8", -128, 127), ("uint8", 0, 255)])
def test_that_affine_values_are_those_of_torch(
    capsys: pytest.CaptureFixture[str], name: str, least: int, largest: int
) -> None:
    (result,) = _results(capsys, VALUES, "--format", name, "--affine")
    scale, zero_point, values = result["scale"], result["zero_point"], torch.tensor(_column(result, "value"))
    theirs = torch.fake_quantize_per_tensor_affine(values, scale, zero_point, least, largest)
    assert _column(result, "becomes") == pytest.approx(theirs.tolist(), rel=1e-6)
    assert [scale * (code - zero_point) for code in _column(result, "code")] == pytest.approx(theirs.tolist(), rel=1e-6)


def test_that_codes_of_floats_are_those_of_ml_dtypes(capsys: pytest.CaptureFixture[str]) -> None:
    for result, dtype in zip(
        _results(capsys, VALUES, "--format", "e4m3fn,e5m2,bf16,fp16"),
        (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.bfloat16, np.float16), strict=True,
    ):  # fmt: skip
        stored = np.array(_column(result, "value")).astype(dtype)
        assert [int(code, 16) for code in _column(result, "code")] == stored.view(f"u{stored.itemsize}").tolist()


@pytest.mark.parametrize("name", ["mxfp4", "mxfp8_e4m3", "mxint8", "nvfp4", "nf4"])
def test_that_code_times_scale_is_the_value(capsys: pytest.CaptureFixture[str], name: str) -> None:
    (result,) = _results(capsys, VALUES, "--format", name)
    element = get(blocks()[name].element if name in blocks() else name)
    for row in result["values"]:
        value = float(decode(int(row["code"], 16), element).real.value)
        assert value * row["scale"] == pytest.approx(row["becomes"], rel=1e-7)


def test_that_a_tensor_of_a_file_is_quantised_whole_and_listed_in_part(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "weights.npy"
    np.save(path, np.random.default_rng(0).normal(size=(100, 64)).astype(np.float32))
    assert main(["quantise", str(path), "--format", "int4,mxfp4", "--per", "tensor", "--show", "3", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["shape"] == [100, 64]
    assert [len(result["values"]) for result in document["results"]] == [3, 3]
    assert all(10 < result["sqnr_db"] < 30 for result in document["results"])
    assert main(["quantise", str(path), "--show", "2"]) == 0
    assert "The first 2 of 6 400 values" in capsys.readouterr().out.replace("\u202f", " ").replace("\u00a0", " ")


def test_that_rows_have_scales_of_their_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "rows.npy"
    np.save(path, np.array([[1.0, -0.3], [100.0, 51.0]]))
    (result,) = _results(capsys, str(path), "--per", "row")
    assert _column(result, "scale") == pytest.approx([1 / 127, 1 / 127, 100 / 127, 100 / 127])
    assert _column(result, "code") == [127, -38, 127, 65]


def test_that_numbers_that_are_not_finite_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    (result,) = _results(capsys, "1,nan,inf", "--format", "mxfp4")
    assert _column(result, "code") == [None, None, None]
    assert _column(result, "becomes") == ["nan", "nan", "nan"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["1,x"], "number 2 of the list"),
        (["missing.npy"], "missing.npy"),
        (["1", "--format", "int3"], "'int3' is no way to quantise"),
        (["1", "--format", "nf4", "--scale", "2"], "nf4 has scales of its own"),
        (["1", "--scale", "-1"], "not a number above 0"),
        (["1", "--scale", "1", "--per", "row"], "leave --per out"),
        (["1,2,3", "--per", "group of 32"], "does not divide"),
    ],
)
def test_that_a_mistake_is_one_sentence(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert main(["quantise", *arguments]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_that_a_file_of_several_tensors_asks_for_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "two.pt"
    torch.save({"a": torch.ones(2), "b": torch.ones(3)}, path)
    assert main(["quantise", str(path)]) == 2
    assert "--tensor: a, b" in capsys.readouterr().err
    (result,) = _results(capsys, str(path), "--tensor", "b")
    assert _column(result, "code") == [127, 127, 127]


@pytest.mark.parametrize(("command", "other"), [("quantise", "precgui quantize"), ("quantize", "precgui quantise")])
def test_that_each_of_two_like_commands_names_the_other(
    command: str, other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert other in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("scheme", "rules"),
    [
        ("int4", ["(absmax / 7)", "absmax / 7.5 for each group of 128 (vllm:w4a16)", "signed max / −8"]),
        ("int8", ["(absmax / 127)", "absmax / 127.5 for each row (vllm:w8a8, torchao:int8)", "gguf:q8_0"]),
        ("e4m3fn", ["Cast without a scale", "absmax / 448 for each row (vllm:fp8)"]),
    ],
)
def test_that_the_conventions_of_libraries_are_named(
    scheme: str, rules: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantise", "0.5,-1", "--format", scheme]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert [rule for rule in rules if rule not in printed] == []
