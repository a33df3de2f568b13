"""The room for tensors that a run file is made with, once it is known how many there are."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import precgui
from precgui.events import TENSOR_KINDS, Event, Incident, PowerRead, RunEnded, RunStarted, StepDone, TensorStats
from precgui.runs.file import disk, event_store, process, table_file
from precgui.runs.file.reader import BROKEN_OFF
from precgui.runs.file.repair import repair
from precgui.runs.file.safe_hdf5 import open_snapshot
from precgui.runs.file.schema import TENSORS_IN_CHUNK, tensor_room
from precgui.runs.file.snapshot import lookup3
from tests.runs.synthetic import open_writer
from tests.runs.tensors.test_record import expected, stats_event

END = RunEnded(9.0, "completed")


def started(tensors: int = 10) -> RunStarted:
    return RunStarted(0.5, 9, 9, "cpu", {"threads": 1}, tensors)


def names(count: int) -> tuple[str, ...]:
    return tuple(f"layer{place}.weight" for place in range(count))


def write_run(path: Path, events: list[Event], **options: Any) -> None:
    with open_writer(path, **options) as emit:
        for event in events:
            emit(event)
            emit.flush()
        emit(END)


def limits(path: Path) -> dict[str, tuple[int | None, ...]]:
    """The longest shape of each dataset of tensors."""
    with open_snapshot(path)[0] as file:
        return {
            f"{kind}/{column}": file[f"tensors/{kind}/{column}"].maxshape
            for kind in TENSOR_KINDS
            for column in ("stride", "stats", "exponents")
        }


def assert_kept(path: Path, events: list[TensorStats]) -> None:
    with precgui.open_run(path) as run:
        record = run.tensors()["gradient"]
        assert set(run.notes) <= {BROKEN_OFF}
        assert len(record) == len(events)
        for row, event in enumerate(events):
            stats, exponents = expected(event)
            assert_array_equal(record.stats(row, row + 1)[0, : len(stats)], stats)
            assert_array_equal(record.exponents(row, row + 1)[0, : len(stats)], exponents)
            assert not record.exponents(row, row + 1)[0, len(stats) :].any()


def test_that_one_axis_alone_is_without_a_limit_once_the_tensors_are_counted(tmp_path: Path) -> None:
    events = [stats_event(step, names(count)) for step, count in ((1, 3), (2, 64), (3, 65), (4, 200))]
    write_run(tmp_path / "run.h5", [started(), *events])
    room = tensor_room(10)
    assert room % TENSORS_IN_CHUNK == 0
    assert all(limit[:2] == (None, room) for limit in limits(tmp_path / "run.h5").values())
    assert_kept(tmp_path / "run.h5", events)


def test_that_any_number_of_tensors_has_room_where_they_are_not_counted(tmp_path: Path) -> None:
    events = [stats_event(1, names(2)), stats_event(2, names(tensor_room(1) + 100))]
    write_run(tmp_path / "run.h5", [started(0), *events])
    assert all(limit[:2] == (None, None) for limit in limits(tmp_path / "run.h5").values())
    assert_kept(tmp_path / "run.h5", events)


def test_that_what_came_before_the_count_is_kept(tmp_path: Path) -> None:
    before = [PowerRead("cuda:0", 0.1, 100.0, 1.0), Incident(0.2, 0, "note", "info", "loading " * 40)]
    after = [PowerRead("CPU", 0.6, 20.0, 2.0), PowerRead("cuda:0", 0.7, 101.0, 3.0), stats_event(1, names(2))]
    with open_writer(tmp_path / "run.h5") as emit:
        for event in before:
            emit(event)
        emit.flush()
        with precgui.open_run(tmp_path / "run.h5") as run:
            assert run.power_devices() == ["cuda:0"]
            for event in [started(), *after]:
                emit(event)
            emit.flush()
            assert run.refresh()
            assert run.power_column("cuda:0", "power_w").tolist() == [100.0, 101.0]
            assert run.power_column("CPU", "power_w").tolist() == [20.0]
            assert run.events() == [before[1]]
            assert list(run.tensors()) == ["gradient"]
        emit(END)
    assert [path.name for path in tmp_path.iterdir()] == ["run.h5"]


def refuse(*_: Any, **__: Any) -> None:
    raise OSError(28, "No space left on device")


def no_room(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setattr(disk, "free_bytes", lambda _: 3 << 20)


def copy_fails(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setattr(table_file.TableFile, "take_over", refuse)


def draft_fails(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setattr(table_file.TableFile, "_make_texts", refuse)


def file_is_moved(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    path.rename(path.with_name("moved.h5"))


def file_is_another(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    path.rename(path.with_name("moved.h5"))
    path.write_text("mine")


@pytest.mark.parametrize("trouble", [copy_fails, draft_fails, file_is_moved, file_is_another])
def test_that_the_file_goes_on_as_it_is_where_no_other_can_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: Callable[[pytest.MonkeyPatch, Path], None]
) -> None:
    path, events = tmp_path / "run.h5", [stats_event(step, names(3)) for step in (1, 2)]
    with open_writer(path) as emit:
        trouble(monkeypatch, path)
        for event in [started(), *events]:
            emit(event)
            emit.flush()
        emit(END)
    moved = path.with_name("moved.h5")
    if moved.exists():
        assert not path.exists() or path.read_text() == "mine"
    assert_kept(moved if moved.exists() else path, events)
    assert not [each for each in tmp_path.iterdir() if each.name.startswith(".")]


def test_that_a_file_of_a_full_disk_is_not_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Incident] = []
    with open_writer(tmp_path / "run.h5", on_incident=told.append) as emit:
        no_room(monkeypatch, tmp_path)
        emit(started())
        emit(END)
    assert [incident.kind for incident in told] == ["recording_stopped"]
    assert limits(tmp_path / "run.h5")["gradient/stats"][:2] == (None, None)


def test_that_tensors_without_room_are_told_and_the_others_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_store, "tensor_room", lambda _: 64)
    told: list[Incident] = []
    counts = (60, 70, 71, 76, 76)
    events = [stats_event(step, names(count)) for step, count in enumerate(counts, 1)]
    late = stats_event(6, ("relu", "layer2.weight"), "activation")
    write_run(tmp_path / "run.h5", [started(), *events, late], on_incident=told.append)
    assert [(each.kind, each.severity) for each in told] == [("note", "warning")] * 2
    assert "room for 64 tensors; 6 more, layer64.weight first" in told[0].message
    assert "12 more" in told[1].message
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert run.events() == told
        record, other = run.tensors()["gradient"], run.tensors()["activation"]
        assert record.names == other.names == names(64)
        for row, event in enumerate(events):
            stats, exponents = expected(event)
            assert_array_equal(record.exponents(row, row + 1)[0, : len(stats)], exponents[:64])
        assert_array_equal(other.exponents()[0, 2], expected(late)[1][1])
        assert np.flatnonzero(other.stat("count")[0]).tolist() == [2]
        assert set(run.notes) <= {BROKEN_OFF}


def dead_copy(path: Path, events: list[Event], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file as it is while its writer is at work, taken for that of a dead one."""
    with open_writer(path) as emit:
        for event in [started(), StepDone(1, 1.0, 0.5, 1.0, False, 0.1, 1.0, 0.1, 0.0, 8, 1e6), *events]:
            emit(event)
        emit.flush()
        path.with_name("dead.h5").write_bytes(path.read_bytes())
    monkeypatch.setattr(process, "is_gone", lambda _: True)
    return path.with_name("dead.h5")


