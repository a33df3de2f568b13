"""Processes of tests start as forks of one process that has imported torch and the engine.

A spawned process imports both anew: 5 to 7 seconds of CPU time. Whatever a process inherits by its start is as in a
spawned one: the environment, the working directory, the process group and the path are those of the test.
`tests/test_spawn.py` spawns as the application does, and a test with variables that torch reads once has to.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from multiprocessing.util import get_temp_dir
from pathlib import Path
from types import ModuleType

import pytest

from precgui.process import spawn

# The first optimizer imports torch._dynamo. What is not there, as tests.warm_kernels in another folder, is left out.
PRELOADED = (
    "torch", "torch._dynamo", "precgui.job", "precgui.replay_job", "precgui.engine.train", "precgui.record.recorder",
    "tests.warm_kernels",
)  # fmt: skip
TIMEOUT_S = 500


def fork_from_a_warm_process(patch: pytest.MonkeyPatch) -> None:
    """Let every `ChildProcess` be a fork until `patch` is undone. Does nothing where processes cannot be forked."""
    if sys.platform != "linux":
        return
    from multiprocessing.popen_forkserver import Popen

    get_temp_dir()  # of the session: one that a test puts into its own folder is too long a name for a socket
    forkserver.set_forkserver_preload(list(PRELOADED))
    patch.setattr(spawn.ChildProcess, "_Popen", staticmethod(Popen))
    patch.setattr(spawn.ChildProcess, "__reduce__", _with_what_is_inherited)


def _with_what_is_inherited(process: spawn.ChildProcess) -> tuple[object, ...]:
    return _started, (process.__dict__, dict(os.environ), os.getpgrp())


def _started(state: dict[str, object], environment: dict[str, str], group: int) -> spawn.ChildProcess:
    """The process in the child, in the environment and in the group of the one that started it."""
    os.setpgid(0, group)
    os.environ.clear()
    os.environ.update(environment)
    fork_from_a_warm_process(pytest.MonkeyPatch())  # what it starts: the members of a sweep, and ranks
    process = spawn.ChildProcess.__new__(spawn.ChildProcess)
    process.__dict__.update(state)
    return process


def python(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The result of `python ARGUMENTS` in `cwd`, which ends within `TIMEOUT_S`."""
    with Python(*arguments, cwd=cwd) as started:
        return started.wait()


class Python:
    """`python ARGUMENTS`, started in `cwd` by a fork of the warm process. Leaving the context kills it.

    `arguments` begin with the name of a script, with "-c" and a program, or with "-m" and the name of a module.
    `own_group`: it leads a process group of its own.
    """

    def __init__(self, *arguments: object, cwd: Path | None = None, own_group: bool = False) -> None:
        context = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
        self._folder = tempfile.TemporaryDirectory()
        self._printed = [Path(self._folder.name) / name for name in ("out", "err")]
        inherited = (dict(os.environ), cwd or Path.cwd(), self._printed, own_group)
        self.process: BaseProcess = context.Process(  # type: ignore[attr-defined]
            target=_interpret, args=([str(each) for each in arguments], *inherited)
        )
        self.process.start()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def wait(self) -> subprocess.CompletedProcess[str]:
        """Its exit code, negative for a signal, and what it has printed, once it has ended."""
        self.process.join(TIMEOUT_S)
        out, err = (path.read_text(encoding="utf-8") for path in self._printed)
        if self.process.exitcode is None:
            raise TimeoutError(f"{self.process} has not ended: {err}")
        return subprocess.CompletedProcess(self.process.name, self.process.exitcode, out, err)

    def __enter__(self) -> Python:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.join()
        self._folder.cleanup()


def _interpret(
    arguments: list[str], environment: Mapping[str, str], cwd: Path, printed: list[Path], own_group: bool
) -> None:
    """The inside of the process of `Python`."""
    if own_group:
        os.setpgid(0, 0)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    for stream, path in enumerate(printed, 1):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, stream)
        os.close(file)
    fork_from_a_warm_process(pytest.MonkeyPatch())
    try:
        _run(arguments)
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever a program raises
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        sys.excepthook(sys.last_type, sys.last_value, sys.last_traceback)
        sys.exit(1)
    finally:  # the end of an interpreter, which multiprocessing cuts short
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()


def _run(arguments: list[str]) -> None:
    if arguments[0] == "-c":
        sys.argv, sys.path[:0] = ["-c", *arguments[2:]], [""]
        program = sys.modules["__main__"] = ModuleType("__main__")
        exec(arguments[1], program.__dict__)
    elif arguments[0] == "-m":
        sys.argv, sys.path[:0] = arguments[1:], [str(Path.cwd())]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[:0] = arguments, [str(Path(arguments[0]).parent)]
        runpy.run_path(arguments[0], run_name="__main__")
