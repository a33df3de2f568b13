"""The rounding experiments and the number line, against NumPy and against what is known."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from precgui.formats.arrays import quantize_array
from precgui.formats.lab import (
    FUNCTIONS,
    dot_product,
    exact_softmax,
    function_values,
    gradients,
    kahan_sums,
    rounder,
    running_sums,
    scale_curve,
    softmax,
    stagnation,
)
from precgui.formats.line import stretch
from precgui.formats.registry import formats, get
from precgui.formats.sorted_values import SortedValues
from precgui.formats.tensorfile import TensorFileError, load_tensor, tensor_names
from tests.formats.references import bits_equal


def test_that_a_loss_scale_saves_what_underflows() -> None:
    values = gradients(4000, 1e-8, 0.5, seed=1)
    curve = scale_curve(values, get("fp16"))
    with np.errstate(all="ignore"):
        zeros = [float(np.mean((values * 2.0**k).astype(np.float16) == 0)) for k in curve.exponents]
        overflows = [float(np.mean(np.isinf((values * 2.0**k).astype(np.float16)))) for k in curve.exponents]
    assert curve.underflow.tolist() == zeros
    assert curve.overflow.tolist() == overflows
    assert curve.underflow[0] > 0.5
    assert curve.underflow[16] == 0


def test_that_partial_sums_are_those_of_numpy() -> None:
    increments = np.random.default_rng(0).uniform(0, 1, 500)
    for name, dtype in (("fp16", np.float16), ("fp32", np.float32), ("bf16", ml_dtypes.bfloat16)):
        total, theirs = np.zeros((), dtype), [0.0]
        for step in increments:
            total = dtype(np.float64(total) + step)
            theirs.append(float(total))
        assert running_sums(increments, get(name))[0].tolist() == theirs


@pytest.mark.parametrize("name", ["fp16", "bf16", "e4m3fn", "e5m2"])
@pytest.mark.parametrize("increment", [1.0, 0.1, 0.37])
def test_that_a_sum_stops_where_stagnation_says(name: str, increment: float) -> None:
    sums = running_sums([quantize_array(increment, get(name))] * 3000, get(name))[0]
    end = stagnation(increment, get(name))
    assert end is not None
    assert sums[-1] == end or sums[-1] < end


@pytest.mark.parametrize("name", ["fp16", "bf16", "fp32", "e4m3fn", "e2m1", "e5m2", "ue4m3", "fp64", "int8"])
def test_that_the_rounder_of_single_values_is_the_array_form(name: str) -> None:
    values = [*np.random.default_rng(3).normal(size=500) * 10.0 ** np.arange(-250, 250), 0.0, -0.0, np.inf, np.nan]
    ours = [rounder(get(name))(float(value)) for value in values]
    kept = ~np.isnan(values)
    assert bits_equal(np.array(ours)[kept], quantize_array(values, get(name))[kept]).all()


def test_that_stochastic_and_compensated_sums_go_on() -> None:
    ones = np.ones(1000)
    trials = running_sums(ones, get("bf16"), "stochastic", trials=32, seed=2)
    assert running_sums(ones, get("bf16"))[0, -1] == 256
    assert abs(trials[:, -1].mean() - 1000) < 4 * trials[:, -1].std() / 32**0.5 + 1
    assert kahan_sums(ones, get("bf16"))[-1] == pytest.approx(1000, abs=4)


def test_that_shifting_saves_softmax_in_fp16() -> None:
    logits = [0.0, 5.0, 12.0]
    assert np.isnan(softmax(logits, get("fp16"), shifted=False)).any()
    assert softmax(logits, get("fp16"), shifted=True) == pytest.approx(exact_softmax(logits), abs=1e-3)
    assert exact_softmax(logits).sum() == pytest.approx(1)


def test_that_a_dot_product_follows_its_accumulator() -> None:
    assert dot_product(np.ones(3000), np.ones(3000), get("fp16"), get("fp16")) == 2048
    assert dot_product(np.ones(3000), np.ones(3000), get("fp16"), get("fp32")) == 3000


@pytest.mark.parametrize("name", FUNCTIONS)
def test_that_quantised_functions_lie_on_the_grid(name: str) -> None:
    x = np.linspace(-3, 3, 301)
    exact, rounded = function_values(name, x, get("e4m3fn"))
    known = np.isfinite(rounded)
    assert np.array_equal(quantize_array(rounded[known], get("e4m3fn")), rounded[known])
    assert exact.shape == rounded.shape


def test_that_a_stretch_holds_the_values_between_its_ends() -> None:
    found = stretch(get("e2m1"), -1.2, 2.0)
    assert found.values.tolist() == [-1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0]
    wide = stretch(get("fp32"), 1.0, 8.0)
    assert (wide.complete, wide.count) == (False, 3 * 2**23 + 1)
    assert wide.values.tolist() == [1, 2, 4, 8]
    assert stretch(get("e2m1"), 7.0, 9.0).count == 0
    assert stretch(get("e2m1"), -9.0, -7.0).count == 0
    assert stretch(get("nf4"), -2.0, 2.0).count == 16
    assert stretch(get("int4"), -2.5, 2.5).values.tolist() == [-2, -1, 0, 1, 2]
    assert stretch(get("fp64"), 1.0, 1.0 + 2**-50).count == 5


def test_that_shares_add_up_and_match_a_direct_count() -> None:
    found = SortedValues([0.0, 1e-9, 3e-8, 1e-6, 1.0, 1e5, np.inf, np.nan]).shares(get("fp16"))
    assert (found.zero, found.underflow, found.subnormal) == (1 / 8, 1 / 8, 2 / 8)
    assert (found.normal, found.saturated, found.nan) == (1 / 8, 2 / 8, 1 / 8)
    assert SortedValues([465.0, 464.0]).shares(get("e4m3fn")).saturated == 0.5
    assert SortedValues([-1.0, 1.0]).shares(get("ue4m3")).saturated == 0.5
    assert SortedValues([]).shares(get("fp16")).normal == 0
    assert SortedValues([np.nan]).shares(get("fp16")).nan == 1


@pytest.mark.parametrize("name", ["fp16", "bf16", "e4m3fn", "e5m2fnuz", "e2m1", "int8", "uint4", "nf4", "e8m0"])
def test_that_shares_are_those_of_every_single_value(name: str) -> None:
    rng, fmt = np.random.default_rng(4), get(name)
    values = rng.normal(size=3000) * 10.0 ** rng.integers(-10, 7, 3000)
    rounded = quantize_array(values, fmt)
    found = SortedValues(values).shares(fmt)
    known = np.isfinite(rounded)
    assert found.underflow == np.mean((rounded == 0) & (fmt.signed | (values >= -0.5)))
    normal = getattr(fmt, "min_normal", None) or 0
    small = known & (rounded != 0) & (np.abs(rounded) < float(normal))
    assert found.subnormal == np.mean(small)
    assert sum((found.zero, found.underflow, found.subnormal, found.normal, found.saturated)) == pytest.approx(1)
    if fmt.has_inf or fmt.has_nan:
        assert found.saturated == np.mean(~known)


def test_that_every_format_counts_its_losses() -> None:
    values = SortedValues(np.random.default_rng(1).normal(size=500))
    for fmt in (*formats().values(), get("e15m112"), get("e0m15"), get("e1m1")):
        assert 0 <= values.shares(fmt).saturated <= 1


def test_that_the_histogram_counts_by_binade_and_in_any_interval() -> None:
    values = SortedValues([1.0, 1.5, -2.0, 0.25, 0.0, np.inf, np.nan, -np.inf, 5e-324])
    exponents, counts = values.binades()
    assert {k: n for k, n in zip(exponents.tolist(), counts.tolist(), strict=True) if n} == {
        -1074: 1,
        -2: 1,
        0: 2,
        1: 1,
    }
    assert values.counts(np.array([-3.0, 0.0, 1.0, 1.25])).tolist() == [1, 3, 1]
    assert values.magnitudes(np.array([1.0, 2.0, 3.0])).tolist() == [2, 1]
    assert SortedValues([0.0]).binades()[0].size == 0


def _safetensors(path: Path, arrays: dict[str, tuple[str, list[int], bytes]]) -> None:
    header, data = {}, b""
    for name, (kind, shape, raw) in arrays.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    words = json.dumps(header).encode()
    path.write_bytes(len(words).to_bytes(8, "little") + words + data)


def test_that_tensor_files_are_read_without_running_anything(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(6, dtype=np.float16).reshape(2, 3))
    assert tensor_names(tmp_path / "a.npy") == ["a"]
    assert load_tensor(tmp_path / "a.npy", "a").tolist() == [[0, 1, 2], [3, 4, 5]]
    values = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    _safetensors(
        tmp_path / "b.safetensors",
        {"w": ("F32", [2], np.float32([1, 2]).tobytes()), "h": ("BF16", [2], values.tobytes())},
    )
    assert tensor_names(tmp_path / "b.safetensors") == ["w", "h"]
    assert load_tensor(tmp_path / "b.safetensors", "h").tolist() == [1.5, -2.0]


@pytest.mark.parametrize("content", [b"", b"\xff" * 40, b"\x10\0\0\0\0\0\0\0{}", b"\x02\0\0\0\0\0\0\0[]"])
def test_that_damaged_tensor_files_get_one_sentence(tmp_path: Path, content: bytes) -> None:
    for name in ("x.npy", "x.safetensors", "x.pt"):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(TensorFileError) as caught:
            load_tensor(path, "w")
        assert "\n" not in str(caught.value)
    objects = tmp_path / "o.npy"
    np.save(objects, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(TensorFileError):
        load_tensor(objects, "o")


def test_that_a_tensor_beyond_its_file_is_refused(tmp_path: Path) -> None:
    _safetensors(tmp_path / "c.safetensors", {"w": ("F32", [1 << 20], b"\0" * 16)})
    with pytest.raises(TensorFileError, match="damaged"):
        load_tensor(tmp_path / "c.safetensors", "w")
    _safetensors(tmp_path / "d.safetensors", {"w": ("F32", [1 << 40], b"\0" * 16)})
    with pytest.raises(TensorFileError, match="elements"):
        load_tensor(tmp_path / "d.safetensors", "w")
