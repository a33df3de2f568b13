"""Memory that the window has freed goes back to the system: trainings beside it may need it."""

from __future__ import annotations

import contextlib
import sys


def return_free_memory() -> None:
    """Have the C library return freed pages of all its heaps, which it keeps where they lie between used ones.

    `malloc_trim` of glibc; elsewhere nothing is done.
    """
    if sys.platform == "linux":
        import ctypes  # not before the first paint

        with contextlib.suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL("libc.so.6").malloc_trim(0)
