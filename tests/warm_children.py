"""Child processes of tests start as forks of one process that has imported torch and the engine.

A spawned child imports both anew: about 5 seconds of CPU time for each child. Whatever a process
inherits by its start is as in a spawned one: the environment, the working directory and the path are those of the
test. `tests/test_spawn.py`, and every test that starts `precgui` as a command, spawn as the application does.
"""

from __future__ import annotations

import os
import sys
from multiprocessing import forkserver

import pytest

from precgui import spawn

# The first optimizer imports torch._dynamo. What is not there, as tests.warm_kernels in another folder, is left out.
PRELOADED = ("torch", "torch._dynamo", "precgui.job", "precgui.engine.train", "tests.warm_kernels")


def fork_from_a_warm_process(patch: pytest.MonkeyPatch) -> None:
    """Let every `ChildProcess` be a fork until `patch` is undone. Does nothing where processes cannot be forked."""
    if sys.platform != "linux":
        return
    from multiprocessing.popen_forkserver import Popen

    forkserver.set_forkserver_preload(list(PRELOADED))
    patch.setattr(spawn.ChildProcess, "_Popen", staticmethod(Popen))
    patch.setattr(spawn.ChildProcess, "__reduce__", _with_environment)


def _with_environment(process: spawn.ChildProcess) -> tuple[object, ...]:
    return _started, (process.__dict__, dict(os.environ))


def _started(state: dict[str, object], environment: dict[str, str]) -> spawn.ChildProcess:
    """The process in the child, in the environment of the one that started it."""
    os.environ.clear()
    os.environ.update(environment)
    process = spawn.ChildProcess.__new__(spawn.ChildProcess)
    process.__dict__.update(state)
    return process
