"""The loss-scale simulator beside torch.amp.GradScaler, and over recorded gradients."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from precgui.config import RunConfig
from precgui.config.sections import ScalingConfig
from precgui.events import EXPONENT_BINS, TENSOR_STATS, Event, RunEnded, RunStarted, StepDone, TensorStats
from precgui.runs.recorded_gradients import recorded_gradients
from precgui.runs.scaler_simulation import (
    GradientSequence,
    overflow_limits,
    policy_of,
    replay,
    simulate,
    synthetic_gradients,
    underflow_share,
)
from precgui.runs.tensors.what_if import WhatIf
from tests.runs.synthetic import live_run

POLICIES = (
    {"init_scale": 65536.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 1},
    {"init_scale": 1024.0, "growth_factor": 1.7, "backoff_factor": 0.3, "growth_interval": 2},
    {"init_scale": 2.0**126, "growth_factor": 2.0, "backoff_factor": 0.9, "growth_interval": 1},
    {"init_scale": 3.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 3},
)


def of_torch(options: dict[str, float], bad: tuple[bool, ...]) -> tuple[list[float], float]:
    """The scales of torch's scaler before each step, and the last one, when some gradients are Inf."""
    scaler = torch.amp.GradScaler("cpu", **options)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler.scale(torch.zeros(1))
    scales = []
    for is_bad in bad:
        scales.append(scaler.get_scale())
        weight.grad = torch.tensor([float("inf") if is_bad else 1.0])
        scaler.step(optimizer)
        scaler.update()
    return scales, scaler.get_scale()


@pytest.mark.parametrize("options", POLICIES)
def test_that_the_scale_is_that_of_torch_for_every_sequence_of_six_steps(options: dict[str, float]) -> None:
    policy = ScalingConfig(
        mode="dynamic", initial_scale=options["init_scale"], growth_factor=options["growth_factor"],
        backoff_factor=options["backoff_factor"], growth_interval=int(options["growth_interval"]),
    )  # fmt: skip
    for bad in product((False, True), repeat=6):
        scales, last = of_torch(options, bad)
        own, skipped, final = replay(np.where(bad, 0.0, np.inf), policy)
        assert (own.tolist(), final) == (scales, last)
        assert skipped.tolist() == list(bad)


def test_that_a_static_scale_stays_and_none_is_one() -> None:
    limits = np.array([np.inf, 0.0, 4.0, np.inf])
    scale, skipped, final = replay(limits, ScalingConfig(mode="static", initial_scale=8.0))
    assert (scale.tolist(), skipped.tolist(), final) == ([8.0] * 4, [False, True, True, False], 8.0)
    assert replay(limits, ScalingConfig(mode="none"))[0].tolist() == [1.0] * 4


def sequence(amax: list[float], **changes: object) -> GradientSequence:
    n = len(amax)
    parts: dict[str, object] = {
        "steps": np.arange(1, n + 1), "amax": np.array(amax), "amax_measured": np.ones(n, bool),
        "always_bad": np.zeros(n, bool), "skipped_at": np.full(n, np.nan), "taken_at": np.full(n, np.nan),
        "own_format": "", "share_steps": np.empty(0, np.int64), "share_below": np.empty((0, EXPONENT_BINS + 1)),
    }  # fmt: skip
    return GradientSequence(**{**parts, **changes})


def test_that_a_step_is_skipped_exactly_where_the_scaled_gradient_becomes_inf_in_the_format() -> None:
    amax = [65519.0, 65520.0, 1.0, 0.51, 0.5, 0.0, 3e-6]
    for scale in (1.0, 65536.0, 2.0**17, 3000.0):
        told = simulate(sequence(amax), ScalingConfig(mode="static", initial_scale=scale))
        cast = torch.tensor([value * scale for value in amax], dtype=torch.float64).to(torch.float16)
        assert told.skipped.tolist() == torch.isinf(cast).tolist()


def test_that_an_injected_inf_skips_the_step_and_halves_the_scale() -> None:
    told = simulate(sequence([1.0] * 5), policy_of("initial=16,interval=100"), injected=(3,))
    assert told.skipped.tolist() == [False, False, True, False, False]
    assert told.scale.tolist() == [16.0, 16.0, 16.0, 8.0, 8.0]
    assert (told.first_taken, told.final_scale) == (1, 8.0)


