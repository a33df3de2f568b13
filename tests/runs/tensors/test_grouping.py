"""Tensors put together by the words of their names."""

from __future__ import annotations

import numpy as np
import pytest

from precgui.events import EXPONENT_BINS, TENSOR_STATS
from precgui.runs.tensors.grouping import ALL, Rows, grouped


@pytest.mark.parametrize(
    ("kind", "grouping", "names"),
    [
        ("gradient", "by tensor", ["stem.weight", "layers.0.attn.q.weight", "layers.0.attn.q.bias", "layers.1.norm"]),
        ("gradient", "by layer", ["stem", "layers.0.attn.q", "layers.1"]),
        ("gradient", "by block", ["stem", "layers.0", "layers.1"]),
        ("gradient", "by parameter type", ["weight", "bias", "norm"]),
        ("activation", "by layer", ["stem", "layers.0.attn.q", "layers.1"]),
        ("activation", "by parameter type", ["weight", "bias", "norm"]),
        ("optimizer", "by layer", []),
    ],
)
def test_that_tensors_are_put_together_by_their_names(kind: str, grouping: str, names: list[str]) -> None:
    tensors = ("stem.weight", "layers.0.attn.q.weight", "layers.0.attn.q.bias", "layers.1.norm")
    rng = np.random.default_rng(0)
    exponents = rng.integers(0, 9, (3, 4, EXPONENT_BINS)).astype(np.float64)
    stats = rng.random((3, 4, len(TENSOR_STATS))) + 1
    view = grouped(Rows(kind, tensors, np.arange(3), exponents, stats), grouping)
    if names:
        assert list(view.names) == [ALL, *names]
    np.testing.assert_array_equal(view.histograms(0), exponents.sum(1))
    whole = np.sum([view.histograms(entry) for entry in range(1, len(view.names))], 0)
    np.testing.assert_array_equal(whole, exponents.sum(1))
    amax = view.stat("amax")
    np.testing.assert_array_equal(amax[:, 0], stats[:, :, TENSOR_STATS.index("amax")].max(1))
    assert sorted(np.concatenate(view.members[1:]).tolist()) == [0, 1, 2, 3]
