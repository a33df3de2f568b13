"""Loops that numba compiles at the first call, and keeps on disk for the processes that come after.

numba gives the files of a function's variants (other dtypes, other closures) the numbers 1, 2, 3 in the order in which
they are saved. Two processes that save at once take the same number, and from then on one variant is found under the
name of the other: numbers would be rounded to another format, without a word. Here a file is named by what it holds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numba
from numba.core.caching import IndexDataCacheFile


def compiled(function: Callable[..., None], **options: Any) -> Callable[..., Any]:
    """Compile without the interpreter's lock, and keep the machine code where there is a folder that may be written to.

    `options` are those of `numba.njit`, such as fastmath.
    """
    options = {"nogil": True, "error_model": "numpy", **options}
    try:
        loop: Callable[..., Any] = numba.njit(function, cache=True, **options)
    except RuntimeError:  # numba found no such folder
        loop = numba.njit(function, **options)
    else:
        _name_files_by_key(loop)
    return loop


class CodeFiles(IndexDataCacheFile):
    """The machine code of one function's variants, each in a file that no other variant is ever written to."""

    def save(self, key: Any, data: Any) -> None:
        """Save a variant; an entry that another process writes over is compiled once more, by the next one."""
        digest = hashlib.sha256(repr((key, self._source_stamp)).encode()).hexdigest()
        own: Any = self  # numba annotates none of its functions
        name = own._data_name(int(digest[:15], 16))
        own._save_data(name, data)
        own._save_index({**own._load_index(), key: name})


def _name_files_by_key(loop: Any) -> None:
    """Let a compiled function save by `CodeFiles`; a numba that keeps its code in another way stays as it is."""
    files = getattr(getattr(loop, "_cache", None), "_cache_file", None)
    if type(files) is IndexDataCacheFile:
        files.__class__ = CodeFiles
