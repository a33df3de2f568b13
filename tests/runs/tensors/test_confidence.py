"""What is said of how far a what-if can be trusted: which runs give exact answers, and how far samples may be off."""

from __future__ import annotations

import numpy as np
import pytest

from precgui.config import RunConfig
from precgui.events import RunEnded, RunStarted, StepDone
from precgui.runs.live import LiveRun
from precgui.runs.tensors.confidence import BLOCK, basis_of, share_text, spread, spread_text
from tests.runs.synthetic import live_run


def run_in(precision: str, scales: tuple[float, ...] = (1.0,), skipped: tuple[bool, ...] = (False,)) -> LiveRun:
    events = [
        StepDone(step, step / 10, 1.0, scale, skip, 0.1, 1.0, 0.1, 0.0, 8, float("nan"))
        for step, (scale, skip) in enumerate(zip(scales, skipped, strict=True), 1)
    ]
    config = RunConfig(precision=precision)
    return live_run([RunStarted(0.0, 9, 9, "cpu"), *events, RunEnded(9.0, "completed")], config)


@pytest.mark.parametrize(
    ("precision", "kind", "log2_scale", "word"),
    [
        ("fp32", "gradient", 0, "exact"),
        ("fp32", "gradient", 12, "exact"),
        ("fp32", "gradient", -1, "lower bound"),
        ("fp32", "activation_gradient", -1, "lower bound"),
        ("fp32", "weight", -1, "exact"),
        ("tf32", "gradient", 0, "exact"),
        ("bf16-amp", "gradient", 0, "exact"),
        ("bf16-pure", "weight", 0, "exact"),
        ("fp16-amp", "gradient", 0, "lower bound"),
        ("fp16-amp", "activation", 0, "lower bound"),
        ("fp16-amp", "weight", 0, "exact"),
        ("fp16-pure", "weight", 0, "lower bound"),
        ("fp8", "gradient", 0, "lower bound"),
        ("fp8", "activation", 0, "exact"),
        ("mxfp4", "activation_gradient", 0, "lower bound"),
        ("emulated:e5m2", "gradient", 0, "lower bound"),
        ("emulated:bf16", "gradient", 0, "exact"),
        ("int8-qat", "gradient", 0, "exact"),
    ],
)
def test_that_what_the_run_had_lost_itself_makes_a_lower_bound(
    precision: str, kind: str, log2_scale: int, word: str
) -> None:
    basis = basis_of(run_in(precision), kind, sampled=False)
    assert basis.word(log2_scale) == word
    assert bool(basis.reasons(log2_scale)) == (word == "lower bound" or "bf16" in precision or precision == "tf32")


def test_that_samples_make_an_estimate_but_no_bound_exact() -> None:
    assert basis_of(run_in("fp32"), "gradient", sampled=True).word(0) == "estimate"
    assert basis_of(run_in("fp16-amp"), "gradient", sampled=True).word(0) == "lower bound"
    assert "samples" in " ".join(basis_of(run_in("fp32"), "gradient", sampled=True).reasons(0))


def test_that_the_smallest_scale_that_the_run_could_not_bear_is_told() -> None:
    run = run_in("fp16-amp", (2.0**24, 2.0**23, 2.0**22, 2.0**22), (True, True, False, False))
    assert any(
        "skipped steps at a scale of 2^23" in told for told in basis_of(run, "gradient", sampled=False).reasons(0)
    )
    assert not any("skipped" in told for told in basis_of(run, "weight", sampled=False).reasons(0))
    without = run_in("bf16-amp", (1.0, 1.0), (True, False))  # nothing was scaled, so no scale was too large
    assert not any("skipped" in told for told in basis_of(without, "gradient", sampled=False).reasons(0))


@pytest.mark.parametrize("stride", [2, 8, 32])
@pytest.mark.parametrize("share", [0.0, 0.002, 0.03, 0.4])
@pytest.mark.parametrize("alike", [1, 8, BLOCK])
def test_that_the_share_of_the_whole_lies_within_the_spread_of_samples(stride: int, share: float, alike: int) -> None:
    """Blocks of which `alike` neighbours have the same fate, as the engine takes them: one of `stride`."""
    rng = np.random.default_rng([stride, alike])
    blocks = 4096
    missed = 0
    for _ in range(100):
        lost = np.repeat(rng.random(blocks * BLOCK // alike) < share, alike).reshape(blocks, BLOCK)
        seen = lost[int(rng.integers(stride)) :: stride]
        looked, count = np.array([[float(seen.size), float(lost.size)]]), np.array([float(lost.size)])
        off = spread(np.array([seen.mean()]), looked, count)
        missed += bool(abs(seen.mean() - lost.mean()) > off[0])
    assert missed <= 8  # of a hundred; two standard deviations let about five through when all of a block are alike


def test_that_nothing_is_uncertain_where_everything_was_looked_at() -> None:
    assert spread(np.array([0.3, np.nan]), np.zeros((2, 2)), np.array([100.0, 0.0])).tolist() == [0, 0]
    half = spread(np.array([0.3]), np.array([[6400.0, 6400.0]]), np.array([12800.0]))
    assert half == pytest.approx(0.5 * spread(np.array([0.3]), np.array([[6400.0, 6400.0]]), np.array([6400.0])))


@pytest.mark.parametrize(
    ("share", "off", "short", "long"),
    [
        (0.0, 0.0, "0 %", "0 %"),
        (1e-9, 0.0, "< 0.01 %", "< 0.01 %"),
        (0.0123, 0.0, "1.23 %", "1.23 %"),
        (0.0123, 0.001, "1.23 %", "1.23 ± 0.1 %"),
        (0.99996, 0.0004, "99.99 %", "99.99 ± 0.04 %"),
        (1.0, 0.0, "100 %", "100 %"),
        (0.5, 0.02, "50 %", "50 ± 2 %"),
        (0.0, 0.004, "< 0.4 %", "< 0.4 %"),
        (0.001, 0.004, "0.10 %", "0.10 ± 0.4 %"),
        (0.0, 0.3, "< 30 %", "< 30 %"),
        (1e-6, 0.003, "< 0.01 %", "< 0.01 %"),
        (float("nan"), 0.0, "–", "–"),
    ],
)
def test_that_a_share_is_read_at_a_glance(share: float, off: float, short: str, long: str) -> None:
    assert share_text(share, off) == short
    assert spread_text(share, off) == long
