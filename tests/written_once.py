"""Files that many tests begin with: written once in a process of tests, copied for each."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Hashable
from pathlib import Path

_folder = tempfile.TemporaryDirectory(prefix="precgui-tests-")
atexit.register(_folder.cleanup)
_written: dict[Hashable, Path] = {}


def written_once(path: Path, key: Hashable, write: Callable[[Path], object]) -> Path:
    """Let `write(path)` make the file; a later call with an equal key puts a copy of it at its own path instead."""
    if key in _written:
        shutil.copyfile(_written[key], path)
    else:
        write(path)
        kept = Path(_folder.name) / f"{len(_written)}{path.suffix}"
        shutil.copyfile(path, kept)
        _written[key] = kept
    return path
