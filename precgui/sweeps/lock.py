"""Locks between processes that the operating system releases when their owner ends, also after a crash."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from precgui.paths import is_example
from precgui.runs.file import json_text
from precgui.runs.file.process import this_process
from precgui.safe_open import open_to_write
from precgui.sentences import Sentence
from precgui.sweeps.errors import SweepError

_OWNER_BYTES = 512
_LOCKED_BYTE = 1 << 20  # beyond the written bytes: Windows lets no process read a locked byte


class FileLock:
    """An exclusive lock on a file, which names the process that holds it. The file itself stays."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Take the lock without waiting; False when another process, or another object of this one, holds it.

        Raises SweepError when the file cannot be made, or is no regular file.
        """
        try:
            descriptor = open_to_write(self.path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            known = {"file": self.path, "why": error.strerror}
            copy = Sentence("{file} cannot be locked: {why}; copy the folder first", **known)
            remove = Sentence("{file} cannot be locked: {why}; remove it", **known)
            raise SweepError(copy if is_example(self.path) else remove) from None
        if not _try_lock(descriptor):
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        owner = json.dumps(this_process()).encode().ljust(_OWNER_BYTES)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, owner)
        return True

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock."""
        return self._descriptor is not None

    def release(self) -> None:
        """Give the lock back. Idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)  # with it goes the lock
            self._descriptor = None

    def owner(self) -> Mapping[str, Any] | None:
        """The process that holds the lock (host, pid, process_started); None when it is free."""
        try:
            descriptor = open_to_write(self.path, os.O_RDWR)
        except OSError:
            return None
        try:
            if _try_lock(descriptor):
                return None
            os.lseek(descriptor, 0, os.SEEK_SET)
            return json_text.load(os.read(descriptor, _OWNER_BYTES).decode() or "{}")
        except (OSError, ValueError):
            return {}
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Wait for the lock, at most some seconds, and hold it inside. Raises TimeoutError."""
        import time

        deadline = time.monotonic() + 20.0
        while not self.acquire():
            if time.monotonic() > deadline:
                raise TimeoutError(Sentence("{file} is locked by another process; try again", file=self.path))
            time.sleep(0.02)
        try:
            yield
        finally:
            self.release()


if sys.platform == "win32":
    import msvcrt

    def _try_lock(descriptor: int) -> bool:
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _try_lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
