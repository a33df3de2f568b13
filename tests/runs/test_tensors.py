"""Statistics and histograms of tensors through the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import precgui
from precgui.events import RunEnded
from precgui.runs.recording import Recording
from precgui.runs.schema import EXPONENT_BINS, TABLES, TENSOR_STATS


def test_that_statistics_and_histograms_come_back_also_when_tensors_are_added(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    kept = []
    recording = Recording(
        tmp_path / "run.h5",
        attributes={"run_id": "", "title": "", "created": ""},
        texts={"config": "{}", "machine": "{}", "environment": "{}"},
        reserve_bytes=0,
    )
    names = np.array([b"conv.weight", "größe".encode(), b"fc.bias"], TABLES["tensors/names"].columns[""].dtype)
    for step, tensors in enumerate((2, 2, 3), start=1):
        stats = rng.normal(size=(1, tensors, len(TENSOR_STATS)))
        stats[0, 0, 0] = np.inf
        exponents = rng.integers(0, 2**32, (1, tensors, EXPONENT_BINS)).astype(np.uint32)
        kept.append((stats, exponents))
        row = {"step": np.array([step]), "stride": np.array([4]), "stats": stats, "exponents": exponents}
        recording.file.append({"tensors/gradient": row})
    recording.file.append({"tensors/names": {"": names}})
    recording.keep([RunEnded(1.0, "completed")])
    recording.close()
    with precgui.open_run(tmp_path / "run.h5") as run:
        record = run.tensors()["gradient"]
        assert list(run.tensors()) == ["gradient"]
        assert record.names == ("conv.weight", "größe", "fc.bias")
        assert (record.steps().tolist(), record.strides().tolist()) == ([1, 2, 3], [4, 4, 4])
        for row, (stats, exponents) in enumerate(kept):
            tensors = stats.shape[1]
            np.testing.assert_array_equal(record.stats(row, row + 1)[:, :tensors], stats)
            np.testing.assert_array_equal(record.exponents(row, row + 1)[:, :tensors], exponents)
        assert not record.exponents(0, 2)[:, 2].any()
        np.testing.assert_array_equal(record.stat("amax")[:, 0], [np.inf] * 3)
        with pytest.raises(ValueError, match="not in tuple"):
            record.stat("amin")


def test_that_a_run_without_tensors_has_none(write: Callable[..., Path]) -> None:
    with precgui.open_run(write()) as run:
        assert run.tensors() == {}
