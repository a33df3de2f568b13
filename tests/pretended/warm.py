"""A process over the pretended runtime that has imported torch and the engine, and forks for each script.

Their import takes longer than most scripts do. Nothing in it has asked for a device before the fork, so each script
meets the runtime as a new process does. Processes that a script starts by itself are spawned, as by the application.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from tests.warm_children import PRELOADED

LIMIT_S = 900  # of a script


class WarmProcess:
    """Runs scripts, one after the other. Leaving the context ends it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import serve; serve()"], env=dict(environment), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def __enter__(self) -> WarmProcess:
        self._process.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.__exit__(None, None, None)  # closes its input, at which it ends

    def run(self, text: str, environment: Mapping[str, str], folder: Path) -> tuple[int, str, str]:
        """The exit code of a script, negative for a signal, and what it has printed and told on stderr.

        It begins with `environment`; `folder` is one for the files of what it prints.
        """
        printed = [folder / "out", folder / "err"]
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([text, dict(environment), list(map(str, printed))]) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        out, err = (path.read_text(encoding="utf-8") for path in printed)
        return code, out, err


def serve() -> None:
    """The inside of the process: a script for each line of its input, and its exit code as a line of its output."""
    for name in (*PRELOADED, "tests.pretended.host_math"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        if not (child := os.fork()):
            _run(*json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)  # noqa: T201


def _run(text: str, environment: Mapping[str, str], printed: list[str]) -> None:
    """The inside of a fork; it does not return."""
    signal.alarm(LIMIT_S)
    os.environ.clear()
    os.environ.update(environment)
    for stream, path in enumerate([os.devnull, *printed]):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, stream)
        os.close(file)
    program = sys.modules["__main__"] = ModuleType("__main__")
    code = 1
    try:
        exec(text, program.__dict__)
        code = 0
    except BaseException:  # noqa: BLE001 - whatever a script raises
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the threads of torch's CUDA build do not end well over this runtime
