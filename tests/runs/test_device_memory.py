"""The largest batch of a run, from a planted memory: what is fixed, and what grows with the batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from precgui.config import RunConfig
from precgui.runs.device_memory import device_bytes, largest_batch

GIB = 1 << 30
GPUS = [{"memory_bytes": 80 * GIB}]


def run(device: str = "cuda:0", gpus: Any = GPUS, **memory: Any) -> Any:
    """64 samples of 0.25 GiB beside 2 GiB of weights, as much of gradients, 4 of AdamW: a peak of 24 GiB."""
    parts = {"peak": 24 * GIB, "weights": 2 * GIB, "optimizer": 4 * GIB, "average": 0} | memory
    allocator = parts.pop("allocator", None)
    return SimpleNamespace(
        series=lambda name: (np.empty(0), np.array([] if allocator is None else [1.0, allocator])),
        environment={"memory": {f"{name}_bytes": size for name, size in parts.items()}, "device": device},
        machine={"memory_bytes": 16 * GIB, "gpus": gpus}, config=RunConfig(),
    )  # fmt: skip


def test_that_what_is_left_beside_the_states_is_divided_by_what_a_sample_takes() -> None:
    assert largest_batch(run()) == 288  # (80 - 8) / 0.25
    assert largest_batch(run(peak=16 * GIB)) == 576  # activations of half the size
    assert largest_batch(run("cpu", peak=12 * GIB)) == 128
    assert largest_batch(run(peak=None, allocator=24 * GIB)) == 288


@pytest.mark.parametrize(
    "changes",
    [
        {"peak": None}, {"peak": "much"}, {"weights": -1}, {"peak": GIB}, {"peak": 100 * GIB},
        {"gpus": None}, {"gpus": []}, {"gpus": [{"memory_bytes": None}]}, {"device": "cuda:1"},
    ],
)  # fmt: skip
def test_that_what_is_not_known_is_not_guessed(changes: dict[str, Any]) -> None:
    assert largest_batch(run(**changes)) is None


def test_that_a_run_without_a_record_has_none() -> None:
    bare = run()
    bare.environment = {}
    assert largest_batch(bare) is None
    assert device_bytes(run("cpu")) == 16 * GIB
