"""The processes of a place in a test: agents and jobs, found by the folder that they keep their state in."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil

_END_S = 60.0  # on a machine that is busy


def processes_of(state: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("PRECGUI_STATE") == str(state):
                found.append(process)
    return found


@contextlib.contextmanager
def none_left(state: Path) -> Iterator[None]:
    """Kills what a place has left running, and fails where a test that passed has left it."""
    try:
        yield
        _, left = psutil.wait_procs(processes_of(state), _END_S)
        assert not left, f"left behind: {left}"
    finally:
        for process in processes_of(state):
            with contextlib.suppress(psutil.Error):
                process.kill()
