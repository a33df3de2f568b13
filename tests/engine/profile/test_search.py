"""The search for the largest batch: which sizes are tried, and that a child does the steps."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from precgui.config import load
from precgui.engine.profile.search import Child, _sizes, largest_batch, serve, try_batch
from precgui.process.child import StopToken

QUICK = ("record.tensors=false", "data.batch_size=8", "threads=1", "device=cpu", "model.name=mlp")


def _search(start: int, largest: int, most: int = 4096) -> tuple[int, list[int]]:
    tried: list[int] = []
    tried.extend(_sizes(start, most, lambda: tried[-1] <= largest))
    return max((size for size in tried if size <= largest), default=0), tried


@pytest.mark.parametrize("start", [1, 3, 64, 100])
@pytest.mark.parametrize("largest", [1, 2, 7, 60, 64, 65, 1000])
def test_that_the_largest_size_is_found_to_a_sixteenth(start: int, largest: int) -> None:
    found, tried = _search(start, largest)
    assert largest * 15 / 16 - 1 <= found <= largest
    assert len(tried) <= 25
    assert len(set(tried)) == len(tried)


def test_that_a_search_ends_where_nothing_fits_and_where_everything_does() -> None:
    assert _search(64, 0) == (0, [64, 32, 16, 8, 4, 2, 1])
    assert _search(64, 10**9, most=500)[0] == 500


def test_that_a_size_is_really_tried() -> None:
    found = try_batch(load("digits-quick", QUICK))
    assert found.fits
    assert found.peak_bytes is not None and found.peak_bytes > 0
    assert found.samples_per_s is not None and found.samples_per_s > 0


def test_that_a_size_that_the_data_does_not_fill_is_not_tried() -> None:
    found = try_batch(load("digits-quick", [*QUICK, "data.batch_size=100000"]))
    assert not found.fits
    assert found.reason == "the data set fills 1438 samples only"


def test_that_the_search_runs_in_a_child_and_keeps_to_the_limit() -> None:
    config = load("digits-quick", [*QUICK, "data.batch_size=16"])
    one = try_batch(config).peak_bytes
    assert one is not None
    found = largest_batch(config, one, most=32)
    assert found.batch == 16
    assert [attempt.batch for attempt in found.attempts][:2] == [16, 32]
    assert found.attempts[1].reason == "its peak is above the limit"


def test_that_the_memory_of_a_child_is_limited_before_the_system_has_to_kill() -> None:
    if sys.platform != "linux":
        pytest.skip("limits of a process are those of Linux here")
    config = load("digits-quick", [*QUICK, "data.batch_size=1024", "model.name=resnet", "model.size=large"])
    with Child(config, 0) as child:  # half a GiB beside the tensors
        found = child.attempt(1024, lambda: False)
    assert found is not None
    assert not found.fits
    assert "memory" in found.reason


def test_that_a_stop_ends_the_search_at_once_and_says_so() -> None:
    config = load("digits-quick", [*QUICK, "data.batch_size=16"])
    events: list[dict[str, Any]] = []
    control = StopToken()
    control.stop()
    serve(events.append, control, config.model_dump(), 1 << 30)
    assert [(event["kind"], event["stopped"], event["attempts"]) for event in events] == [("found", True, ())]
    with Child(config, 1 << 30) as child:
        assert child.attempt(16, lambda: True) is None
