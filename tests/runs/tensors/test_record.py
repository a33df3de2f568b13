"""Statistics and histograms of tensors through the file, and through a live run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import precgui
from precgui.events import EXPONENT_BINS, TENSOR_STATS, RunEnded, TensorStats
from precgui.runs import live
from tests.runs.synthetic import live_run, open_writer

NAMES = ("conv.weight", "größe", "fc.bias")


def stats_event(step: int, names: tuple[str, ...], kind: str = "gradient") -> TensorStats:
    rng = np.random.default_rng([step, len(names)])
    stats = rng.normal(size=(len(names), len(TENSOR_STATS))).astype(np.float32).astype(np.float64)
    stats[:, TENSOR_STATS.index("count")] = 100
    stats[0, :3] = np.inf, np.nan, -0.0
    exponents = rng.integers(0, 2**32, (len(names), EXPONENT_BINS)).astype(np.uint32)
    return TensorStats(step, step / 10, kind, names, (4,) * len(names), stats.tobytes(), exponents.tobytes())


def expected(event: TensorStats) -> tuple[np.ndarray, np.ndarray]:
    stats = np.frombuffer(event.stats).reshape(-1, len(TENSOR_STATS))
    return stats, np.frombuffer(event.exponents, np.uint32).reshape(-1, EXPONENT_BINS)


def test_that_statistics_and_histograms_come_back_also_when_tensors_are_added(tmp_path: Path) -> None:
    events = [stats_event(step, NAMES[:tensors]) for step, tensors in ((1, 2), (2, 2), (3, 3))]
    with open_writer(tmp_path / "run.h5") as emit:
        for event in events:
            emit(event)
            emit.flush()
        emit(RunEnded(1.0, "completed"))
    live = live_run(events)
    with precgui.open_run(tmp_path / "run.h5") as saved:
        for run in (saved, live):
            record = run.tensors()["gradient"]
            assert list(run.tensors()) == ["gradient"]
            assert (record.names, record.steps().tolist()) == (NAMES, [1, 2, 3])
            assert record.strides().tolist() == [[4, 4, 0], [4, 4, 0], [4, 4, 4]]
            for row, event in enumerate(events):
                stats, exponents = expected(event)
                assert_array_equal(record.stats(row, row + 1)[0, : len(stats)], stats)
                assert_array_equal(record.exponents(row, row + 1)[0, : len(stats)], exponents)
            assert not record.stat("count", 0, 2)[:, 2:].any()
            assert_array_equal(record.stat("amax")[:, 0], [np.inf] * 3)
            with pytest.raises(ValueError, match="not in tuple"):
                record.stat("amin")
        assert saved.notes == []


def test_that_rows_written_late_come_in_the_order_of_the_steps(tmp_path: Path) -> None:
    events = [stats_event(step, NAMES) for step in (1, 11, 7, 8, 12)]
    with open_writer(tmp_path / "run.h5") as emit:
        for event in [*events, RunEnded(1.0, "completed")]:
            emit(event)
    with precgui.open_run(tmp_path / "run.h5") as run:
        record = run.tensors()["gradient"]
        assert record.steps().tolist() == [1, 7, 8, 11, 12]
        assert_array_equal(record.exponents(1, 3), [expected(events[2])[1], expected(events[3])[1]])
        assert_array_equal(record.stats(0, None, 2), [expected(events[at])[0] for at in (0, 3, 4)])


def test_that_kinds_share_the_axis_of_names(tmp_path: Path) -> None:
    events = [stats_event(1, NAMES[:1]), stats_event(1, ("relu", "fc.bias"), "activation")]
    with open_writer(tmp_path / "run.h5") as emit:
        for event in [*events, RunEnded(1.0, "completed")]:
            emit(event)
    with precgui.open_run(tmp_path / "run.h5") as run:
        records = run.tensors()
        assert records["gradient"].names == records["activation"].names == ("conv.weight", "relu", "fc.bias")
        assert records["activation"].stat("count").tolist() == [[0, 100, 100]]


def test_that_a_live_run_forgets_every_second_row_but_never_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    row = stats_event(1, NAMES)
    monkeypatch.setattr(live, "MOST_BYTES", 40 * (len(row.stats) + len(row.exponents)))
    run = live_run([])
    for step in range(1, 401):
        run.extend([stats_event(step, NAMES)])
        steps = run.tensors()["gradient"].steps()
        assert len(steps) <= 50
        assert step - steps[-1] < 32
    assert set(np.diff(steps).tolist()) == {16}


def test_that_a_run_without_tensors_has_none(write: Callable[..., Path]) -> None:
    with precgui.open_run(write()) as run:
        assert run.tensors() == {}
    assert live_run([]).tensors() == {}


def test_that_a_damaged_row_is_not_recorded_and_the_others_are_there(tmp_path: Path) -> None:
    events = [stats_event(step, NAMES) for step in range(1, 6)]
    with open_writer(tmp_path / "run.h5") as emit:
        for event in [*events, RunEnded(1.0, "completed")]:
            emit(event)
    with h5py.File(tmp_path / "run.h5", "r") as file:
        chunk = file["tensors/gradient/stats"].id.get_chunk_info_by_coord((3, 0, 0))
    with (tmp_path / "run.h5").open("r+b") as raw:
        raw.seek(chunk.byte_offset)
        raw.write(bytes(chunk.size))
    with precgui.open_run(tmp_path / "run.h5") as run:
        record = run.tensors()["gradient"]
        assert len(record) == len(record.stats()) == len(record.exponents()) == 5
        assert not record.stats()[3].any()
        assert_array_equal(record.stats(0, 1)[0], expected(events[0])[0])
        assert any("tensors/gradient" in note for note in run.notes)


def test_that_scattered_rows_of_a_damaged_file_are_zero_where_they_are_lost(tmp_path: Path) -> None:
    events = [stats_event(step, NAMES) for step in range(1, 12)]
    with open_writer(tmp_path / "run.h5") as emit:
        for event in [*events, RunEnded(1.0, "completed")]:
            emit(event)
    with h5py.File(tmp_path / "run.h5", "r") as file:
        chunk = file["tensors/gradient/exponents"].id.get_chunk_info_by_coord((4, 0, 0))
    with (tmp_path / "run.h5").open("r+b") as raw:
        raw.seek(chunk.byte_offset)
        raw.write(bytes(chunk.size))
    with precgui.open_run(tmp_path / "run.h5") as run:
        rows = run.tensors()["gradient"].exponents(every=2)
        for place, row in enumerate(rows):
            assert_array_equal(row, expected(events[2 * place])[1] if place != 2 else 0)
        assert any("1 of 6 rows" in note for note in run.notes)


def test_that_rows_can_be_read_while_the_writer_goes_on(tmp_path: Path) -> None:
    """The index of the chunks is renewed in places that the file did not have when it was opened."""
    events = [stats_event(step, NAMES) for step in range(1, 200)]
    with open_writer(tmp_path / "run.h5") as emit:
        for event in events[:20]:
            emit(event)
        emit.flush()
        with precgui.open_run(tmp_path / "run.h5") as run:
            for event in events[20:]:
                emit(event)
                emit.flush()
            record = run.tensors()["gradient"]
            assert len(record) == 20
            assert_array_equal(record.exponents()[19], expected(events[19])[1])
            assert_array_equal(record.stats(every=3)[1], expected(events[3])[0])
            assert run.notes == []
        emit(RunEnded(1.0, "completed"))
