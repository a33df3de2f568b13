"""Files that cannot be made, disks that fill up, processes that are killed."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest

import precgui
from precgui.events import Event, Incident, RunEnded, Status, StepDone
from precgui.runs.errors import RunFileError
from precgui.runs.file import disk, table_file, writer
from precgui.runs.file.reader import BROKEN_OFF, open_run
from precgui.runs.file.schema import FIXED_TEXTS
from precgui.runs.file.table_file import TableFile
from precgui.runs.tensors.record import Names, exponents_of, tensor_rows
from tests import needs
from tests.runs.synthetic import open_writer, synthetic_events
from tests.runs.tensors.test_record import stats_event

KILLED_WRITER = "benchmarks/kill_test.py"


def test_that_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    path.write_bytes(b"precious")
    with pytest.raises(RunFileError, match="already exists; choose another name"):
        open_writer(path)
    assert path.read_bytes() == b"precious"


def test_that_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFileError, match="nowhere does not exist; create it"):
        open_writer(tmp_path / "nowhere" / "run.h5")


def test_that_a_file_for_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFileError, match=r"file.* is not a folder"):
        open_writer(tmp_path / "file" / "run.h5")


def test_that_a_name_that_is_too_long_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(RunFileError, match="is too long for a file name; choose a shorter one"):
        open_writer(tmp_path / f"{'x' * 250}.h5")
    assert list(tmp_path.iterdir()) == []


@needs.ordinary_user
def test_that_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(RunFileError, match="cannot be written"):
        open_writer(tmp_path / "run.h5")
    tmp_path.chmod(stat.S_IRWXU)


def test_that_a_full_disk_is_told_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "free_bytes", lambda _: 10 << 20)
    with pytest.raises(RunFileError, match="only 10 MB left, a run needs 64 MB"):
        open_writer(tmp_path / "run.h5")
    assert list(tmp_path.iterdir()) == []


def test_that_recording_stops_below_the_reserve_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Incident] = []
    events = synthetic_events(100)
    with open_writer(tmp_path / "run.h5", on_incident=told.append) as emit:
        for event in events[:50]:
            emit(event)
        emit.flush()
        monkeypatch.setattr(disk, "free_bytes", lambda _: 3 << 20)
        for event in events[50:60]:
            emit(event)
        emit.flush()
        for event in events[60:]:
            emit(event)
    assert [incident.kind for incident in told] == ["recording_stopped"]
    kept = sum(isinstance(event, StepDone) for event in events[:60])
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert (run.steps, run.status, run.notes) == (kept, "failed", [])
        assert told[0].message == f"{run.message[:-1]}; the training goes on."
        assert run.events("recording_stopped") == told
        assert run.summary["steps"] == kept


class Refusing:
    """A table file whose disk takes no more rows for a while."""

    def __init__(self, file: TableFile, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
        self.times, self._append = times, file.append
        monkeypatch.setattr(file, "append", self.append)

    def append(self, batch: object) -> None:
        self.times -= 1
        if self.times >= 0:
            raise RuntimeError("Can't write (errno = 28, error message = 'No space left on device')")
        self._append(batch)


@pytest.mark.parametrize("status", ["completed", "stopped"])
@pytest.mark.parametrize(("refusals", "kept"), [(1, 40), (99, 20)])
def test_that_a_disk_that_refuses_rows_costs_at_most_those(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusals: int, kept: int, status: Status
) -> None:
    told: list[Incident] = []
    steps = [event for event in synthetic_events(60) if isinstance(event, StepDone)]
    with open_writer(tmp_path / "run.h5", on_incident=told.append) as emit:
        emit_all(emit, steps[:20])
        emit.flush()
        Refusing(emit._recording.file, monkeypatch, refusals)
        emit_all(emit, steps[20:40])
        emit.flush()
        emit_all(emit, steps[40:])
        emit(RunEnded(1.0, status, "fine"))
    assert "No space left on device" in told[0].message
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert run.series("loss")[0].tolist() == list(range(1, kept + 1))
        assert (run.status, told[0].message) == ("failed", f"{run.message[:-1]}; the training goes on.")


def emit_all(emit: Callable[[Event], None], events: list[StepDone]) -> None:
    for event in events:
        emit(event)


def test_that_a_file_that_is_closed_early_says_so(tmp_path: Path) -> None:
    emit = open_writer(tmp_path / "run.h5")
    emit_all(emit, [event for event in synthetic_events(30) if isinstance(event, StepDone)])
    emit.close()
    emit.close()
    emit(RunEnded(1.0, "completed"))
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert (run.status, run.steps) == ("failed", 30)
        assert "closed before the run had ended" in run.message


def test_that_rows_are_flushed_while_no_event_arrives(tmp_path: Path) -> None:
    with open_writer(tmp_path / "run.h5") as emit:
        emit_all(emit, [event for event in synthetic_events(30) if isinstance(event, StepDone)])
        with precgui.open_run(tmp_path / "run.h5") as run:
            deadline = time.monotonic() + 300
            while run.steps < 30 and time.monotonic() < deadline:
                time.sleep(0.02)
                run.refresh()
            assert (run.steps, run.status) == (30, "running")


def test_that_a_reader_follows_a_run_of_this_very_process_across_chunks(tmp_path: Path) -> None:
    steps = [event for event in synthetic_events(9000) if isinstance(event, StepDone)]
    with open_writer(tmp_path / "run.h5") as emit, precgui.open_run(tmp_path / "run.h5") as run:
        for at in range(0, 9000, 600):
            emit_all(emit, steps[at : at + 600])
            emit.flush()
            assert run.refresh()
            np.testing.assert_array_equal(run.series("loss")[0], np.arange(1, at + 601))
            with precgui.open_run(tmp_path / "run.h5") as second:
                np.testing.assert_array_equal(second.series("loss")[0], np.arange(1, at + 601))
        emit(RunEnded(1.0, "stopped"))
        assert run.refresh()
        assert run.status == "stopped"
        assert not run.refresh()


@contextmanager
def writing_process(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that writes steps without end and prints each number of steps that it has flushed."""
    command = [sys.executable, KILLED_WRITER, "--write", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("lines", [1, 2, 4])
def test_that_a_killed_process_loses_nothing_that_was_flushed(tmp_path: Path, lines: int) -> None:
    with writing_process(tmp_path / "run.h5") as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(1 + lines)]
        assert said[0] == b"begins\n"
        flushed = [int(line.removeprefix(b"flushed ")) for line in said[1:]]
        with precgui.open_run(tmp_path / "run.h5") as alive:
            assert alive.status == "running"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert run.status == "failed"
        assert run.notes == [BROKEN_OFF]
        step, loss = run.series("loss")
        assert len(step) >= flushed[-1]
        np.testing.assert_array_equal(step, np.arange(1, len(step) + 1))
        np.testing.assert_array_equal(loss, 1 / step)


