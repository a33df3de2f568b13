"""The way to one process: messages in both directions, whether it is alive, and its end."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from precgui.process.spawn import ChildProcess

LAST_WORDS_BYTES = 8000


class Channel(Protocol):
    """A process that has not begun yet, and the two ends of the way to it. No message is None.

    `send` and `kill` may be called from any thread at any time, the others from the thread that supervises.
    """

    @property
    def pid(self) -> int | None:
        """The id of the process; None before its start."""

    def start(self) -> None:
        """Start the process. Raises OSError."""

    def send(self, message: object) -> None:
        """Also before the start: the message then waits. Raises OSError where the process is gone."""

    def receive(self, timeout_s: float) -> Any:
        """The next message, None where none comes in that time. Raises EOFError, OSError when no more can come."""

    def is_alive(self) -> bool: ...

    def kill(self) -> None:
        """End the process, if it is there."""

    def wait(self) -> int:
        """Wait for its end. Returns the exit code, negative for the signal that ended it."""

    def last_words(self) -> str:
        """The end of its output."""

    def close(self) -> None: ...


class SpawnedChannel:
    """The pipe to a spawned process, which calls `target(connection, *arguments)`.

    With `keep_output`, `target` gets the name of a file for its output as the last argument.
    """

    def __init__(
        self, target: Callable[..., None], arguments: Sequence[Any] = (), *, daemon: bool, keep_output: bool = False
    ) -> None:
        self._target, self._arguments, self._daemon = target, tuple(arguments), daemon
        self._pipe, self._far_end = multiprocessing.Pipe(duplex=True)
        self._process: ChildProcess | None = None
        self._keep_output = keep_output
        self._output: _Output | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        if self._keep_output:
            self._output = _Output()
            self._arguments = (*self._arguments, self._output.name)
        process = ChildProcess(target=self._target, args=(self._far_end, *self._arguments), daemon=self._daemon)
        process.start()
        self._process = process
        self._far_end.close()  # the end of the process is then the end of the pipe

    def send(self, message: object) -> None:
        self._pipe.send(message)

    def receive(self, timeout_s: float) -> Any:
        return self._pipe.recv() if self._pipe.poll(timeout_s) else None

    def is_alive(self) -> bool:
        return self._process is not None and self._process.is_alive()

    def kill(self) -> None:
        if self._process is not None and self._process.is_alive():
            self._process.kill()

    def wait(self) -> int:
        if self._process is None:
            return 0
        self._process.join()
        return self._process.exitcode or 0

    def last_words(self) -> str:
        return self._output.end() if self._output is not None else ""

    def close(self) -> None:
        self._far_end.close()
        self._pipe.close()
        if self._output is not None:
            self._output.close()


class _Output:
    """A temporary file that takes the output of a process.

    The process removes its name once it has opened it, so that nothing stays when both are killed.
    """

    def __init__(self) -> None:
        handle, self.name = tempfile.mkstemp(prefix="precgui-", suffix=".log")
        self._file: BinaryIO = os.fdopen(handle, "rb")

    def end(self) -> str:
        """The last `LAST_WORDS_BYTES` as text."""
        self._file.seek(max(0, self._file.seek(0, os.SEEK_END) - LAST_WORDS_BYTES))
        return self._file.read().decode("utf-8", "replace").strip()

    def close(self) -> None:
        self._file.close()
        with contextlib.suppress(OSError):
            Path(self.name).unlink(missing_ok=True)
