"""A live run: batches in, views out, little memory."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from precgui.config import RunConfig
from precgui.events import (
    EXPONENT_BINS,
    STEP_SIGNALS,
    TENSOR_STATS,
    DeviceRead,
    Event,
    HostRead,
    Incident,
    PowerRead,
    RankStep,
    RunEnded,
    RunStarted,
    StepDone,
)
from precgui.runs.file.reader import open_run
from precgui.runs.growable import Values
from precgui.runs.live import LiveRun
from precgui.runs.signals import SIGNALS, Axis, KeptRows, interpolated
from precgui.runs.tensors.overview import Overview
from tests.runs.synthetic import live_run, synthetic_events
from tests.runs.tensors.test_record import stats_event


def steps(first: int, count: int) -> list[StepDone]:
    return [
        StepDone(step, step * 0.001, 1 / step, 1.0, False, 0.1, 1.0, 0.001, 0.0, 8, math.nan)
        for step in range(first, first + count)
    ]


def test_that_batches_of_any_size_give_the_same_run() -> None:
    events = synthetic_events(400)
    whole = live_run(events)
    pieces = live_run([])
    for at in range(0, len(events), 7):
        pieces.extend(events[at : at + 7])
    for name in ("loss", "val_accuracy", "power_w", "samples_per_s"):
        np.testing.assert_array_equal(np.array(whole.series(name)), np.array(pieces.series(name)))
    assert whole.events() == pieces.events()
    assert (pieces.status, pieces.message) == ("completed", "all steps done")


# fmt: off
RANKS = [RankStep(step, 0.05 + step * 0.01, rank, 0.01 * rank, *[1.0 + step] * 6)
         for step in range(1, 121) for rank in range(2)]

WEIGHTS = [stats_event(step, ("a", "b", "c")[:tensors], "weight")
           for step, tensors in ((0, 1), (2, 2), (3, 1), (4, 2), (5, 2), (5, 2), (4, 2), (7, 3), (9, 2), (11, 3))]
# fmt: on


@pytest.mark.parametrize("ahead_s", [0.0, 0.5])  # by which readings come before the steps of their time
def test_that_a_run_that_is_asked_after_each_batch_says_what_it_says_at_the_end(ahead_s: float) -> None:
    events: list[Any] = sorted(
        [*synthetic_events(120), *RANKS, *WEIGHTS],
        key=lambda event: event.time_s - ahead_s * isinstance(event, PowerRead | DeviceRead | HostRead),
    )
    names = [
        *(set(SIGNALS) - set(STEP_SIGNALS)),
        "power_w:package-0",
        "clock_held:CPU",
        "tensor_use:CPU",
        "rank_wait_s:1",
    ]
    asked, snapshots = live_run([]), []
    for at in range(0, len(events), 19):
        asked.extend(events[at : at + 19])
        fresh = live_run(events[: at + 19])
        for name in names:
            for over in get_args(Axis):
                known = not name.partition(":")[2] or name.partition(":")[2] in ("1", *fresh.state_devices())
                if known or name.partition(":")[2] in fresh.power_devices():
                    both = asked.series(name, over), fresh.series(name, over)
                    np.testing.assert_array_equal(both[0][0], both[1][0], err_msg=f"{name} over {over}")
                    np.testing.assert_array_equal(both[0][1], both[1][1], err_msg=f"{name} over {over}")
        if at % 95 == 0:
            snapshots.append((asked.snapshot(), at + 19))
    for copied, count in snapshots:
        for name in ("power_w", "samples_per_s", "weight_norm"):
            np.testing.assert_array_equal(
                np.array(copied.series(name)), np.array(live_run(events[:count]).series(name)), err_msg=name
            )


class _Counted(KeptRows):
    """Counts the rows that something was computed for."""

    rows = 0

    def __call__(
        self, key: str, rows: int, compute: Callable[[int], Values], final: Callable[[int], int] | None = None
    ) -> Values:
        def counted(start: int) -> Values:
            values = compute(start)
            self.rows += len(values)
            return values

        return super().__call__(key, rows, counted, final)


@pytest.mark.parametrize(
    ("name", "own"), [("power_w", 1000), ("clock_held", 2000), ("load", 1000), ("samples_per_s", 1000)]
)
def test_that_each_row_of_a_run_that_goes_on_is_computed_once(name: str, own: int) -> None:
    run, counted = live_run([]), _Counted()
    run._computed = counted
    for index, done in enumerate(steps(1, 1000)):
        time_s = done.time_s - 0.0005
        run.extend([PowerRead("a", time_s, 1.0, 0.0), HostRead(time_s, 1.0, 0.0, 0.0), done])
        run.extend([DeviceRead("a", time_s, *[1.0] * 7)])
        assert len(run.series(name)[1]) == index + 1
    assert counted.rows == own


def test_that_readings_that_wait_for_a_step_alone_are_placed_again() -> None:
    run, counted = live_run(steps(1, 1000)), _Counted()
    run.extend([PowerRead("a", 0.001 * at, float(at), math.nan) for at in range(1, 1003)])
    run._computed = counted
    x = [run.series("power_w")[0] for _ in range(3)][-1]
    assert x.tolist()[-3:] == [1000.0, 1000.0, 1000.0]
    assert counted.rows == 1002 + 2 * 3
    run.extend(steps(1001, 1))
    assert run.series("power_w")[0].tolist()[-3:] == [1000.0, 1001.0, 1001.0]
    assert x.tolist()[-3:] == [1000.0, 1000.0, 1000.0]


def test_that_events_are_told_by_kind_and_without_those_that_are_known() -> None:
    run = live_run(synthetic_events(400))
    run.extend([Incident(5.0, 400, "note", "info", "late")])
    everything = run.events()
    for kind in (None, "note", "nonfinite_gradient", "sensor"):
        own = [event for event in everything if kind in (None, event.kind)]
        assert [run.events(kind), run.events(kind, 2), run.events(kind, len(own))] == [own, own[2:], []]
    run.events().clear()
    run.events("note").clear()
    assert run.events() == everything and len(run.events("note")) == 1


def test_that_a_series_is_a_view_that_later_steps_do_not_change() -> None:
    run = live_run(steps(1, 10))
    before = run.series("loss")[1]
    assert np.shares_memory(before, run.series("loss")[1])
    run.extend(steps(11, 100_000))
    assert len(before) == 10
    np.testing.assert_array_equal(before, run.series("loss")[1][:10])
    assert not before.flags.writeable


def test_that_power_is_placed_between_the_steps_of_its_time() -> None:
    run = live_run([*steps(1, 4), PowerRead("a", 0.0025, 50.0, math.nan), PowerRead("a", 9.0, 60.0, math.nan)])
    x, power_w = run.series("power_w")
    np.testing.assert_allclose(x, [2.5, 4.0])
    np.testing.assert_array_equal(power_w, [50.0, 60.0])
    np.testing.assert_array_equal(run.series("power_w", "time_s")[0], [0.0025, 9.0])


def test_that_a_run_without_any_event_has_empty_series() -> None:
    run = LiveRun(RunConfig(), run_id="a", created="", machine={}, environment={})
    for name in ("loss", "val_loss", "power_w", "samples_per_s"):
        x, values = run.series(name)
        assert len(x) == len(values) == 0
    assert (run.total_steps, run.status, run.power_devices()) == (0, "running", [])


def test_that_power_before_the_first_step_lies_at_zero() -> None:
    assert live_run([PowerRead("a", 1.0, 50.0, math.nan)]).series("power_w")[0].tolist() == [0.0]


def test_that_a_step_costs_at_most_100_bytes() -> None:
    batch = steps(1, 1000)
    run = live_run([RunStarted(0.0, 200_000, 100, "cpu")])
    tracemalloc.start()
    for _ in range(200):
        run.extend(batch)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    reserved = sum(run.column("steps", name).base.nbytes for name in ("step", "time_s", "loss"))
    assert reserved == 3 * 8 * 200_000
    assert used < 100 * 200_000


def test_that_a_run_that_has_ended_keeps_no_room_for_steps_that_did_not_come() -> None:
    run = live_run([RunStarted(0.0, 200_000, 100, "cpu"), *steps(1, 10)])
    before = run.column("steps", "loss")
    run.extend([RunEnded(1.0, "failed")])
    room = run.column("steps", "loss").base
    assert isinstance(room, np.ndarray)
    assert room.nbytes == 10 * 8
    np.testing.assert_array_equal(before, run.column("steps", "loss"))


def test_that_the_end_is_kept() -> None:
    run = live_run([RunEnded(1.0, "failed", "out of memory", "Traceback")])
    assert (run.status, run.message, run.details) == ("failed", "out of memory", "Traceback")


# A run that has ended is let go to its file --------------------------------------------------------------------


def test_that_a_run_that_ended_reads_the_same_from_its_file(write: Callable[..., Path]) -> None:
    run, before = live_run(synthetic_events()), live_run(synthetic_events())
    assert run.hand_over(open_run(write()))
    assert not any((run._tables, run._devices, run._tensors, run._incidents))
    for name in SIGNALS:
        for over in ("step", "time_s"):
            np.testing.assert_array_equal(np.array(run.series(name, over)), np.array(before.series(name, over)))
    assert run.events() == before.events()
    assert (run.steps, run.status, run.message) == (before.steps, before.status, before.message)
    assert run.power_devices() == before.power_devices()
    assert run.state_devices() == before.state_devices()
    for device in before.state_devices():
        values = run.state_column(device, "utilisation"), before.state_column(device, "utilisation")
        np.testing.assert_array_equal(*values)


@pytest.mark.parametrize("events", [synthetic_events()[:-1], synthetic_events(200), synthetic_events(1000)])
def test_that_a_run_stays_in_memory_while_its_file_is_not_whole(
    events: list[Event], write: Callable[..., Path]
) -> None:
    run = live_run(events)
    with open_run(write()) as saved:
        assert not run.hand_over(saved)
    assert len(run.series("loss")[0]) == run.steps == len([event for event in events if isinstance(event, StepDone)])


def test_that_a_killed_run_lets_go_of_its_tensors_and_keeps_the_steps_that_its_file_lacks(
    write: Callable[..., Path],
) -> None:
    """Two hundred killed runs of some seconds took 13 MB each, all of it rows of tensors."""
    run = live_run([*synthetic_events(310)[:-1], stats_event(1, ("a", "b")), RunEnded(3.2, "completed")])
    assert run.tensors()
    with open_run(write()) as saved:
        assert run.hand_over(saved)
        assert run.is_in_file
        assert not run._tensors
        assert run.steps == len(run.series("loss")[0]) == saved.steps + 10
        assert run.tensors().keys() == saved.tensors().keys()


def test_that_a_damaged_file_is_not_taken_for_the_run(write: Callable[..., Path]) -> None:
    path = write()
    path.write_bytes(path.read_bytes()[:-20_000])
    run = live_run(synthetic_events())
    with open_run(path) as saved:
        assert saved.notes
        assert not run.hand_over(saved)


def test_that_a_few_rows_of_tensors_take_little_memory() -> None:
    """Zeroed arrays for a whole picture cost 12 MB a kind of 12 tensors as soon as the allocator uses memory again."""
    overview = Overview()
    for step in range(1, 21):
        overview.add(
            np.array([step]),
            np.ones((1, 12, len(TENSOR_STATS)), np.float32),
            np.ones((1, 12, EXPONENT_BINS), np.uint32),
        )
    held = sum(part.nbytes for part in overview._parts.values())
    assert held < 1.2e6, f"{held} bytes for 20 rows"
    assert len(overview.columns().steps) == 20


def test_that_a_place_among_the_steps_is_found_without_a_copy_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """`np.interp` copies whole columns that are read-only, 16 MB of a million steps with each reading."""
    looked_at, plain = [], np.interp

    def interp(x: Values, known: Values, values: Values) -> Values:
        looked_at.append(len(known))
        return plain(x, known, values)

    monkeypatch.setattr(np, "interp", interp)
    run = live_run([*steps(1, 2000), *(stats_event(step, ("a",), "weight") for step in (1900, 1901, 1902))])
    for at in (0.0, 0.1, 1.5, 1.999, 3.0):
        run.extend([PowerRead("a", at, 1.0, 0.0)])
        assert run.series("power_w")[0][-1] == pytest.approx(min(max(at * 1000, 1.0), 2000.0))
    assert run.series("weight_norm", "time_s")[0] == pytest.approx([1.9, 1.901, 1.902])
    assert len(looked_at) == 6 and max(looked_at) <= 5


@pytest.mark.parametrize("seed", range(20))
def test_that_places_between_few_of_the_steps_are_those_between_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    times = np.sort(np.round(rng.normal(size=rng.integers(1, 30)), 1))  # some twice
    indices = np.arange(len(times), dtype=float)
    places = np.round(rng.normal(size=rng.integers(0, 40)) * rng.choice([0.1, 1.0, 3.0]), 1)
    places[rng.random(len(places)) < 0.1 * (seed % 3)] = np.nan
    np.testing.assert_array_equal(interpolated(places, times, indices), np.interp(places, times, indices))
