"""Atomic file creation: write under a temporary name in the same folder, then publish."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
import zlib
from pathlib import Path
from typing import Literal

import psutil

CAN_RENAME_OPEN = os.name == "posix"  # Windows cannot

_DEAD_S = 60.0  # a draft of a dead process on this host; a pid of another container may look dead
_OLD_S = 86_400.0  # of any process: it exists for milliseconds, or for minutes while a large file is copied
_NAME = re.compile(r"\..+\.(?P<host>[0-9a-f]{8})\.(?P<pid>\d{1,9})\.(?:new|copy)")


def draft_path(path: Path, kind: Literal["new", "copy"] = "new") -> Path:
    """The temporary path under which this process creates a file; its name identifies the process.

    Where no open file can be renamed it has its name at once, and a reader may meet one that is being made.
    """
    if not CAN_RENAME_OPEN and kind == "new":
        return path
    return path.with_name(f".{path.name}.{_host()}.{os.getpid()}.{kind}")


def publish(draft: Path, path: Path) -> None:
    """Give a file its name in one piece. Raises FileExistsError, never replaces another."""
    if draft == path:
        return
    try:
        path.hardlink_to(draft)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if path.exists():
            raise FileExistsError(path) from None
        draft.rename(path)
    draft.unlink(missing_ok=True)


def remove_stale(folder: Path) -> None:
    """Delete drafts that killed processes have left in a folder: those of which it is sure."""
    with contextlib.suppress(OSError):  # to be tidy is no reason to fail
        for path in folder.glob(".*"):
            with contextlib.suppress(OSError):
                if is_stale(path):
                    path.unlink()


def is_stale(path: Path) -> bool:
    """Whether the process that wrote the temporary file has ended. Raises OSError when the file does not exist."""
    match = _NAME.fullmatch(path.name)
    if match is None or not path.is_file() or path.is_symlink():
        return False
    age_s = time.time() - path.stat().st_mtime
    dead = match["host"] == _host() and not psutil.pid_exists(int(match["pid"]))
    return age_s > (_DEAD_S if dead else _OLD_S)


def _host() -> str:
    return f"{zlib.crc32(socket.gethostname().encode()):08x}"