def test_that_the_run_s_own_skips_and_steps_outweigh_what_is_interpolated() -> None:
    known = sequence(
        [1.0, 1.0, 1e-3], own_format="fp16",
        skipped_at=np.array([1024.0, np.nan, np.nan]), taken_at=np.array([np.nan, 2.0**20, np.nan]),
    )  # fmt: skip
    limits = overflow_limits(known, "fp16")
    assert limits[0] == 1024.0
    assert limits[1] == np.nextafter(2.0**20, np.inf)
    assert limits[2] == 65520 / 1e-3
    assert overflow_limits(known, "e5m2")[0] > 1024  # which says nothing of another format


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("initial=0", "initial=0: input should be greater than 0"),
        ("backoff=1.5", "backoff=1.5: "),
        ("interval=half", "half is not a number"),
        ("interval=2.5", "interval=2.5: "),
        ("start=3", "start=3 is not a setting of the scaler; give any of initial, growth, backoff, interval"),
    ],
)
def test_that_a_policy_that_cannot_be_is_refused_in_one_sentence(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says.replace(".", r"\.")) as told:
        policy_of(text)
    assert "\n" not in str(told.value)


def test_that_a_policy_may_be_given_in_part() -> None:
    told = policy_of("initial=2^10, interval=7")
    assert (told.initial_scale, told.growth_factor, told.backoff_factor, told.growth_interval) == (1024, 2, 0.5, 7)


def values_of(step: int) -> NDArray[np.float64]:
    """Gradients of a step, half of them too small for FP16."""
    rng = np.random.default_rng(step)
    return rng.lognormal(-16, 4, 4000) * np.sign(rng.normal(size=4000))


def look(step: int, values: NDArray[np.float64]) -> TensorStats:
    stats, exponents = np.zeros((1, len(TENSOR_STATS))), np.zeros((1, EXPONENT_BINS), "<u4")
    stats[0, [TENSOR_STATS.index(name) for name in ("amax", "count")]] = np.abs(values).max(), len(values)
    exponents[0] = np.bincount(np.frexp(np.abs(values))[1] - 1 + 127, minlength=EXPONENT_BINS)
    return TensorStats(step, 0.1 * step, "gradient", ("w",), (1,), stats.tobytes(), exponents.tobytes())


def events(looked: tuple[int, ...], steps: int = 9) -> Iterator[Event]:
    yield RunStarted(0.0, steps, steps, "cpu")
    for step in range(1, steps + 1):
        yield StepDone(step, 0.1 * step, 1.0, 1.0, False, 0.1, 1.0, 0.1, 0.0, 1, float("nan"))
        if step in looked:
            yield look(step, values_of(step))
    yield RunEnded(1.0, "completed")


def test_that_recorded_steps_are_counted_and_others_interpolated_and_said_to_be() -> None:
    gradients = recorded_gradients(live_run(list(events((1, 5, 9))), RunConfig(precision="fp32")))
    assert gradients is not None
    assert gradients.measured == 3
    assert "3 of 9 steps" in " ".join(gradients.notes)
    assert gradients.certainty == "estimate"
    ends = [np.log2(np.abs(values_of(step)).max()) for step in (1, 5)]
    assert np.log2(gradients.amax[2]) == pytest.approx(np.mean(ends), rel=1e-5)
    share = underflow_share(gradients, np.full(9, 2.0**4), "fp16")
    for step in (1, 5, 9):
        cast = torch.tensor(values_of(step) * 16).to(torch.float16)
        assert share[step - 1] == pytest.approx(float((cast == 0).double().mean()), abs=1e-12)
    assert share[2] == pytest.approx((share[0] + share[4]) / 2)
    histogram = look(5, values_of(5))
    stats = np.frombuffer(histogram.stats).reshape(1, -1)
    told = WhatIf(np.frombuffer(histogram.exponents, "<u4").reshape(1, -1), stats).predict("e4m3fn", 4).underflow[0]
    assert underflow_share(gradients, np.full(9, 16.0), "e4m3fn")[4] == pytest.approx(told)


def test_that_a_run_without_gradients_has_none_to_simulate() -> None:
    assert recorded_gradients(live_run(list(events(())), RunConfig())) is None


def test_that_the_made_up_gradients_fall_and_their_spike_is_skipped() -> None:
    gradients = synthetic_gradients(500)
    told = simulate(gradients, policy_of("initial=65536,interval=50"))
    assert told.skipped.any()
    assert gradients.amax[-1] < gradients.amax[0] / 10
    assert np.isfinite(told.underflow).all()
    small, large = (float(underflow_share(gradients, np.full(500, scale), "fp16").mean()) for scale in (2.0, 2.0**20))
    assert small > large
