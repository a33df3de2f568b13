"""Numbers drawn from a histogram of exponents have that histogram; parts of tensors say which they are."""

from __future__ import annotations

import numpy as np
import pytest

from precgui.formats.comparison import compare
from precgui.formats.pieces import in_memory
from precgui.formats.sampling import ValueHistogram, draw_values
from precgui.formats.schemes import Options


def _histogram(values: np.ndarray) -> ValueHistogram:
    single = values.astype(np.float32)
    counts = np.bincount(single.view(np.uint32) >> 23 & 255, minlength=256).astype(float)
    known = np.abs(single[np.isfinite(single)])
    zeros, ends = float(np.sum(known == 0)), (float(known.max()), float(known[known > 0].min()))
    return ValueHistogram(counts, zeros, *ends, float(single.mean()))


@pytest.mark.parametrize("kind", ["normal", "positive", "tiny", "zeros", "one"])
def test_that_a_sample_has_the_recorded_exponents(kind: str) -> None:
    rng = np.random.default_rng(2)
    normal = rng.normal(size=8192)
    values = {"normal": normal, "positive": np.abs(normal), "tiny": normal * 1e-39, "zeros": normal * (normal > 0),
              "one": np.array([-0.75])}[kind]  # fmt: skip
    found = draw_values(_histogram(values), 8192, seed=1).astype(np.float32)
    shares = [np.bincount(part.view(np.uint32) >> 23 & 255, minlength=256) / part.size
              for part in (values.astype(np.float32), found)]  # fmt: skip
    assert np.abs(shares[0] - shares[1]).max() <= 1 / 8192
    assert np.abs(found).max() == np.abs(values.astype(np.float32)).max()
    assert np.mean(found < 0) == pytest.approx(np.mean(values < 0), abs=0.08)
    assert np.mean(found == 0) == pytest.approx(np.mean(values == 0), abs=1 / 4096)


def test_that_a_sample_is_quantised_about_as_the_tensor_itself() -> None:
    values = np.random.default_rng(3).normal(size=(256, 256))
    sample = draw_values(_histogram(values.ravel()), values.size).reshape(values.shape)
    for scheme in ("int8", "e4m3fn", "mxfp8_e4m3", "nvfp4"):
        ours, theirs = (
            compare(in_memory(part), scheme, Options(), lambda _: None).losses.sqnr_db for part in (sample, values)
        )
        assert ours == pytest.approx(theirs, abs=0.5)


def test_that_nothing_finite_cannot_be_drawn_from() -> None:
    counts = np.zeros(256)
    counts[255] = 3
    with pytest.raises(ValueError, match="nothing finite"):
        draw_values(ValueHistogram(counts, 0, np.nan, np.nan, np.nan), 10)
