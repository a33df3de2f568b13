"""The bytes of tensors on the CPU, from torch's own memory events.

The allocator of the CPU keeps no count, so a step is run under the profiler, which is told of every block that is taken
and given back.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from precgui.engine.torch_private import is_traceable_wrapper_subclass, memory_profiler


class MemoryEvents:
    """Counts the bytes that tensors take and give back between `start` and `stop`."""

    def __init__(self) -> None:
        self._running = self._collecting = False

    def start(self) -> None:
        """Begin; nothing happens where another profiler is at work.

        What was there before and is given back meanwhile does not count. Torch tells of it all the same, with a size of
        its own, where it lies at the place of a block that an earlier profiler saw taken and not given back.
        """
        if memory_profiler.is_available():
            self._collecting = gc.isenabled()
            gc.disable()  # so that nothing from before is given back meanwhile
            before = torch.empty(1)
            memory_profiler.start()
            self._running = True
            with stderr_closed():
                del before

    def stop(self) -> int | None:
        """The most bytes taken at one time beyond what was there at the start; None when nothing was counted."""
        if not self._running:
            return None
        self._running = False
        present = peak = 0
        changes = memory_profiler.stop()
        if self._collecting:
            gc.enable()
        for change in changes:
            present = max(present + change, 0)  # see `start`
            peak = max(peak, present)
        return peak


@contextlib.contextmanager
def stderr_closed() -> Iterator[None]:
    """Discards the terminal output of native code inside.

    The allocator warns there of the first block, and of each thousandth, that was taken before the profiler began; one
    such block given back inside spends the warning.
    """
    try:
        kept = os.dup(2)
    except OSError:  # a program without a terminal
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def workspace_bytes(device: torch.device) -> int:
    """Memory that cuBLAS gets from torch's allocator as soon as a step multiplies matrices, and keeps.

    Each thread has a workspace of its own, and there are two: the one that makes the forward pass and that of autograd.
    Their size is 32 MiB on Hopper and data-center Blackwell, 8.1 MiB on other GPUs (ATen/cuda/CublasHandlePool.cpp), or
    as CUBLAS_WORKSPACE_CONFIG has it, `:KiB:count` and so on. An H100 held 65 MiB.
    """
    if device.type != "cuda" or torch.version.hip is not None:
        return 0
    text = os.environ.get("CUBLAS_WORKSPACE_CONFIG", "")
    if not re.fullmatch(r"(:\d+:\d+)+", text):
        capability = torch.cuda.get_device_capability(device)
        text = ":4096:8" if capability == (9, 0) or capability[0] == 10 else ":4096:2:16:8"
    numbers = [int(number) for number in text.split(":")[1:]]
    return 2 * 1024 * sum(size * count for size, count in zip(numbers[::2], numbers[1::2], strict=True))


def sizes_bytes(parts: Mapping[str, Any]) -> dict[str, int]:
    """The bytes of the tensors in each part, each block of memory counted once, for the first part that has it."""
    visited: set[int] = set()
    sizes = {}
    for name, part in parts.items():
        blocks = {storage.data_ptr(): storage.nbytes() for storage in _storages(part)}
        sizes[name] = sum(size for place, size in blocks.items() if place not in visited)
        visited |= blocks.keys()
    return sizes


def _storages(value: Any) -> Iterator[Any]:
    if is_traceable_wrapper_subclass(value):  # such as a shard: its own storage is a placeholder
        yield from _storages([getattr(value, name) for name in value.__tensor_flatten__()[0]])
    elif isinstance(value, Tensor):
        yield value.untyped_storage()
    elif isinstance(value, Mapping | Iterable) and not isinstance(value, str):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _storages(part)
