"""Small files that would take gigabytes, or never end: refused with a sentence before they cost anything."""

from __future__ import annotations

import os
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

import precgui
from precgui.events import EXPONENT_BINS, TENSOR_STATS, RunEnded, RunStarted, TensorStats
from precgui.runs.errors import RunFileError
from precgui.runs.file.user_notes import Notes, notes_path, read_notes
from tests import needs
from tests.runs.synthetic import open_writer

BIG = 1 << 24  # bytes, four times the largest chunk that is read


def replace(path: Path, name: str, **options: object) -> None:
    """The same values in chunks of `BIG` bytes."""
    with h5py.File(path, "r+") as file:
        values, attributes = file[name][:], dict(file[name].attrs)
        del file[name]
        chunks = (BIG // values.itemsize, *values.shape[1:])
        made = file.create_dataset(name, data=values, maxshape=(None, *values.shape[1:]), chunks=chunks, **options)
        made.attrs.update(attributes)


@pytest.fixture
def with_tensors(tmp_path: Path) -> Path:
    path = tmp_path / "tensors.h5"
    stats = np.ones((1, len(TENSOR_STATS))).tobytes()
    counts = np.ones((1, EXPONENT_BINS), "<u4").tobytes()
    with open_writer(path) as emit:
        emit(RunStarted(0.0, 3, 3, "cpu"))
        for step in (1, 2, 3):
            emit(TensorStats(step, 0.1 * step, "gradient", ("w",), (1,), stats, counts))
        emit(RunEnded(1.0, "completed"))
    return path


@pytest.mark.parametrize("name", ["steps/loss", "rows_valid", "evaluation/loss", "events"])
def test_that_nothing_is_inflated_where_a_run_file_has_nothing_compressed(
    write: Callable[..., Path], name: str
) -> None:
    path = write()
    replace(path, name, compression="gzip")
    tracemalloc.start()
    with precgui.open_run(path) as run:
        for signal in ("loss", "val_loss"):
            run.series(signal)
        run.events()
        assert f"/{name} is compressed, as it is in no run file" in " ".join(run.notes)
    assert tracemalloc.get_traced_memory()[1] < BIG
    tracemalloc.stop()


def test_that_chunks_larger_than_those_of_a_run_file_are_refused(write: Callable[..., Path]) -> None:
    path = write()
    replace(path, "steps/loss")
    with precgui.open_run(path) as run:
        run.series("loss")
        assert "/steps/loss is stored in larger chunks than a run file has." in run.notes


def test_that_a_chunk_that_inflates_to_more_than_a_chunk_costs_its_row_only(with_tensors: Path) -> None:
    bomb = zlib.compress(bytes(8 * BIG))
    with h5py.File(with_tensors, "r+") as file:
        item = file["tensors/gradient/exponents"]
        item.id.write_direct_chunk((1, 0, 0), bomb)
    with precgui.open_run(with_tensors) as run:
        assert run._contents.read("tensors/gradient", "exponents", 0, 3).sum(axis=(1, 2)).tolist() == [256, 0, 256]
        assert "1 of 3 rows that cannot be read" in " ".join(run.notes)


def test_that_a_filter_that_comes_twice_is_refused(with_tensors: Path) -> None:
    with h5py.File(with_tensors, "r+") as file:
        shape = file["tensors/gradient/stats"].shape
        del file["tensors/gradient/stats"]
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_chunk((1, 64, len(TENSOR_STATS)))
        plan.set_deflate(9)
        plan.set_deflate(9)
        space = h5py.h5s.create_simple(shape, (h5py.h5s.UNLIMITED, h5py.h5s.UNLIMITED, shape[2]))
        h5py.h5d.create(file["tensors/gradient"].id, b"stats", h5py.h5t.IEEE_F32LE, space, plan)
    with precgui.open_run(with_tensors) as run:
        run._contents.read("tensors/gradient", "stats", 0, 3)
        assert "/tensors/gradient/stats is compressed in a way that precgui does not read." in run.notes


@needs.named_pipes
def test_that_a_pipe_in_place_of_notes_is_never_waited_for(write: Callable[..., Path]) -> None:
    path = write()
    os.mkfifo(notes_path(path))
    assert read_notes(path) == Notes()
    with precgui.open_run(path) as run:
        assert run.title


def test_that_notes_without_end_are_not_read(write: Callable[..., Path]) -> None:
    if not Path("/dev/zero").exists():
        pytest.skip("there is no endless device")
    path = write()
    notes_path(path).symlink_to("/dev/zero")
    assert read_notes(path) == Notes()


@needs.named_pipes
def test_that_a_pipe_is_no_event_file(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from precgui.runs.tensorboard.imports import _Reading

    os.mkfifo(tmp_path / "events.out.tfevents.1")
    with pytest.raises(RunFileError, match="cannot be read"):
        _Reading().take(tmp_path / "events.out.tfevents.1", "")
