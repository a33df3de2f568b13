"""Child processes that import nothing from the folder in which precgui was started."""

from __future__ import annotations

import os
import threading
from multiprocessing.context import SpawnProcess

_SAFE_PATH = "PYTHONSAFEPATH"
_SAFE_PATH_MARK = "precgui"  # tells it from one that the user has set
_environment_lock = threading.Lock()


class ChildProcess(SpawnProcess):
    """A spawned process that never imports a module from the working directory.

    `multiprocessing` starts its resource tracker and its children by `python -c`, which puts the working directory
    first on the path: a `struct.py` that lies there would run. Every child process of precgui is one of these.
    Processes that the child starts with `multiprocessing` are as safe; other programs see the environment of the user.
    """

    def start(self) -> None:
        with _environment_lock:
            before = os.environ.get(_SAFE_PATH)
            os.environ[_SAFE_PATH] = before or _SAFE_PATH_MARK
            try:
                super().start()
            finally:
                if before is None:
                    del os.environ[_SAFE_PATH]
                else:
                    os.environ[_SAFE_PATH] = before

    def run(self) -> None:
        if os.environ.get(_SAFE_PATH) == _SAFE_PATH_MARK:
            del os.environ[_SAFE_PATH]
        super().run()
