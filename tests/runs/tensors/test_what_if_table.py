"""The what-if of a whole run as a table: against plain h5py, with samples at their weight, in the order asked for."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

import precgui
from precgui.config import RunConfig
from precgui.events import EXPONENT_BINS, TENSOR_STATS, RunEnded, RunStarted, TensorStats
from precgui.runs.tensors.grouping import ALL
from precgui.runs.tensors.what_if_table import SORTS, WhatIfTable, as_json, lost_sentence, ordered, what_if_table
from tests.runs.synthetic import open_writer

NAMES = ("first.weight", "first.bias", "last.weight")
COUNT, ZEROS, AMAX, NAN, CHANGED = (TENSOR_STATS.index(name) for name in ("count", "zeros", "amax", "nan", "changed"))


def event(step: int, kind: str = "gradient") -> TensorStats:
    """first.weight: one of 8 blocks, half below 2^-30; first.bias: 100 zeros; last.weight: NaN in step 3."""
    exponents, stats = np.zeros((3, EXPONENT_BINS), "<u4"), np.zeros((3, len(TENSOR_STATS)))
    exponents[0, [127 - 30, 127 - 4]] = 640, 640
    exponents[1, 0], exponents[1, 127] = 100, 100
    exponents[2, 127 + 9] = 50
    stats[:, COUNT], stats[:, AMAX] = (1280, 200, 50), (1.5 * 2.0**-4, 1.25, 1.75 * 2.0**9)
    stats[1, ZEROS] = 100
    stats[:, CHANGED] = (0.5, 1.0, np.nan) if kind == "update" else np.nan
    stats[:, CHANGED + 1] = (0.9, 0.2, np.nan) if kind == "update" else np.nan  # lost_bf16
    if step == 3:
        exponents[2, [127 + 9, 255]], stats[2, NAN] = (49, 1), 1
    return TensorStats(step, step / 10, kind, NAMES, (8, 1, 1), stats.tobytes(), exponents.tobytes())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with open_writer(tmp_path / "run.h5", RunConfig(precision="fp32")) as emit:
        emit(RunStarted(0.0, 5, 5, "cpu"))
        for step in range(1, 6):
            emit(event(step))
        emit(event(5, "update"))
        emit(RunEnded(1.0, "completed"))
    return tmp_path / "run.h5"


def told(path: Path, kind: str = "gradient", formats: tuple[str, ...] = ("fp16",), scale: int = 0) -> WhatIfTable:
    with precgui.open_run(path) as run:
        found = what_if_table(run, kind, list(formats), scale, "by tensor")
    assert found is not None
    return found


def test_that_shares_are_those_that_the_file_holds(path: Path) -> None:
    lines = {line.tensor: line for line in told(path).tensors}
    with h5py.File(path) as file:
        counts = file["tensors/gradient/exponents"][:].astype(float)
        weight = file["tensors/gradient/stride"][:][:, :, None]
        zeros = file["tensors/gradient/stats"][:][:, :, ZEROS]
    small = counts[:, :, : 127 - 25].sum(2) - zeros
    for place, name in enumerate(NAMES):
        assert lines[name].underflow == small[:, place].sum() / counts[:, place].sum()
    whole = (counts * weight).sum()
    assert lines[ALL].elements == whole
    assert lines[ALL].underflow == (small * weight[:, :, 0]).sum() / whole
    assert lines[ALL].underflow > small.sum() / counts.sum()  # what samples alone would say


def test_that_samples_are_told_from_what_was_counted(path: Path) -> None:
    found = told(path)
    lines = {line.tensor: line for line in found.tensors}
    assert (found.certainty, found.steps, found.first_step, found.last_step) == ("estimate", 5, 1, 5)
    assert 0.05 < lines["first.weight"].underflow_spread < 0.11  # 100 blocks
    assert lines["first.bias"].underflow_spread == lines["last.weight"].overflow_spread == 0
    assert 0 < lines[ALL].underflow_spread < lines["first.weight"].underflow_spread


def test_that_the_safe_scale_is_the_last_that_lets_everything_fit(path: Path) -> None:
    lines = {line.tensor: line for line in told(path).tensors}
    for line in lines.values():
        with np.errstate(over="ignore"):
            fits, too_large = (np.float16(line.largest * 2.0 ** (line.safe_scale_log2 + k)) for k in (0, 1))
        assert np.isfinite(fits)
        assert np.isinf(too_large)
    assert lines[ALL].safe_scale_log2 == lines["last.weight"].safe_scale_log2 == 6


def test_that_only_updates_say_how_much_changed(path: Path) -> None:
    assert all(np.isnan(line.changed) for line in told(path).tensors)
    changed = [line.changed for line in told(path, "update").tensors]
    assert changed[1:3] == [0.5, 1.0]
    assert changed[0] == pytest.approx((0.5 * 8 * 1280 + 200) / (8 * 1280 + 200))
    assert np.isnan(changed[3])


@pytest.mark.parametrize("by", SORTS)
def test_that_the_whole_stands_first_and_what_has_no_number_last(path: Path, by: str) -> None:
    key, down = SORTS[by]
    lines = ordered(told(path, "update", ("fp16", "e4m3fn")).tensors, by, ALL)
    assert [line.format for line in lines] == ["fp16"] * 4 + ["e4m3fn"] * 4
    for own in (lines[:4], lines[4:]):
        assert own[0].tensor == ALL
        values = [key(line) for line in own[1:]]
        known = [value for value in values if value == value]
        assert known == sorted(known, reverse=down)
        assert all(value != value for value in values[len(known) :])


def test_that_the_first_step_with_nan_is_told(path: Path) -> None:
    assert [line.nonfinite_step for line in told(path).tensors if line.nonfinite_step == line.nonfinite_step] == [3, 3]


def test_that_a_table_is_plain_json(path: Path) -> None:
    document = json.dumps([as_json(line) for line in told(path, scale=8).tensors], allow_nan=False)
    lines = {line["tensor"]: line for line in json.loads(document)}
    assert lines["last.weight"]["snr_db"] is None  # it overflows
    assert lines["last.weight"]["safe_scale"] == 64
    assert lines["first.weight"]["nonfinite_step"] is None


def test_that_a_kind_that_was_not_recorded_is_none_and_integers_are_refused(path: Path) -> None:
    with precgui.open_run(path) as run:
        assert what_if_table(run, "weight", ["fp16"], 0, "by tensor") is None
        with pytest.raises(ValueError, match="no exponents"):
            what_if_table(run, "gradient", ["int8"], 0, "by tensor")


def test_that_updates_say_how_much_of_what_changed_bf16_would_lose(path: Path) -> None:
    assert all(np.isnan(line.lost_bf16) for line in told(path).tensors)
    lines = told(path, "update").tensors
    assert [line.lost_bf16 for line in lines[1:3]] == pytest.approx([0.9, 0.2])
    whole, tensor = 0.5 * 8 * 1280, 200.0  # changed elements
    assert lines[0].lost_bf16 == pytest.approx((0.9 * whole + 0.2 * tensor) / (whole + tensor))
    assert np.isnan(lines[3].lost_bf16)
    sentence = lost_sentence({"bf16": lines[0].lost_bf16, "fp16": float("nan")})
    assert sentence.endswith("rounded to nearest: 87 % in bf16.")
    assert lost_sentence({"bf16": float("nan")}) == ""
