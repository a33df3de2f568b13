"""A change of settings beside the settings as they are: steps of both in turns in one process, in time of a sample."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable

from precgui.config import RunConfig
from precgui.engine.backend_flags import restored
from precgui.engine.profile.paired import BLOCK_S, LEAST_ROUNDS, MOST_BLOCK, WARM_STEPS, Side, make_side, timed_step

_DECIDED = 0.02  # the range of the middle half of the ratios at which no more rounds are needed


def change_gains(
    config: RunConfig,
    changed: RunConfig,
    stopped: Callable[[], bool] = lambda: False,
    rounds: int = LEAST_ROUNDS,
    *,
    seconds: float,
) -> list[float]:
    """Samples that a second takes with the change over those without it, one ratio for each round of a block of both.

    At least so many rounds, in random order, and more for up to `seconds`. Fewer where it is stopped. Raises
    EngineError for faults that the user can correct, and whatever torch raises where it cannot make the changed step.
    """
    with restored():
        sides = make_side(config), make_side(changed)
        for side in sides:
            for _ in range(WARM_STEPS):
                timed_step(side)
        ratios: list[float] = []
        end, draw = time.monotonic() + seconds, random.Random(config.seed)
        while not stopped() and (len(ratios) < rounds or (time.monotonic() < end and not _is_decided(ratios))):
            sample_s = {id(side): _sample_s(side) for side in draw.sample(sides, 2)}
            ratios.append(sample_s[id(sides[0])] / max(sample_s[id(sides[1])], 1e-12))
    return ratios


def _sample_s(side: Side) -> float:
    """Seconds of a sample in a block of steps, waiting for batches included; its first step is left out."""
    step_s, data_s, _ = timed_step(side)
    count = max(2, min(MOST_BLOCK, int(BLOCK_S / max(step_s + data_s, 1e-9))))
    times, waits, samples = [], [], []
    for _ in range(count):
        step_s, data_s, _ = timed_step(side)
        size = sum(len(targets) for _, targets in side.parts.batches)
        times.append(step_s / size)
        waits.append(data_s)
        samples.append(size)
    return statistics.median(times) + sum(waits) / sum(samples)


def _is_decided(ratios: list[float]) -> bool:
    quarters = statistics.quantiles(ratios, n=4)
    return (quarters[2] - quarters[0]) / statistics.median(ratios) <= _DECIDED
