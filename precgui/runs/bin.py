"""The bin of the system: files are moved to it, and on desktops that follow freedesktop.org back from it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from precgui.runs.errors import RunFileError
from precgui.safe_open import read_text
from precgui.sentences import Sentence

_LARGEST_INFO = 1 << 16  # bytes of a .trashinfo


def move_to_bin(path: Path) -> None:
    """Move a file to the bin. Raises RunFileError."""
    from send2trash import TrashPermissionError, send2trash  # slow to import, rarely needed

    try:
        send2trash(path)
    except (OSError, TrashPermissionError) as error:
        raise RunFileError(
            Sentence(
                "{file} cannot be moved to the bin: {error}; delete it in the file manager.", file=path, error=error
            )
        ) from None


def can_restore() -> bool:
    """Whether files come back from the bin of this system without its file manager."""
    return sys.platform.startswith(("linux", "freebsd"))


def restore(path: Path) -> None:
    """Move the file that was moved from `path` to the bin last back to its place. Raises RunFileError."""
    if path.exists():
        raise RunFileError(
            Sentence("{file} is there already; move it away, then restore the other from the bin.", file=path)
        )
    found = sorted(_infos_of(path.absolute()), key=lambda info: info.stat().st_mtime)
    if not found:
        raise RunFileError(Sentence("{file} was not found in the bin; look for it in the file manager.", file=path))
    info = found[-1]
    kept = info.parent.parent / "files" / info.stem
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        kept.rename(path)
        info.unlink()
    except OSError as error:
        raise RunFileError(
            Sentence(
                "{file} cannot be restored from the bin: {error}; restore it in the file manager.",
                file=path,
                error=error.strerror or str(error),
            )
        ) from None


def _infos_of(path: Path) -> Iterator[Path]:
    """The records of the bin about files that were at `path`."""
    for folder, top in _bins(path):
        for info in folder.glob("info/*.trashinfo"):
            try:
                lines = read_text(info, _LARGEST_INFO).splitlines()
            except (OSError, ValueError):
                continue
            was = next((unquote(line[5:]) for line in lines if line.startswith("Path=")), "")
            if was and Path(os.path.normpath(top / was)) == path and (folder / "files" / info.stem).exists():
                yield info


def _bins(path: Path) -> Iterator[tuple[Path, Path]]:
    """The bins that may hold a file from `path`, each with the folder that relative paths in it start from."""
    home = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "Trash"
    yield home, home.parent
    top = path.parent
    while not os.path.ismount(top) and top != top.parent:
        top = top.parent
    user = os.getuid()
    yield top / ".Trash" / str(user), top
    yield top / f".Trash-{user}", top
