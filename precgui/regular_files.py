"""Reading files that anyone may have put there: only regular files, and no more of them than asked for."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_OPEN = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def open_regular(path: Path) -> BinaryIO:
    """The file, open for reading. Raises OSError; also for a pipe, a device or a folder, for which it never waits."""
    handle = os.open(path, _OPEN)  # without O_NONBLOCK a pipe would be waited for before it is known to be one
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        return os.fdopen(handle, "rb")
    except OSError:
        os.close(handle)
        raise


def read_text(path: Path, most_bytes: int) -> str:
    """The text of a UTF-8 file. Raises OSError, also for one that is larger, and UnicodeDecodeError."""
    with open_regular(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes} bytes", str(path))
    return content.decode("utf-8")
