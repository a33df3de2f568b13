"""Statuses that tell the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from precgui.runs.outcome import nonfinite_since, outcome, outcome_sentence
from precgui.sentences import Sentence

NAN = math.nan


@pytest.mark.parametrize(
    ("losses", "since"),
    [([1, 2, 3], None), ([], None), ([1, NAN, NAN], 2), ([NAN, NAN], 1), ([1, NAN, 2], None), ([NAN, 1, math.inf], 3)],
)
def test_that_nan_counts_from_the_last_finite_loss(losses: list[float], since: int | None) -> None:
    assert nonfinite_since(np.arange(1.0, len(losses) + 1), np.array(losses, float)) == since


def test_that_the_status_says_what_it_hides() -> None:
    good = {"steps": 9, "skipped_steps": 2, "nonfinite_since_step": None, "final": {"train_loss": 1.0}}
    assert outcome("completed", good) == "completed"
    assert outcome("completed", good | {"nonfinite_since_step": 2}) == "completed, NaN since step 2"
    assert outcome("stopped", good | {"skipped_steps": 9}) == "stopped, no step taken"
    assert outcome("failed", good | {"skipped_steps": 9}) == "failed"
    early = {"steps": 9, "skipped_steps": 0, "final": {"train_loss": None}}
    assert outcome("completed", early) == "completed, NaN at the end"
    assert outcome("running", {}) == "running"


@pytest.mark.parametrize(
    "text",
    ["completed, NaN since step 2", "stopped, no step taken", "completed, last validation loss not finite",
     "completed, last validation metric not finite", "completed, NaN at the end"],
)  # fmt: skip
def test_that_an_outcome_that_was_kept_as_text_is_read_back_as_a_sentence(text: str) -> None:
    assert outcome_sentence(text) == text
    assert isinstance(outcome_sentence(text), Sentence)
    assert outcome_sentence("completed") == "completed"
