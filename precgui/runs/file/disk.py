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
from precgui.sentences import L_, Sentence, filled

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
                    Sentence(
                        "no file may have the {size} MB that a run needs at least; raise the limit on the size of "
                        "files (ulimit -f).",
                        size=_BALLAST_BYTES >> 20,
                    )
                ) from None
            here = folder.absolute()
            raise RunFileError(
                Sentence("{file} cannot be written: {error}; choose another folder.", file=here, error=error.strerror)
            ) from None

    def drop(self) -> None:
        """Free the room. Idempotent."""
        self._held.close()


def require_room(folder: Path, reserve_bytes: int) -> None:
    """Raises RunFileError when the folder is missing or has less room than the reserve."""
    if not folder.is_dir():
        if folder.exists():
            text = L_("{folder} is not a folder; create it or choose another.")
        else:
            text = L_("the folder {folder} does not exist; create it or choose another.")
        raise RunFileError(filled(text, folder=folder))
    try:
        free = free_bytes(folder)
    except OSError as error:
        raise RunFileError(
            Sentence("{folder} cannot be reached: {error}; choose another folder.", folder=folder, error=error.strerror)
        ) from None
    if free < reserve_bytes:
        raise RunFileError(
            Sentence(
                "{folder} has only {free} MB left, a run needs {needed} MB; free some or choose another folder.",
                folder=folder,
                free=free >> 20,
                needed=reserve_bytes >> 20,
            )
        )
