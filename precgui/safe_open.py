"""Files in folders that anyone may have filled: only regular ones of bounded size; links and examples stay as is."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from precgui.paths import is_example
from precgui.sentences import L_, Sentence

_PLAIN = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
EXAMPLE_STAYS = L_("it belongs to an example of precgui, which stays as it is")
_FRESH = os.O_WRONLY | os.O_CREAT | os.O_EXCL


def open_regular(path: Path) -> BufferedReader:
    """The file, open for reading. Raises OSError; also for a pipe, a device or a folder, for which it never waits."""
    return os.fdopen(_checked(os.open(path, os.O_RDONLY | _PLAIN), path), "rb")


def open_to_write(path: Path, flags: int, mode: int = 0o644) -> int:
    """The descriptor of a regular file, opened with these flags and, where it is new, this mode of `os.open`.

    A link is never followed. Raises OSError, also for a link, a pipe, a device or a folder, for which it never waits,
    and for what lies among the bundled examples.
    """
    if is_example(path):
        raise OSError(errno.EROFS, EXAMPLE_STAYS, str(path))
    try:
        return _checked(os.open(path, flags | _PLAIN | _NO_LINK, mode), path)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, L_("it is a link, which is never followed"), str(path)) from None
        raise


def _checked(descriptor: int, path: Path) -> int:
    """The descriptor; opened without O_NONBLOCK a pipe would be waited for before it is known to be one."""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, L_("it is not a regular file"), str(path))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """A binary file to write, which takes the place of `path` at the end of the block, even if a crash follows.

    A reader sees either the old or the new content. An exception in the block leaves `path` as it is and nothing
    beside it. It is written under a fresh name, so a link in its place is replaced and what it points to stays as it
    is. Raises OSError.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    with replaced_by(draft, path), os.fdopen(open_to_write(draft, _FRESH, 0o666), "wb") as file:
        yield file


@contextlib.contextmanager
def replaced_by(draft: Path, path: Path) -> Iterator[None]:
    """`replaced` for a writer that opens files itself: `draft`, in the folder of `path`, is what it has written."""
    try:
        yield
        with draft.open("rb+") as written:
            os.fsync(written.fileno())
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def replace_file(path: Path, content: bytes) -> None:
    """Write a file by `replaced`. Raises OSError."""
    with replaced(path) as file:
        file.write(content)


def read_text(path: Path, most_bytes: int) -> str:
    """The text of a UTF-8 file. Raises OSError, also for one that is larger, and UnicodeDecodeError."""
    with open_regular(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, Sentence("it is larger than {bytes} bytes", bytes=most_bytes), str(path))
    return content.decode("utf-8")