def as_laid_out_earlier(path: Path) -> None:
    """Two axes without a limit, all compressed by HDF5 itself."""
    with path.open("r+b") as raw:  # its writer has left HDF5's mark of one at work, which keeps others out
        head = bytearray(raw.read(48))
        head[11] = 0
        head[44:] = lookup3(head[:44]).to_bytes(4, "little")
        raw.seek(0)
        raw.write(head)
    with h5py.File(path, "r+", libver=("v110", "v110")) as file:
        for column in ("stride", "stats", "exponents"):
            name = f"tensors/gradient/{column}"
            values = file[name][:]
            del file[name]
            inner = values.shape[2:]
            limit, chunk = (None, None, *inner), (1, 64, *inner)
            file.create_dataset(name, data=values, maxshape=limit, chunks=chunk, compression="gzip", shuffle=True)


@pytest.mark.parametrize("earlier", [False, True])
def test_that_a_file_of_either_layout_is_read_and_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, earlier: bool
) -> None:
    events = [stats_event(step, names(130)) for step in range(1, 9)]
    path = dead_copy(tmp_path / "run.h5", [*events], monkeypatch)
    if earlier:
        as_laid_out_earlier(path)
    assert limits(path)["gradient/stats"][1] == (None if earlier else tensor_room(10))
    assert_kept(path, events)
    monkeypatch.setattr(table_file, "_COPIED_BYTES", 1 << 18)  # a row or two at once
    repair(path, "failed", "killed")
    assert_kept(path, events)
    with precgui.open_run(path) as run:
        assert (run.status, run.message, run.steps) == ("failed", "killed", 1)


def test_that_a_torn_part_of_an_index_costs_only_the_rows_that_it_names(tmp_path: Path) -> None:
    path, events = tmp_path / "run.h5", [stats_event(step, names(3)) for step in range(1, 41)]
    write_run(path, [started(), *events])
    content = bytearray(path.read_bytes())
    parts = [found.start() for found in re.finditer(b"EADB", content)]
    assert len(parts) > 8
    content[parts[-1] + 40] ^= 1
    path.write_bytes(content)
    with precgui.open_run(path) as run:
        record = run.tensors()["gradient"]
        assert len(record) == 40
        whole = (record.exponents() == np.stack([expected(event)[1] for event in events])).all((1, 2))
        whole &= (record.stats() == np.stack([expected(event)[0] for event in events]))[:, :, 3:].all((1, 2))
        assert 20 <= whole.sum() < 40
        assert any("of 40 rows that cannot be read" in note for note in run.notes)
