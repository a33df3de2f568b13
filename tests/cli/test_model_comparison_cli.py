"""`precgui model FILE OTHER`: planted changes between two checkpoints are found, in ulps and dB."""

from __future__ import annotations

import csv
import json
import math
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from precgui.cli.main import main
from precgui.formats.checkpoints import comparison
from precgui.formats.checkpoints.contents import open_checkpoint
from precgui.formats.registry import get
from precgui.formats.weight_formats import round_weights, weight_format
from precgui.runs.models.comparison_rows import change_rows
from tests.formats.checkpoint_files import safetensors, sharded

RNG = np.random.default_rng(7)
BF16 = ml_dtypes.bfloat16


def two_models(folder: Path) -> tuple[Path, Path]:
    """One file, and a folder of two shards with planted changes."""
    moved = RNG.standard_normal((4, 64)).astype(np.float32)
    tuned = moved.copy()
    tuned[0, :8] = np.nextafter(moved[0, :8], np.float32(np.inf))
    tuned[1, 0] = np.nan
    same = RNG.standard_normal((8, 8)).astype(BF16)
    steps = same.view(np.uint16).copy()
    steps[0] += 3
    first = {"moved": ("F32", moved), "same": ("BF16", same), "steps": ("BF16", same), "gone": ("F32", moved),
             "shape": ("F32", moved), "wide": ("F32", same.astype(np.float32)), "n": ("I64", np.arange(3))}  # fmt: skip
    (folder / "b").mkdir()
    shards = [{"moved": ("F32", tuned), "same": ("BF16", same), "steps": ("BF16", steps.view(BF16))},
              {"shape": ("F32", moved.reshape(8, 32)), "wide": ("BF16", same), "new\n": ("F32", moved),
               "n": ("I64", np.arange(3))}]  # fmt: skip
    return safetensors(folder / "a.safetensors", first), sharded(folder / "b", shards)


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["model", *words, "--json"]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return printed


def test_that_planted_changes_are_found_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = two_models(tmp_path)
    printed = document(capsys, str(first), str(second))
    rows = {row["name"]: row for row in printed["tensors"]}
    assert list(rows) == ["moved", "same", "steps", "wide"] and printed["unchanged"] == 2
    assert (rows["moved"]["changed"], rows["moved"]["nonfinite"]) == (9, 1)
    assert (rows["moved"]["ulps_of"], rows["moved"]["median_ulps"], rows["moved"]["largest_ulps"]) == ("fp32", 1, 1)
    steps = rows["steps"]
    assert (steps["changed"], steps["ulps_of"], steps["median_ulps"], steps["largest_ulps"]) == (8, "bf16", 3, 3)
    assert (rows["wide"]["dtype"], rows["wide"]["other_dtype"], rows["wide"]["sqnr_db"]) == ("fp32", "bf16", "inf")
    assert printed["only_in_source"] == ["gone"] and printed["only_in_other"] == ["new\n"]
    assert printed["other_shapes"] == [{"name": "shape", "shape": [4, 64], "other_shape": [8, 32]}]
    assert [each["name"] for each in printed["skipped"]] == ["n"]


def test_that_the_noise_of_quantising_is_that_of_the_reference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "PIECE", 100)  # pieces end within rows
    values = RNG.standard_normal((32, 128)).astype(np.float32)
    rounded = round_weights(values, weight_format("int4/32"))
    a = safetensors(tmp_path / "a.safetensors", {"w": ("F32", values)})
    b = safetensors(tmp_path / "b.safetensors", {"w": ("F32", rounded)})
    [row] = document(capsys, str(a), str(b))["tensors"]
    gap = rounded.astype(float) - values
    assert row["sqnr_db"] == pytest.approx(
        10 * math.log10((values.astype(float) ** 2).sum() / (gap**2).sum()), abs=1e-9
    )
    assert row["largest"] == np.abs(gap).max() and row["changed"] == (gap != 0).sum()


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
def test_that_ordinals_count_the_codes_between_two_numbers(name: str) -> None:
    kind = {"fp32": np.float32, "bf16": BF16, "fp16": np.float16}[name]
    words = np.uint32 if name == "fp32" else np.uint16
    top = np.finfo(np.float32) if name == "fp32" else ml_dtypes.finfo(kind)
    last = int(np.array(top.max, kind).view(words))
    codes = np.unique(np.linspace(0, last, 5001).astype(np.int64))
    values = codes.astype(words).view(kind).astype(np.float32)
    found = comparison.ordinals(values, get(name))
    assert (found == codes).all()
    assert (comparison.ordinals(-values, get(name)) == -codes).all()


