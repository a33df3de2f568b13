"""How often the host waits for the GPU: what torch warns of, and events that are waited for."""

from __future__ import annotations

import collections
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tests.gpu.place import REHEARSED

_WARNED = "synchronizing CUDA operation"


class Waits:
    """Lines that made the host wait since the last call of `taken`."""

    def __init__(self) -> None:
        self._lines: collections.Counter[str] = collections.Counter()

    def note(self) -> None:
        frames = [frame for frame in traceback.extract_stack() if "/tests/gpu/waits.py" not in frame.filename]
        own = [frame for frame in frames if "/precgui/" in frame.filename or "/tests/devices/" in frame.filename]
        frame = (own or frames)[-1]
        self._lines[f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}"] += 1

    def taken(self) -> collections.Counter[str]:
        lines, self._lines = self._lines, collections.Counter()
        return lines


@contextmanager
def counted_waits(monkeypatch: Any) -> Iterator[Waits]:
    """Counts those of the block; a synchronisation of the whole device is one of them."""
    waits = Waits()

    def called(frame: Any, event: str, function: Any) -> None:
        """Of events, whose class torch does not let be replaced: it measures no time between those of another."""
        is_wait = event == "c_call" and function.__name__ == "synchronize"
        if is_wait and isinstance(getattr(function, "__self__", None), torch.Event):
            waits.note()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if _WARNED in str(message):
            waits.note()

    whole_device = torch.cuda.synchronize

    def synchronize(*args: Any) -> None:
        waits.note()
        whole_device(*args)

    with warnings.catch_warnings(), monkeypatch.context() as patched:
        warnings.simplefilter("always")
        warnings.showwarning = show
        patched.setattr(torch.cuda, "synchronize", synchronize)
        if not REHEARSED:
            torch.cuda.set_sync_debug_mode("warn")
        before = sys.getprofile()
        sys.setprofile(called)
        try:
            yield waits
        finally:
            sys.setprofile(before)
            if not REHEARSED:
                torch.cuda.set_sync_debug_mode("default")
