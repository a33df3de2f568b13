"""Many open runs: a few files are open, and all runs read as if theirs were."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil

import precgui
from precgui.runs.file.contents import MOST_OPEN, RecentViews, RunFileView
from tests.runs.synthetic import open_writer, synthetic_events


def _open_files(folder: Path) -> int:
    return sum(file.path.startswith(str(folder)) for file in psutil.Process().open_files())


def test_that_many_open_runs_hold_few_files_and_read_the_same(write: Callable[..., Path], tmp_path: Path) -> None:
    first = write("0.h5")
    paths = [Path(shutil.copyfile(first, tmp_path / f"{number}.h5")) for number in range(1, 3 * MOST_OPEN)]
    runs = [precgui.open_run(path) for path in paths]
    assert _open_files(tmp_path) <= MOST_OPEN
    with precgui.open_run(first) as whole:
        for run in [*runs, *runs]:
            np.testing.assert_array_equal(run.series("loss"), whole.series("loss"))
            np.testing.assert_array_equal(run.series("memory_bytes"), whole.series("memory_bytes"))
            assert (run.events(), run.model(), run.notes) == (whole.events(), whole.model(), [])
            for kind, record in run.tensors().items():
                np.testing.assert_array_equal(record.exponents(), whole.tensors()[kind].exponents())
    assert _open_files(tmp_path) <= MOST_OPEN
    for run in runs:
        run.close()
    assert _open_files(tmp_path) == 0


def _let_go(run: precgui.SavedRun) -> None:
    run._contents.release()


def test_that_a_file_that_took_the_place_of_another_is_not_read(write: Callable[..., Path], tmp_path: Path) -> None:
    run = precgui.open_run(write("a.h5"))
    loss = run.series("loss")[1].copy()
    _let_go(run)
    write("b.h5", steps=20).replace(tmp_path / "a.h5")
    np.testing.assert_array_equal(run.series("loss")[1], loss)
    assert not len(run.series("lr")[1])
    assert any("was changed, moved or deleted after it was opened" in note for note in run.notes)
    run.close()


def test_that_a_deleted_file_leaves_what_was_read(write: Callable[..., Path]) -> None:
    run = precgui.open_run(write())
    loss = run.series("loss")[1].copy()
    _let_go(run)
    run.path.unlink()
    np.testing.assert_array_equal(run.series("loss")[1], loss)
    assert run.events() == []
    assert any("deleted" in note for note in run.notes)
    run.close()


def test_that_a_closed_run_opens_its_file_no_more(write: Callable[..., Path], tmp_path: Path) -> None:
    run = precgui.open_run(write())
    run.series("loss")
    run.close()
    run.series("lr")
    assert _open_files(tmp_path) == 0


def test_that_a_file_that_another_thread_reads_stays_open(write: Callable[..., Path]) -> None:
    run = precgui.open_run(write())
    with run._contents._lock:
        other = threading.Thread(target=_let_go, args=(run,))
        other.start()
        other.join()
        assert run._contents.file
    _let_go(run)
    assert not run._contents.file
    run.close()


def test_that_a_run_under_way_keeps_its_file(tmp_path: Path) -> None:
    with open_writer(tmp_path / "run.h5") as writer:
        for event in synthetic_events()[:-1]:
            writer(event)
        writer.flush()
        with precgui.open_run(tmp_path / "run.h5") as run:
            assert run.status == "running"
            _let_go(run)
            assert run._contents.file


def test_that_views_are_forgotten_with_their_runs(write: Callable[..., Path]) -> None:
    class View:
        released = False

        def release(self) -> None:
            self.released = True

    recent, views = RecentViews(most=2), [View() for _ in range(3)]
    for view in views:
        recent.used(view)
    assert [view.released for view in views] == [True, False, False]
    assert RunFileView.open(write()).notes == []
