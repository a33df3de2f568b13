"""The scan of a checkpoint beside the reference in NumPy, and the counts beside the scan."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from precgui.engine.survey import scan as scanning
from precgui.engine.survey.scan import scan
from precgui.formats.checkpoints.contents import open_checkpoint
from precgui.formats.checkpoints.survey import FIGURES, TensorSurvey, answer, ratio_db, totals
from precgui.formats.weight_formats import known_formats, round_weights, weight_format
from tests.formats.checkpoint_files import safetensors

NAMES = (*known_formats(), "mxfp4:ceil", "mxfp4:rceil", "mxfp6_e2m3:even", "e3m4/32", "e5m10", "int6/16", "e2m1/row",
         "bf16/none", "e8m3/64")  # fmt: skip
FORMATS = [weight_format(name) for name in NAMES]


def weights(*shape: int, seed: int = 1) -> NDArray[np.float32]:
    """Heavy tails, zeros and an outlier column."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape) * np.exp(0.5 * rng.standard_normal(shape)) * 0.02
    values[..., 0, : shape[-1] // 8] = 0
    values[..., 3] *= 30
    return values.astype(np.float32)


def surveyed(folder: Path, tensors: dict[str, tuple[str, Any]], **options: Any) -> dict[str, TensorSurvey]:
    safetensors(folder / "m.safetensors", tensors)
    found: list[TensorSurvey] = []
    assert scan(open_checkpoint(folder).tensors, FORMATS, found.append, **options)
    return {each.name: each for each in found}


def check(each: TensorSurvey, values: NDArray[Any]) -> None:
    """Compare the figures of each format with the reference, in doubles."""
    plain = values.astype(np.float32)
    for fmt, row in zip(FORMATS, each.figures, strict=True):
        if fmt.misfit(plain.shape[-1]):
            assert np.isnan(row).all()
            continue
        after = round_weights(plain, fmt).astype(np.float64)
        error = plain - after
        figures = dict(zip(FIGURES, row.tolist(), strict=True))
        assert figures["sqnr_db"] == pytest.approx(
            ratio_db((plain.astype(float) ** 2).sum(), (error**2).sum()), abs=1e-4
        )
        assert figures["worst"] == pytest.approx(np.abs(error).max(), rel=1e-5)
        assert figures["zeroed"] == ((after == 0) & (plain != 0)).sum()
        cosine = (plain * after).sum() / math.sqrt((plain.astype(float) ** 2).sum() * (after**2).sum())
        assert figures["cosine"] == pytest.approx(cosine, abs=1e-6)


@pytest.mark.parametrize("columns", [256, 160, 60])
def test_that_every_figure_is_that_of_the_reference(tmp_path: Path, columns: int) -> None:
    values = weights(24, columns).astype(ml_dtypes.bfloat16)
    check(surveyed(tmp_path, {"w": ("BF16", values)})["w"], values)


def test_that_fp32_and_fp16_and_one_axis_are_scanned(tmp_path: Path) -> None:
    plain, half, norm = weights(9, 128), weights(4, 64).astype(np.float16), weights(2, 64)[1]
    found = surveyed(tmp_path, {"plain": ("F32", plain), "half": ("F16", half), "norm": ("F32", norm)}, threads=2)
    check(found["plain"], plain)
    check(found["half"], half)
    check(found["norm"], norm[None])
    assert not found["plain"].is_exact and found["half"].code == "fp16"


def test_that_pieces_give_what_the_whole_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {"w": ("BF16", weights(8, 1024).astype(ml_dtypes.bfloat16)), "v": ("F32", weights(2, 1024))}
    whole = surveyed(tmp_path, tensors)
    for piece in (512, 2048):  # parts of rows, and a few rows
        monkeypatch.setattr(scanning, "PIECE", piece)
        parts = surveyed(tmp_path, tensors)
        for name, each in whole.items():
            assert np.allclose(each.figures, parts[name].figures, rtol=1e-6, equal_nan=True)
            assert np.array_equal(each.counts, parts[name].counts)


def test_that_statistics_are_those_of_the_numbers(tmp_path: Path) -> None:
    values = weights(8, 128)
    values[1, :3] = np.nan, np.inf, -np.inf
    for kind, stored in (("F32", values), ("BF16", values.astype(ml_dtypes.bfloat16))):
        each = surveyed(tmp_path, {"w": (kind, stored)})["w"]
        plain = stored.astype(np.float64)
        known = plain[np.isfinite(plain)]
        assert (each.nan, each.pos_inf, each.neg_inf, each.zeros) == (1, 1, 1, int((known == 0).sum()))
        assert (each.amax, each.amin_nonzero) == (np.abs(known).max(), np.abs(known[known != 0]).min())
        assert each.mean == pytest.approx(known.mean()) and each.rms == pytest.approx(np.sqrt((known**2).mean()))
        assert each.exponents.sum() == 1024 and each.exponents[255] == 3
        assert each.columns[0][0] == 3 and each.columns[0][1] == each.amax > 5 * each.usual_column
        assert (each.figures[:, FIGURES.index("zeroed")] >= 0).all()
        assert each.kurtosis == pytest.approx(((known - known.mean()) ** 4).mean() / known.var() ** 2, rel=0.05)


def test_that_counts_answer_every_format_with_one_scale(tmp_path: Path) -> None:
    values = weights(16, 128).astype(ml_dtypes.bfloat16)
    each = surveyed(tmp_path, {"w": ("BF16", values)})["w"]
    for place, fmt in enumerate(FORMATS):
        if fmt.group == 0:
            known = answer(each, fmt)
            row = dict(zip(FIGURES, each.figures[place].tolist(), strict=True))
            assert known.sqnr_db == pytest.approx(row["sqnr_db"], abs=1e-3)  # the scan divides in FP32
            assert (known.zeroed, known.clipped) == (row["zeroed"], row["clipped"])
    fmt = weight_format("int8")
    smaller = answer(each, fmt, 0.25)
    plain = values.astype(np.float64)
    codes = np.clip(np.rint(plain / smaller.scale), -128, 127)
    assert smaller.clipped == (np.abs(np.rint(plain / smaller.scale) - codes) > 0).sum() > 0
    assert smaller.sqnr_db == pytest.approx(ratio_db((plain**2).sum(), ((codes * smaller.scale - plain) ** 2).sum()))
    with pytest.raises(ValueError, match="rows or groups"):
        answer(each, weight_format("int8/row"))


def test_that_an_outlier_column_hurts_int8_and_not_e4m3(tmp_path: Path) -> None:
    plain = (np.random.default_rng(1).standard_normal((64, 256)) * 0.02).astype(np.float32)
    planted = plain.copy()
    planted[:, 7] *= 60
    found = surveyed(tmp_path, {"plain": ("F32", plain), "planted": ("F32", planted)})
    loss = {}
    for name in ("int8/row", "int4/128", "e4m3fn/row"):
        kept = [  # the error over the signal of the other columns
            10 ** (-found[each].figures[NAMES.index(name), 1] / 10) * (values**2).sum()
            for each, values in (("plain", plain), ("planted", planted))
        ]
        loss[name] = kept[1] / kept[0]
    assert loss["int8/row"] > 50 and loss["int4/128"] > 2 and found["planted"].columns[0][0] == 7
    assert found["planted"].figures[NAMES.index("e4m3fn/row"), 1] > 25


def test_that_an_fp32_file_of_bf16_numbers_is_known(tmp_path: Path) -> None:
    values = weights(4, 64).astype(ml_dtypes.bfloat16).astype(np.float32)
    each = surveyed(tmp_path, {"w": ("F32", values)})["w"]
    assert each.is_exact and each.figures[NAMES.index("bf16"), 1] == math.inf


def test_that_totals_add_bytes_and_noise(tmp_path: Path) -> None:
    a, b = weights(4, 128), weights(4, 128, seed=2) * 10
    found = list(surveyed(tmp_path, {"a": ("F32", a), "b": ("F32", b)}).values())
    fmt = weight_format("mxfp4")
    size, sqnr = totals(found, FORMATS)["mxfp4"]
    both = np.concatenate([a, b])
    noise = ((round_weights(both, fmt).astype(float) - both) ** 2).sum()
    assert size == 1024 * 4.25 / 8 and sqnr == pytest.approx(ratio_db((both.astype(float) ** 2).sum(), noise), abs=1e-3)


def test_that_a_scan_stops_and_goes_on(tmp_path: Path) -> None:
    tensors = {f"w{n}": ("F32", weights(4, 64, seed=n)) for n in range(6)}
    safetensors(tmp_path / "m.safetensors", tensors)
    checkpoint, found, asked = open_checkpoint(tmp_path), [], iter(range(100))
    assert not scan(checkpoint.tensors, FORMATS, found.append, stopped=lambda: next(asked) >= 5)  # twice a tensor
    first = [each.name for each in found]
    assert len(first) == 2  # whichever thread runs first
    assert scan(checkpoint.tensors, FORMATS, found.append, done=first)
    assert sorted(each.name for each in found) == sorted(tensors)


def test_that_counts_give_the_figures_of_a_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    low = weights(24, 640).astype(ml_dtypes.bfloat16)
    holes = low.copy()
    holes[2, 5], holes[3, 7] = np.nan, np.inf
    wide = np.array(weights(8, 130) * np.float32(3e6), np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)
    tensors = {"low": ("BF16", low), "holes": ("BF16", holes), "half": ("F16", weights(24, 96).astype(np.float16)),
               "wide": ("F32", wide)}  # fmt: skip
    found = []
    for least in (0, 1 << 40):
        monkeypatch.setattr(scanning, "_EACH_CODE", least)
        found.append(surveyed(tmp_path, tensors))
    by_counts, by_pass = found
    assert by_pass["wide"].is_exact and by_pass["wide"].figures[NAMES.index("fp16"), FIGURES.index("clipped")] > 0
    for name in tensors:
        for place in ("clipped", "zeroed", "bytes"):
            column = FIGURES.index(place)
            assert np.array_equal(by_counts[name].figures[:, column], by_pass[name].figures[:, column], equal_nan=True)
        assert np.allclose(by_counts[name].figures, by_pass[name].figures, rtol=1e-5, atol=1e-5, equal_nan=True)
