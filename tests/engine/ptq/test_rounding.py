"""Rounding in torch beside `round_weights`, and ranks beside SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from precgui.engine.ptq.ranks import rank_agreement
from precgui.engine.ptq.rounding import RowRounding, round_rows
from precgui.formats.weight_formats import known_formats, round_weights, weight_format

NAMES = [
    *known_formats(),
    "mxfp4:even",
    "mxfp4:rceil",
    "mxfp4:ceil",
    "e3m4/32",
    "int5",
    "int3/64",
    "e2m1/row",
    "e5m10/none",
]


def weights(line: int) -> np.ndarray:
    rng = np.random.default_rng(5)
    values = (rng.standard_normal((12, line)) * 2.0 ** rng.integers(-12, 6, (12, line))).astype(np.float32)
    values[0], values[1, :40], values[2, 3], values[3] = 0, 0, 3e4, np.float32(1e-30)
    values[4] = np.linspace(-7.5, 7.5, line, dtype=np.float32)  # ties
    return values


@pytest.mark.parametrize("name", NAMES)
def test_that_torch_rounds_as_the_reference_does(name: str) -> None:
    fmt, values = weight_format(name), weights(256)
    rounded = round_rows(torch.from_numpy(values), fmt).numpy()
    assert np.array_equal(rounded, round_weights(values, fmt))


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "e4m3fn/row", "nf4/64"])
def test_that_rows_end_within_a_group(name: str) -> None:
    fmt, values = weight_format(name), weights(256)[:, :84]
    assert np.array_equal(round_rows(torch.from_numpy(values.copy()), fmt).numpy(), round_weights(values, fmt))


def test_that_rows_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="rows of 84 are no multiple of 32"):
        round_rows(torch.ones(2, 84), weight_format("int4/32"))


def test_that_images_have_a_scale_each_and_tokens_one_each() -> None:
    fmt = weight_format("int8/row")
    images = torch.randn(2, 32, 4, 4, generator=torch.Generator().manual_seed(0))
    images[0] *= 100
    rounded = RowRounding(fmt)(images, 1)
    assert torch.equal(rounded, round_rows(images.flatten(1), fmt).view(images.shape))
    tokens = images.flatten(2).movedim(1, -1)
    assert torch.equal(RowRounding(fmt)(tokens, -1)[1, 3], round_rows(tokens[1, 3][None], fmt)[0])
    blocks = RowRounding(weight_format("mxfp4"))(images, 1)  # along the channels
    assert torch.equal(blocks[0, :, 1, 2], round_rows(images[0, :, 1, 2][None], weight_format("mxfp4"))[0])


def test_that_ranks_agree_as_scipy_says() -> None:
    from scipy.stats import spearmanr

    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 6, 40).astype(float), rng.integers(0, 6, 40).astype(float)
    assert rank_agreement(list(first), list(second)) == pytest.approx(spearmanr(first, second)[0])
    assert rank_agreement([1.0, 2, 3], [10.0, 30, 20]) == pytest.approx(0.5)
    assert np.isnan(rank_agreement([1.0, 1, 1], [1.0, 2, 3])) and np.isnan(rank_agreement([1.0, 2], [1.0, 2]))
