"""The run files that are open at once: those that were read last; the others open again on demand."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from typing import Protocol

MOST_OPEN = 8  # HDF5 takes up to several MiB for an open file, and the system a handle


class Releasable(Protocol):
    """A view of a file that can close it and open it again."""

    def release(self) -> None:
        """Close the file until it is read again; nothing happens while another thread reads."""


class RecentViews:
    """Views in the order of their last use, the oldest beyond `most` released. Thread-safe."""

    def __init__(self, most: int = MOST_OPEN) -> None:
        self._most = most
        self._views: OrderedDict[int, weakref.ref[Releasable]] = OrderedDict()
        self._lock = threading.Lock()

    def used(self, view: Releasable) -> None:
        """Note the use of a view, and release those that were not used for the longest time."""
        with self._lock:
            self._views[id(view)] = weakref.ref(view)
            self._views.move_to_end(id(view))
            over = [self._views.popitem(last=False)[1] for _ in range(len(self._views) - self._most)]
        for reference in over:
            if (old := reference()) is not None and old is not view:
                old.release()


recent_views = RecentViews()
