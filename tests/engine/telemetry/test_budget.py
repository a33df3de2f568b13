"""What looking may cost, and how long it is remembered."""

from __future__ import annotations

import time

import pytest
import torch

from precgui.config import RecordConfig
from precgui.engine.telemetry.budget import TokenBuckets
from precgui.engine.telemetry.cost import CostMeter
from precgui.engine.telemetry.ring_buffer import FlightRecorder
from precgui.events import TensorStats


def test_that_a_budget_is_kept_and_spent() -> None:
    """With costs that are known: a look at the stride s costs 10 ms / s, a step takes 100 ms."""
    budget = TokenBuckets(RecordConfig(budget=0.02, least_measurements=0), {"gradient": 1, "weight": 10})
    looks = 0
    for step in range(1, 1001):
        due = budget.due(step)
        looks += "gradient" in due
        budget.book_step(0.1, {kind: 0.010 / stride for kind, stride in due.items()})
    assert 0.010 < budget.share <= 0.021
    assert looks > 900


def test_that_what_is_too_dear_at_any_stride_is_looked_at_less_often() -> None:
    budget = TokenBuckets(RecordConfig(budget=0.01, least_measurements=0), {"gradient": 1})
    for step in range(1, 2001):
        budget.book_step(0.01, dict.fromkeys(budget.due(step), 0.005))
    assert budget.share == pytest.approx(0.01, rel=0.2)


def test_that_a_stride_is_not_raised_where_it_saves_nothing() -> None:
    budget = TokenBuckets(RecordConfig(budget=0.01, least_measurements=0), {"gradient": 1})
    for step in range(1, 2001):
        budget.book_step(0.01, dict.fromkeys(budget.due(step), 0.0005))
    assert budget.strides == {"gradient": 1}
    assert budget.share == pytest.approx(0.01, rel=0.2)


def test_that_the_check_for_nan_is_booked_first_and_leaves_half() -> None:
    budget = TokenBuckets(RecordConfig(budget=0.02, least_measurements=0), {"gradient": 1})
    guarded = 0
    for step in range(1, 1001):
        due, guards = budget.due(step), budget.can_guard
        guarded += guards
        budget.book_step(0.1, {kind: 0.010 / stride for kind, stride in due.items()}, 0.004 if guards else 0.0)
    assert 200 < guarded < 300
    assert 0.015 < budget.share < 0.022


def test_that_what_is_earned_in_steps_of_rest_is_spent_later() -> None:
    """Settling costs 2 ms of a budget of 3 ms a step, resting 0.1 ms, a look 20 ms."""
    budget = TokenBuckets(RecordConfig(budget=0.03, least_measurements=0), {"gradient": 1})
    looks = rested = 0
    for step in range(1, 3001):
        due = budget.due(step)
        if not due and not budget.can_guard and budget.can_book_idle_step:
            budget.book_idle_step(0.0001)
            rested += 1
            continue
        looks += bool(due)
        budget.book_step(0.1, dict.fromkeys(due, 0.020), 0.002)
    assert rested > 500
    assert 0.02 < budget.share < 0.035
    assert looks > 200


@pytest.mark.parametrize("total_steps", [0, 1000])
@pytest.mark.parametrize("length", [5, 20, 37, 100, 400, 1000])
def test_that_every_kind_is_measured_twenty_times_however_dear(length: int, total_steps: int) -> None:
    """A measurement takes twice as long as a step; nobody has asked for one but each 500 steps."""
    budget = TokenBuckets(RecordConfig(budget=0.01), {"gradient": 1, "optimizer": 500}, total_steps=total_steps)
    steps: dict[str, list[int]] = {"gradient": [], "optimizer": []}
    for step in range(1, length + 1):
        due = budget.due(step)
        for kind in budget.overdue & due.keys():
            steps[kind].append(step)
            budget.measured(kind, step)
        budget.book_step(0.002, dict.fromkeys(due, 0.004))
    for measured in steps.values():
        assert len(measured) >= min(length, 20)
        assert max(b - a for a, b in zip([0, *measured], [*measured, length], strict=True)) <= max(length / 10, 1)


def test_that_a_kind_of_which_there_is_nothing_is_asked_for_seldom() -> None:
    budget = TokenBuckets(RecordConfig(), {"optimizer": 50})
    asked = 0
    for step in range(1, 5001):
        asked += "optimizer" in budget.due(step) and "optimizer" in budget.overdue
        budget.book_step(0.01, {})
    assert asked < 300


def test_that_the_black_box_forgets_the_oldest_for_want_of_room() -> None:
    box, written = FlightRecorder(room_bytes=10_000), []
    for step in range(1, 101):
        box.add(TensorStats(step, 0.0, "gradient", ("w",), (1,), bytes(200), bytes(800)))
    box.write(written.append)
    assert [event.step for event in written] == list(range(91, 101))
    box.write(written.append)
    assert len(written) == 10


def test_that_time_in_which_others_had_the_processor_does_not_count() -> None:
    clock = CostMeter(torch.device("cpu"))
    clock.start()
    assert clock.busy_s(3600.0, time.thread_time()) < 60
    assert clock.busy_s(0.0, time.thread_time()) == 0


def test_that_work_before_the_start_of_a_step_is_not_the_step() -> None:
    clock = CostMeter(torch.device("cpu"))
    clock.start()
    begin = time.thread_time()
    while (before := time.thread_time() - begin) < 0.02:
        pass
    clock.start()
    assert clock.busy_s(3600.0, time.thread_time()) <= time.thread_time() - begin - before


def test_that_a_clock_gives_what_was_booked_once() -> None:
    clock = CostMeter(torch.device("cpu"))
    clock.book("gradient", 1.0)
    with clock.booked("gradient"):
        pass
    assert clock.take()["gradient"] >= 1.0
    assert clock.take() == {}


def test_that_waiting_for_a_device_and_compiling_kernels_is_no_cost() -> None:
    compiling = [0.0]
    clock = CostMeter(torch.device("cpu"), lambda: compiling[0])
    begin = clock.worked_s()
    with clock.booked("gradient"):
        spun = _spin(0.02)
        compiling[0] += spun
    waited = _spin(0.02)
    clock.waited(waited)
    assert clock.take()["gradient"] < 0.01
    assert clock.worked_s() - begin < 0.01


def test_that_some_measurements_stand_for_all_on_the_device() -> None:
    clock = CostMeter(torch.device("cpu"))
    weights = [clock.booked_alone("activation")._weight for _ in range(70)]
    assert sum(weights) == 70
    assert sum(weight > 0 for weight in weights) == 10


def _spin(seconds: float) -> float:
    """CPU seconds that were spent, at least so many."""
    begin = time.thread_time()
    while (spent := time.thread_time() - begin) < seconds:
        pass
    return spent
