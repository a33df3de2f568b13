"""Chunks that are compressed here are what zlib and HDF5 take for theirs."""

from __future__ import annotations

import zlib

import h5py
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from precgui.runs.file.chunk_codec import pieces
from precgui.runs.file.schema import TENSORS_IN_CHUNK


def counts(tensors: int, most: int) -> np.ndarray:
    rng = np.random.default_rng([tensors, most])
    row = rng.integers(0, most, (tensors, 256), endpoint=True).astype(np.uint32)
    row[:, :90] = row[:, 130:] = 0
    return row


@pytest.mark.parametrize("tensors", [1, 63, 64, 65, 200])
@pytest.mark.parametrize("most", [0, 1, 255, 256, 65_535, 65_536, 2**24, 2**32 - 1])
def test_that_zlib_finds_the_bytes_in_the_order_of_their_weight(tensors: int, most: int) -> None:
    row = counts(tensors, most)
    for first, piece in pieces(row, "shuffle"):
        planes = np.frombuffer(zlib.decompress(piece), np.uint8).reshape(4, -1)
        found = planes.T.copy().view(np.uint32).reshape(TENSORS_IN_CHUNK, 256)
        part = row[first : first + TENSORS_IN_CHUNK]
        assert_array_equal(found[: len(part)], part)
        assert not found[len(part) :].any()


@pytest.mark.parametrize("tensors", [1, 64, 100])
def test_that_zlib_finds_numbers_as_they_are(tensors: int) -> None:
    row = np.random.default_rng(3).normal(size=(tensors, 16)).astype(np.float32)
    row[0, :4] = np.nan, np.inf, -np.inf, -0.0
    chunks = [np.frombuffer(zlib.decompress(piece), np.float32) for _, piece in pieces(row, "deflate")]
    found = np.concatenate(chunks).reshape(-1, 16)
    assert found[:tensors].tobytes() == row.tobytes()
    assert not found[tensors:].any()


def test_that_hdf5_reads_them() -> None:
    row = counts(100, 70_000)
    with h5py.File("memory.h5", "w", driver="core", backing_store=False) as file:
        item = file.create_dataset("x", (1, 100, 256), "u4", chunks=(1, 64, 256), compression="gzip", shuffle=True)
        for first, piece in pieces(row, "shuffle"):
            item.id.write_direct_chunk((0, first, 0), piece)
        assert_array_equal(item[0], row)
