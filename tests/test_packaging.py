"""What is shipped: the bundled data, and the wheel that carries it."""

from __future__ import annotations

import hashlib
import re

import numpy as np
from sklearn.datasets import load_digits

from precgui.paths import resources

DATA = resources() / "data"


def test_that_the_bundled_digits_are_those_of_scikit_learn() -> None:
    theirs = load_digits()
    with np.load(DATA / "digits.npz", allow_pickle=False) as ours:
        assert sorted(ours.files) == ["images", "labels"]
        images, labels = ours["images"], ours["labels"]
    assert images.dtype == labels.dtype == np.uint8
    np.testing.assert_array_equal(images, theirs.images)
    np.testing.assert_array_equal(labels, theirs.target)


def test_that_the_readme_of_the_data_names_the_sum_of_the_file() -> None:
    written = re.search(r"\b[0-9a-f]{64}\b", (DATA / "README.md").read_text(encoding="utf-8"))
    assert written is not None
    assert written.group() == hashlib.sha256((DATA / "digits.npz").read_bytes()).hexdigest()
