"""Freed memory goes back to the system, also where it lies between memory that is used."""

from __future__ import annotations

import platform

import psutil
import pytest

from precgui.gui.shell.free_memory import return_free_memory

BLOCKS, BLOCK_BYTES = 4000, 16_384


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not that of GNU")
def test_that_freed_memory_between_used_memory_goes_back_to_the_system() -> None:
    blocks = [bytes([number % 256]) * BLOCK_BYTES for number in range(BLOCKS)]
    used = blocks[::10]
    del blocks
    process = psutil.Process()
    before = process.memory_info().rss
    return_free_memory()
    assert before - process.memory_info().rss > 0.5 * BLOCKS * BLOCK_BYTES
    assert all(len(block) == BLOCK_BYTES for block in used)