def test_that_the_table_and_the_csv_name_each_tensor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = two_models(tmp_path)
    assert main(["model", str(first), str(second)]) == 0
    printed = capsys.readouterr().out
    texts = (
        "2 of 4 compared tensors differ", "Only in the first model: gone.", "Only in the second model: new\\n.",
        "shape (4 x 64 and 8 x 32)", "In another format: wide.", "n (whole numbers",
    )  # fmt: skip
    for text in texts:
        assert text in printed
    assert main(["model", str(first), str(second), "--csv", str(tmp_path / "c.csv")]) == 0
    rows = list(csv.DictReader((tmp_path / "c.csv").read_text(encoding="utf-8").splitlines()))
    assert [row["changed"] for row in rows] == ["9", "0", "8", "0"]
    assert main(["model", str(first), str(second), "--csv", str(tmp_path / "c.csv")]) == 2
    assert main(["model", str(first), "--csv", str(tmp_path / "c.csv")]) == 2
    assert capsys.readouterr().err.count("c.csv already exists; choose another name") == 2
    assert main(["model", str(first), str(second), "--scan"]) == 2
    assert main(["model", str(first), str(tmp_path / "none")]) == 2
    assert "there is no" in capsys.readouterr().err


def test_that_memory_is_that_of_pieces(tmp_path: Path) -> None:
    values = np.ones(1 << 23, np.float32)
    a = open_checkpoint(safetensors(tmp_path / "a.safetensors", {"w": ("F32", values)}))
    b = open_checkpoint(safetensors(tmp_path / "b.safetensors", {"w": ("F32", values + 1)}))
    del values
    tracemalloc.start()
    try:
        [change] = comparison.compare_models(a, b, lambda _: None).changes
        assert change.changed == 1 << 23
        assert tracemalloc.get_traced_memory()[1] < 24 << 20  # the tensors have 32 MB each
    finally:
        tracemalloc.stop()


def test_that_what_the_progress_raises_ends_the_comparison(tmp_path: Path) -> None:
    first, second = map(open_checkpoint, two_models(tmp_path))

    def stop(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        comparison.compare_models(first, second, stop, threads=2)


def test_that_fp64_is_compared_in_fp64(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = np.array([1.0, -2.0, 3.0, 1e300, 0.0])
    moved = np.array([np.nextafter(1.0, 2), -2.0 - 2e-12, 3.0, -1e300, -0.0])
    single = values[:3].astype(np.float32)
    a = {"w": ("F64", values), "x": ("F32", single), "y": ("F64", values)}
    b = {"w": ("F64", moved), "x": ("F64", single.astype(np.float64) + 2.0**-24), "y": ("F64", values)}
    files = safetensors(tmp_path / "a.safetensors", a), safetensors(tmp_path / "b.safetensors", b)
    rows = {row["name"]: row for row in document(capsys, *map(str, files))["tensors"]}
    assert (rows["w"]["changed"], rows["w"]["ulps_of"], rows["w"]["largest"]) == (3, "fp64", 2e300)
    assert rows["w"]["median_ulps"] > 4000 and rows["y"]["changed"] == 0
    assert (rows["x"]["changed"], rows["x"]["ulps_of"], rows["x"]["largest_ulps"]) == (3, "fp32", 0.5)
    near = comparison.ulps_between(np.array([1.0, -5e-324]), np.array([np.nextafter(1.0, 2), 5e-324]), get("fp64"))
    assert near.tolist() == [1, 2]


def test_that_nan_on_one_side_has_no_figures_and_fp8_no_ulps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = np.ones(4, np.float32)
    broken = np.array([np.nan, 1, 1, 1], np.float32)
    eight = np.ones(4, ml_dtypes.float8_e4m3fn)
    a = safetensors(tmp_path / "a.safetensors", {"w": ("F32", values), "e": ("F8_E4M3", eight)})
    b = safetensors(tmp_path / "b.safetensors", {"w": ("F32", broken), "e": ("F8_E4M3", eight * eight.dtype.type(2))})
    rows = {row["name"]: row for row in document(capsys, str(a), str(b))["tensors"]}
    assert [rows["w"][name] for name in ("sqnr_db", "largest", "median_ulps", "largest_ulps")] == [None] * 4
    assert (rows["e"]["largest"], rows["e"]["ulps_of"], rows["e"]["largest_ulps"]) == (1, "", None)
    found = {row[0]: row[2:] for row in change_rows(comparison.compare_models(
        open_checkpoint(a), open_checkpoint(b), lambda _: None))}  # fmt: skip
    assert found["w"] == ("25.000%", "-", "-", "fp32", "-", "-") and found["e"][3:] == ("", "-", "-")
