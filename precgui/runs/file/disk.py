"""Room on the disk of a run: how much is free, and a ballast that is thrown off when it is gone."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np

from precgui.runs.errors import RunFileError
from precgui.runs.file.descriptor import Descriptor

RESERVE_BYTES = 64 << 20
_BALLAST_BYTES = 4 << 20


def free_bytes(folder: Path) -> int:
    """Bytes that this user can still write into the folder's file system."""
    return shutil.disk_usage(folder).free


class ReservedSpace:
    """A few megabytes held in a nameless file, given back so that a last flush succeeds on a full disk.

    The file has no name, so the system frees it even when the process is killed.
    """

    def __init__(self, folder: Path) -> None:
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(np.random.default_rng().bytes(_BALLAST_BYTES))  # a compressing file system stores no zeros
                file.flush()
                self._held = Descriptor(os.dup(file.fileno()))
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise RunFileError(
                    f"no file may have the {_BALLAST_BYTES >> 20} MB that a run needs at least; raise the limit on the "
                    "size of files (ulimit -f)."
                ) from None
            here = folder.absolute()
            raise RunFileError(f"{here} cannot be written: {error.strerror}; choose another folder.") from None

    def drop(self) -> None:
        """Free the room. Idempotent."""
        self._held.close()


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
