"""Child processes that import nothing from the folder in which precgui was started."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from multiprocessing.context import SpawnProcess

_SAFE_PATH = "PYTHONSAFEPATH"
_SAFE_PATH_MARK = "precgui"  # tells it from one that the user has set
_environment_lock = threading.Lock()


class ChildProcess(SpawnProcess):
    """A spawned process that never imports a module from the working directory.

    `multiprocessing` starts its resource tracker and its children by `python -c`, which puts the working directory
    first on the path: a `struct.py` that lies there would run. Every child process of precgui is one of these.
    Processes that the child starts with `multiprocessing` are as safe; other programs see the environment of the user,
    but in a process that compiles (`keep_safe_path`).
    """

    def start(self) -> None:
        with safe_path():
            super().start()

    def run(self) -> None:
        forget_safe_path()
        super().run()


@contextlib.contextmanager
def safe_path() -> Iterator[None]:
    """Inside, processes that `multiprocessing` starts are safe whatever class they have; one caller at a time."""
    with _environment_lock:
        before = os.environ.get(_SAFE_PATH)
        os.environ[_SAFE_PATH] = before or _SAFE_PATH_MARK
        try:
            yield
        finally:
            if before is None:
                del os.environ[_SAFE_PATH]
            else:
                os.environ[_SAFE_PATH] = before


def keep_safe_path() -> None:
    """From now on no Python that this process starts imports from the working directory.

    For torch.compile: its Inductor starts `python -c` to learn what the processor can do, and `python -m` to compile.
    """
    os.environ.setdefault(_SAFE_PATH, _SAFE_PATH_MARK)


def forget_safe_path() -> None:
    """Restore the user's environment for programs that this spawned process starts."""
    if os.environ.get(_SAFE_PATH) == _SAFE_PATH_MARK:
        del os.environ[_SAFE_PATH]
