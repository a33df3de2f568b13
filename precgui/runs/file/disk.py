"""Room on the disk of a run: how much is free, and a ballast that is thrown off when it is gone."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import IO

import numpy as np

from precgui.runs.errors import RunFileError

RESERVE_BYTES = 64 << 20
_BALLAST_BYTES = 4 << 20


def free_bytes(folder: Path) -> int:
    """Bytes that this user can still write into the folder's file system."""
    return shutil.disk_usage(folder).free


class Ballast:
    """A few megabytes held in a nameless file, given back so that a last flush succeeds on a full disk.

    The file has no name, so the system frees it even when the process is killed.
    """

    def __init__(self, folder: Path) -> None:
        self._file: IO[bytes] | None = None
        try:
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  held until drop()
            self._file.write(
                np.random.default_rng().bytes(_BALLAST_BYTES)
            )  # random, or a compressing file system would store nothing
            self._file.flush()
        except OSError as error:
            self.drop()
            raise RunFileError(f"{folder} cannot be written: {error.strerror}; choose another folder.") from None

    def drop(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # somebody else has closed its descriptor: the room is free
                self._file.close()
            self._file = None


def require_room(folder: Path, reserve_bytes: int) -> None:
    """Raises RunFileError when the folder is missing or has less room than the reserve."""
    if not folder.is_dir():
        what = f"{folder} is not a folder" if folder.exists() else f"the folder {folder} does not exist"
        raise RunFileError(f"{what}; create it or choose another.")
    try:
        free = free_bytes(folder)
    except OSError as error:
        raise RunFileError(f"{folder} cannot be reached: {error.strerror}; choose another folder.") from None
    if free < reserve_bytes:
        room = f"{free >> 20} MB left, a run needs {reserve_bytes >> 20} MB"
        raise RunFileError(f"{folder} has only {room}; free some or choose another folder.")