def test_that_the_flush_is_well_within_a_second() -> None:
    assert writer.FLUSH_S <= 0.75


def test_that_the_training_flushes_where_the_flusher_is_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(writer, "FLUSH_S", 3600.0)  # on a busy machine it did not get its turn
    monkeypatch.setattr(writer, "time", SimpleNamespace(monotonic=lambda: now_s))
    steps = [event for event in synthetic_events() if isinstance(event, StepDone)]
    with open_writer(tmp_path / "run.h5") as emit:
        for number, step in enumerate(steps, 1):
            now_s = 0.25 * number
            emit(step)
            assert number - emit.flushed_steps <= 3  # those of 0.8 s


def test_that_steps_do_not_wait_for_a_next_one_that_comes_too_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr(writer, "FLUSH_S", 3600.0)
    monkeypatch.setattr(writer, "time", SimpleNamespace(monotonic=lambda: now_s))
    steps = [event for event in synthetic_events() if isinstance(event, StepDone)]
    with open_writer(tmp_path / "run.h5") as emit:
        for number, step in enumerate(steps[:20], 1):
            now_s = 0.6 * number
            emit(step)
            assert number - emit.flushed_steps <= 1  # a kill just before the next one costs 0.6 s, two would be 1.2 s


def test_that_the_training_waits_for_a_flush_that_takes_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else events of up to LATEST_S would come while others of the same age are on their way to the disk."""
    now_s = 0.0
    monkeypatch.setattr(writer, "FLUSH_S", 3600.0)
    monkeypatch.setattr(writer, "time", SimpleNamespace(monotonic=lambda: now_s))
    steps = [event for event in synthetic_events() if isinstance(event, StepDone)]
    with open_writer(tmp_path / "run.h5") as emit:
        emit(steps[0])
        keep, is_writing, may_end = emit._recording.keep, threading.Event(), threading.Event()

        def keep_slowly(events: list[Event]) -> list[Incident]:
            is_writing.set()
            may_end.wait(60)
            return keep(events)

        monkeypatch.setattr(emit._recording, "keep", keep_slowly)
        flusher = threading.Thread(target=emit.flush)
        flusher.start()
        assert is_writing.wait(60)
        now_s = 0.1
        emit(steps[1])  # the first step is 0.1 s old: no need to wait for the disk
        now_s = 0.85
        training = threading.Thread(target=emit, args=(steps[2],))
        training.start()
        training.join(0.3)
        waits = training.is_alive()
        may_end.set()
        flusher.join()
        training.join()
        assert waits
        assert emit.flushed_steps == 3


@needs.open_descriptors
@pytest.mark.parametrize("when", ["between flushes", "before the end"])
def test_that_nothing_is_written_to_a_file_that_got_the_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """As after `os.closerange` in a process that makes itself a daemon, and then opens files of its own."""
    monkeypatch.setattr(writer, "FLUSH_S", 3600.0)
    others, told = [], []
    with open_writer(tmp_path / "run.h5", on_incident=told.append) as emit:
        steps = [event for event in synthetic_events() if isinstance(event, StepDone)]
        emit(steps[0])
        emit.flush()
        for held in (emit._recording.file._descriptor, emit._recording._ballast._held):
            other = os.open(tmp_path / str(held.number), os.O_RDWR | os.O_CREAT)
            others.append(os.dup2(other, held.number, inheritable=False))
            os.close(other)
            os.write(held.number, b"mine")
        if when == "between flushes":
            emit(steps[1])
            emit.flush()
        emit(RunEnded(2.0, "completed"))
    for number in others:
        os.write(number, b", still")
        assert not os.get_inheritable(number)
        os.close(number)
        assert (tmp_path / str(number)).read_bytes() == b"mine, still"
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert run.steps == 1
        if when == "between flushes":
            assert (run.status, [incident.kind for incident in told]) == ("failed", ["recording_stopped"])
            assert "other code has closed the descriptor of its file" in run.message


def test_that_nobody_sees_half_a_file(tmp_path: Path) -> None:
    """Whoever looks at a folder while runs begin in it finds each of them whole or not at all."""
    ended, seen, faults = threading.Event(), set(), []

    def look() -> None:
        while not ended.is_set():
            for path in tmp_path.glob("*.h5"):
                try:
                    with open_run(path) as run:
                        seen.add(path)
                        faults.extend(run.notes)
                except RunFileError as error:
                    faults.append(str(error))

    looking = threading.Thread(target=look)
    looking.start()
    for number in range(12):
        with open_writer(tmp_path / f"{number}.h5") as emit:
            emit(RunEnded(0.0, "completed"))
    while len(seen) < 12 and looking.is_alive():
        time.sleep(0.01)
    ended.set()
    looking.join()
    assert faults == []
    assert [path.name for path in tmp_path.iterdir() if not path.name.endswith(".h5")] == []


def test_that_a_name_that_is_taken_meanwhile_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, publish = tmp_path / "run.h5", table_file.publish  # type: ignore[attr-defined]
    monkeypatch.setattr(table_file, "publish", lambda draft, path: (path.write_text("mine"), publish(draft, path)))
    with pytest.raises(RunFileError, match="already exists; choose another name"):
        open_writer(path)
    assert path.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [path]


def test_that_no_header_lies_across_pages(tmp_path: Path) -> None:
    """A kill can end a write between pages, and HDF5 writes the headers of growing datasets in place."""
    with open_writer(tmp_path / "run.h5") as emit:
        for event in synthetic_events(30):
            emit(event)
    found: list[tuple[int, int]] = []

    def look(_: str, item: h5py.Dataset | h5py.Group) -> None:
        if isinstance(item, h5py.Dataset) and item.maxshape[:1] == (None,):
            about = h5py.h5o.get_info(item.id)
            found.append((about.addr % 4096, about.hdr.space.total))

    with h5py.File(tmp_path / "run.h5", "r") as file:
        file.visititems(look)
    assert len(found) > 50
    assert max(start + size for start, size in found) <= 4096


@contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """The system then refuses to write, as it does on a full disk."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_that_rows_that_the_disk_refused_are_whole_when_it_takes_them(tmp_path: Path) -> None:
    """Wherever the first attempt broke off: in the rows, in their index, in the counters."""
    events = [stats_event(step, tuple("abc")) for step in range(1, 7)]
    refused = 0
    for room in range(0, 80_000, 1600):
        names, path = Names(), tmp_path / f"{room}.h5"
        texts = dict.fromkeys(FIXED_TEXTS, "{}")
        file = TableFile(path, attributes={"run_id": "", "title": "", "created": ""}, texts=texts, tensor_room=64)
        file.publish()
        file.append({"tensors/gradient": tensor_rows(events[:2], names)})
        batch = {"tensors/gradient": tensor_rows(events[2:], names)}
        try:
            with no_file_longer_than(path.stat().st_size + room):
                file.append(batch)
        except (OSError, RuntimeError):
            refused += 1
            file.append(batch)
        file.close()
        with h5py.File(path, "r") as read:
            np.testing.assert_array_equal(
                read["tensors/gradient/exponents"][:], [exponents_of(event) for event in events]
            )
    assert refused > 5
