"""Files in folders that anyone may have filled: only regular ones, of bounded size, and no link is written to."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path
from typing import BinaryIO

_PLAIN = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


def open_regular(path: Path) -> BinaryIO:
    """The file, open for reading. Raises OSError; also for a pipe, a device or a folder, for which it never waits."""
    return os.fdopen(_checked(os.open(path, os.O_RDONLY | _PLAIN), path), "rb")


def open_to_write(path: Path, flags: int) -> int:
    """The descriptor of a regular file, opened with these flags of `os.open` and for all to read.

    A link is never followed. Raises OSError, also for a link, a pipe, a device or a folder, for which it never waits.
    """
    try:
        return _checked(os.open(path, flags | _PLAIN | _NO_LINK, 0o644), path)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link, which is never followed", str(path)) from None
        raise


def _checked(descriptor: int, path: Path) -> int:
    """The descriptor; opened without O_NONBLOCK a pipe would be waited for before it is known to be one."""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees either the old or the new content, even after a crash. Raises OSError.

    It is written under a fresh name, so a link in its place is replaced and what it points to stays as it is.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(open_to_write(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def read_text(path: Path, most_bytes: int) -> str:
    """The text of a UTF-8 file. Raises OSError, also for one that is larger, and UnicodeDecodeError."""
    with open_regular(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes} bytes", str(path))
    return content.decode("utf-8")
