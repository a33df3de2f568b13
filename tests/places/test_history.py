"""The history of a long run: columns that hold what its events held, in a small part of the bytes, each once."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precgui.config import RunConfig
from precgui.events import (
    EXPONENT_BINS,
    TENSOR_STATS,
    Evaluated,
    Event,
    Incident,
    PowerRead,
    RunEnded,
    RunStarted,
    StepDone,
    TensorStats,
)
from precgui.places.channel import PlaceChannel
from precgui.places.history import BLOCK_EVENTS, blocks_of, events_of, history_of
from precgui.places.jobs import JobFolder
from precgui.places.messages import REPLIES, JobEvents, JobHistory
from precgui.places.placed_job import PlacedRun
from precgui.places.runner import JobConnection
from precgui.process.frames import FrameError
from precgui.process.supervised import Supervised
from precgui.runs.file.event_tables import EVENT_TABLES, EventRows
from precgui.runs.live import LiveRun
from tests.places.played_agent import JOB, PLACE, PlayedAgents, make_job

_COLUMNS = ("step", "time_s", "loss", "scale", "lr", "grad_norm", "step_s", "samples", "memory_bytes", "cpu_s")


def noisy_step(number: int, random_of: random.Random) -> StepDone:
    loss = float(np.float32(random_of.random()))
    lr = 0.05 * (1 + math.cos(number / 1e5))
    step_s = 0.01 + random_of.random() / 1000
    return StepDone(number, 0.0101 * number + step_s, loss, 1.0, False, lr, loss / 3, step_s, 1e-4, 64, math.nan)


def long_run(steps: int) -> list[Event]:
    """All but the end, with what is special in numbers."""
    random_of = random.Random(7)
    events: list[Event] = [RunStarted(0.0, steps, 100, "cpu", {"threads": 1})]
    for number in range(1, steps + 1):
        done = noisy_step(number, random_of)
        if number % 50 == 0:
            done = replace(done, loss=[math.nan, math.inf, -math.inf, -0.0][number // 50 % 4], skipped=True)
            events.append(Incident(done.time_s, number, "nonfinite_loss", "error", f"at {number}", "fc"))
            events.append(PowerRead(f"cuda:{number % 3}", done.time_s, 301.5, 12.0 * number))
            events.append(Evaluated(number, number // 50, done.time_s, 0.3, 0.9))
        events.append(done)
    return events


def live() -> LiveRun:
    return LiveRun(RunConfig(), run_id=JOB, created="", machine={}, environment={})


def live_of(events: list[Any]) -> LiveRun:
    run = live()
    for event in events:
        run.extend([event])
    return run


def assert_same(run: LiveRun, expected: LiveRun) -> None:
    assert run.steps == expected.steps
    for name in _COLUMNS:
        values, wanted = run.column("steps", name), expected.column("steps", name)
        if name.endswith("_s"):
            np.testing.assert_allclose(values, wanted, rtol=1e-14, atol=5.01e-10, err_msg=name)
        else:
            np.testing.assert_array_equal(values.view(np.int64), wanted.view(np.int64), err_msg=name)
    assert run.events() == expected.events()
    assert run.power_devices() == expected.power_devices()
    for device in run.power_devices():
        np.testing.assert_array_equal(run.power_column(device, "energy_j"), expected.power_column(device, "energy_j"))
    np.testing.assert_array_equal(run.column("evaluation", "step"), expected.column("evaluation", "step"))
    assert run.environment == expected.environment


def followed(placed: PlacedRun) -> list[Any]:
    """All that a channel gives until the end of the run."""
    events: list[Any] = []
    Supervised(PlaceChannel(PLACE, attached=placed), 1.0).run(events.extend)
    return events


def test_that_columns_hold_what_the_events_held_in_a_small_part_of_the_bytes() -> None:
    events = long_run(1000)
    history = REPLIES.decode(frame := REPLIES.encode(history_of(JOB, 1, 1000, events)))
    assert_same(live_of(events_of(history)), live_of(events))
    assert len(frame) < 0.3 * len(REPLIES.encode(JobEvents(JOB, 1, tuple(events))))


def test_that_the_last_of_many_events_is_an_event() -> None:
    events = [PowerRead("cuda:0", 0.5, 300.0, 1.0), PowerRead("cuda:0", 1.0, 310.0, 2.0)]
    (rows,) = events_of(history_of(JOB, 1, 2, events))
    assert isinstance(rows, EventRows)
    assert rows.last() == events[-1]
    step = noisy_step(3, random.Random(1))
    last = events_of(history_of(JOB, 1, 1, [step]))[0].last()
    assert (last.step, last.loss, type(last.step), last.skipped) == (3, step.loss, int, False)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"table": "os"}, "the unknown table 'os'"),
        ({"count": 3}, "not the size that its columns have"),
        ({"count": 0, "planes": b""}, "not the columns"),
        ({"count": -2}, "not the columns"),
        ({"units": ("bits",)}, "not the columns"),
        ({"orders": (9,) * 14}, "differences of an unknown order"),
        (
            {"units": ("bits",) * 14, "orders": (0,) * 14, "planes": b"\x80" * 14 * 8 * 2},
            "step of a history is no whole number",
        ),
    ],
)
def test_that_a_history_that_is_none_is_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    history = history_of(JOB, 1, 2, [noisy_step(number, random.Random(1)) for number in (1, 2)])
    table = replace(history.tables[0], **changes)
    with pytest.raises(FrameError, match=sentence):
        events_of(replace(history, tables=(table,)))
    with pytest.raises(FrameError, match="the end of its run"):
        events_of(JobHistory(JOB, 1, 2, (), (RunEnded(1.0, "completed"),)))


def row(number: int) -> TensorStats:
    return TensorStats(
        number, 0.1, "gradient", ("w",), (1,), bytes(8 * len(TENSOR_STATS)), bytes(4 * EXPONENT_BINS)
    )  # fmt: skip


@pytest.fixture
def long_job() -> tuple[JobFolder, list[Event]]:
    """Three and a half blocks of messages with one event or two, rows among them, and the end."""
    events = long_run(BLOCK_EVENTS * 7 // 2)
    folder = make_job([])
    connection = JobConnection(folder)
    for event in events:
        connection.send([event, row(event.step)] if isinstance(event, StepDone) and event.step % 40 == 0 else [event])
    connection.send([RunEnded(99.0, "completed")])
    return folder, events


@pytest.mark.parametrize("after", [0, 3, BLOCK_EVENTS, BLOCK_EVENTS + 9, 2 * BLOCK_EVENTS + 200])
def test_that_who_attaches_gets_each_event_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, long_job: tuple[JobFolder, list[Event]], after: int
) -> None:
    PlayedAgents(monkeypatch, [])
    told = followed(PlacedRun(PLACE, JOB, tmp_path / "home.h5", after))
    assert_same(live_of([*long_job[1][:after], *told]), live_of(long_job[1]))
    assert sum(isinstance(event, EventRows) for event in told) >= (1 if after < 2 * BLOCK_EVENTS else 0)


def test_that_cut_links_lose_no_block_and_no_row(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, long_job: tuple[JobFolder, list[Event]]
) -> None:
    folder, events = long_job
    sizes = [block.history_end for block in blocks_of(folder)]
    assert len(sizes) >= 2
    PlayedAgents(monkeypatch, [sizes[0] + 2000, sizes[0] + 20_000, 3000, None])
    run = live_of(told := followed(PlacedRun(PLACE, JOB, tmp_path / "home.h5")))
    assert_same(run, live_of(events))
    rows = [event.step for event in told if isinstance(event, TensorStats)]
    assert rows == sorted(set(rows))


def test_that_rows_come_after_the_history_and_before_the_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = make_job([])
    connection = JobConnection(folder)
    connection.send([row(1), noisy_step(1, random.Random(1))])
    PlayedAgents(monkeypatch, [])
    told: list[Any] = []

    def take(batch: list[Any]) -> None:
        told.extend(type(event).__name__ for event in batch)
        if told[-1] == "TensorStats" and len(told) == 2:
            connection.send([row(2), noisy_step(2, random.Random(1)), RunEnded(9.0, "completed")])

    Supervised(PlaceChannel(PLACE, attached=PlacedRun(PLACE, JOB, tmp_path / "home.h5")), 1.0).run(take)
    assert told == ["StepDone", "TensorStats", "TensorStats", "StepDone", "RunEnded"]


def test_that_a_disk_that_takes_no_block_costs_nothing_but_the_block(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = make_job([])
    folder.history.mkdir()
    connection = JobConnection(folder)
    for number in range(1, BLOCK_EVENTS + 100):
        connection.send([noisy_step(number, random.Random(1))])
    connection.send([RunEnded(99.0, "completed")])
    PlayedAgents(monkeypatch, [])
    assert live_of(followed(PlacedRun(PLACE, JOB, tmp_path / "home.h5"))).steps == BLOCK_EVENTS + 99


def test_that_the_columns_that_the_protocol_gives_are_those_of_the_tables() -> None:
    text = (Path(__file__).parents[2] / "docs" / "frames.md").read_text(encoding="utf-8")
    for table in EVENT_TABLES:
        assert f"| `{table.path}` | `{', '.join(table.columns)}` |" in text
